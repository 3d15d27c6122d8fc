"""The memory of one sandbox: a look at it, and the end of the one that passes its limit.

A memory controller bounds memory and files together, since it charges a tmpfs to its writers. The watch then looks for
memory alone above its own limit, with that of the network, which no controller charges. It does not look at what was
just lent, since many runs are over before. Without a controller only the watch bounds a tree of processes, beside
RLIMIT_DATA for each; a sandbox may pass its limit between two looks.

How full a socket is, only its owner can ask: each counts as the most that it may hold (socket(7)), but for the TCP
ones, whose queues the kernel lists. A pipe holds a page or two once its user has many (pipe(7), pipe-user-pages-soft).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from skillyard.sandbox.native.keeper.request import MIB
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import place_of, proportional, read, resident, tree_of

_FRESH_S = 0.05


def check(sandbox: Sandbox, objects: Objects) -> None:
    limit = sandbox.shape.memory_mb * MIB
    if sandbox.group is not None and sandbox.group.counts_memory():
        since = 0.0 if sandbox.lease is None else sandbox.lease.at
        if time.monotonic() - since < _FRESH_S and objects.hurried_at < since:
            return
        objects.check(sandbox, [place_of(pid) for pid in sandbox.group.leaders()], counted=True)
        used = sandbox.group.own_memory() + uncharged(sandbox.pid)
    else:
        places = [place_of(pid) for pid in tree_of(sandbox.pid)]
        objects.check(sandbox, places, counted=False)
        used = _of_tree(sandbox, places, limit)
    sandbox.account.meter.used.saw(used)
    if used > limit and sandbox.forced is None:
        sandbox.end_for("memory", f"over the memory limit of {sandbox.shape.memory_mb} MiB")


def _of_tree(sandbox: Sandbox, places: Sequence[str], limit: int) -> int:
    """Returns the memory of its processes, or that of the kernel for them if it is more."""
    used = sum(map(resident, places))
    if used > limit:
        used = sum(map(proportional, places))
    return max(used, held_by_kernel(sandbox.pid, places, sandbox.listeners))


_FEW_SOCKETS = 32
_FEW_DESCRIPTORS = 64
_DESCRIPTOR = 8192
_USUAL_BUFFER = 212_992
_USUAL_WINDOW = 6 << 20
_QUEUES, _INODE = 4, 9
"""Positions of words in a line of /proc/net/tcp. Until it is accepted, a connection has no inode."""
_FEW_CONNECTIONS = 16
_CONNECTION = 8192
"""Bytes of a connection and of its end that waits to be accepted."""
_REMEMBERED = 320
_LITTLE = 64 << 20
_LISTING = 4 << 20
_PAGE = os.sysconf("SC_PAGESIZE")


def held_by_kernel(init: int, places: Iterable[str], listeners: int = 0) -> int:
    """Returns bytes, an upper bound; next to nothing for the little that any program has.

    ``places`` are the processes (:func:`skillyard.sandbox.native.keeper.watch.processes.place_of`); ``listeners``
    sockets in there are not theirs.
    """
    return _sockets(init, listeners) + sum(map(of_process, places))


def of_sockets(count: int) -> int:
    """Bytes that wait in so many sockets at most; of few, nothing."""
    return count * largest_buffer() if count > _FEW_SOCKETS else 0


def uncharged(init: int) -> int:
    """Returns bytes of a sandbox's network that no memory controller charges. A connection is charged when it is
    accepted, with its queue; one that has ended is remembered for a minute and charged to nobody."""
    network = _network(init)
    count = _connections(init, network)
    held_by_kernel = network.get("TCP: tw", 0) * _REMEMBERED
    if count > _FEW_CONNECTIONS and _own_network(init):
        held_by_kernel += count * _CONNECTION + _queued(init, network, unaccepted=True)
    return held_by_kernel


def _sockets(init: int, listeners: int) -> int:
    """Of the network namespace of a sandbox's init, if it has one of its own."""
    network = _network(init)
    count = network.get("sockets: used", 0) - listeners
    if count <= _FEW_SOCKETS or not _own_network(init):
        return 0
    connections = max(0, _connections(init, network) - listeners)
    held_by_kernel = connections * _CONNECTION + network.get("TCP: tw", 0) * _REMEMBERED
    return held_by_kernel + of_sockets(count - connections) + _queued(init, network)


def _connections(init: int, network: Mapping[str, int]) -> int:
    """Returns the TCP sockets of both versions of IP."""
    # Those of IPv6 have a file of their own, which is read only where sockets are many.
    six = _network(init, "sockstat6") if network.get("sockets: used", 0) > _FEW_CONNECTIONS else {}
    return network.get("TCP: inuse", 0) + six.get("TCP6: inuse", 0)


def _network(init: int, name: str = "sockstat") -> dict[str, int]:
    """Returns ``sockets: used``, ``TCP: inuse`` and so on (proc_pid_net(5)). ``TCP: mem`` is of the whole host."""
    found: dict[str, int] = {}
    for line in read(f"/proc/{init}/net/{name}").splitlines():
        kind, *words = line.split()
        found |= {f"{kind} {word}": int(value) for word, value in zip(words[::2], words[1::2], strict=False)}
    return found


def _own_network(init: int) -> bool:
    try:
        return os.stat(f"/proc/{init}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return False


@functools.cache
def largest_buffer() -> int:
    """The largest buffer that a program can ask for: the kernel doubles what it is asked. Many kernels tell it only in
    the host's own network namespace."""
    told = [read(f"/proc/sys/net/core/{name}").strip() for name in ("wmem_max", "rmem_max")]
    return 2 * max(int(text) if text.isdigit() else _USUAL_BUFFER for text in told)


def _queued(init: int, network: Mapping[str, int], *, unaccepted: bool = False) -> int:
    """Returns bytes that may wait in connections, of all or of those that nobody accepted. A connection in which
    anything waits counts as the most that it may hold, since many small pieces take far more than their bytes. The sum
    is bounded by the bytes of the whole host. Listing takes milliseconds, so it is left out while that sum is small,
    and bounded."""
    together = network.get("TCP: mem", 0) * _PAGE
    if together <= _LITTLE:
        return 0
    busy = 0
    for name in ("tcp", "tcp6"):
        text = read(f"/proc/{init}/net/{name}", _LISTING)
        if len(text) == _LISTING:
            return together
        for words in map(str.split, text.splitlines()[1:]):
            if len(words) > _INODE and not (unaccepted and words[_INODE] != "0"):
                busy += words[_QUEUES] != "00000000:00000000"
    return min(together, busy * max(largest_window(), largest_buffer()))


@functools.cache
def largest_window() -> int:
    """Returns the size to which a connection's queue grows by itself (tcp(7), tcp_rmem)."""
    words = read("/proc/sys/net/ipv4/tcp_rmem").split()
    return int(words[-1]) if words else _USUAL_WINDOW


def of_process(place: str) -> int:
    """Returns bytes for page tables and descriptors (VmPTE and FDSize in proc_pid_status(5))."""
    found = 0
    for line in read(f"{place}/status").split("\n"):  # a process's name may hold what str.splitlines takes for an end
        if line.startswith("VmPTE:"):
            found += int(line.split()[1]) * 1024
        elif line.startswith("FDSize:"):
            found += max(0, int(line.split()[1]) - _FEW_DESCRIPTORS) * _DESCRIPTOR
    return found
