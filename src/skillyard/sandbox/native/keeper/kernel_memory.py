"""What a sandbox may hold of the kernel's memory where no controller counts it, by what can be seen from outside.

How full a socket is, only its owner can ask: each counts as the most that it may hold (socket(7)). A pipe holds a
page or two once its user has many (pipe(7), pipe-user-pages-soft).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

_FEW_SOCKETS = 32
_FEW_DESCRIPTORS = 256
_DESCRIPTOR = 8192
_USUAL_BUFFER = 212_992
_TRUE_SIZE = 2
"""Of what a byte in a queue takes at most, in usual pieces."""
_QUEUES = 4


def held(init: int, places: Iterable[str], listeners: int = 0) -> int:
    """Bytes, an upper bound; next to nothing for the little that any program has. ``places`` are the processes, as
    :func:`skillyard.sandbox.native.keeper.tree.place_of` tells; ``listeners`` sockets in there are not theirs."""
    return _sockets(init, listeners) + sum(map(of_process, places))


def of_sockets(count: int) -> int:
    """Bytes that wait in so many sockets at most; of few, nothing."""
    return count * largest_buffer() if count > _FEW_SOCKETS else 0


def _sockets(init: int, listeners: int) -> int:
    """Of the network namespace of a sandbox's init, if it has one of its own."""
    words = _read(f"/proc/{init}/net/sockstat").split()
    count = int(words[2]) - listeners if words[:2] == ["sockets:", "used"] else 0
    if count <= _FEW_SOCKETS or not _own_network(init):
        return 0
    return of_sockets(count) + _TRUE_SIZE * sum(_queued(init, name) for name in ("tcp", "tcp6"))


def _own_network(init: int) -> bool:
    try:
        return os.stat(f"/proc/{init}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return False


@functools.cache
def largest_buffer() -> int:
    """The largest buffer that a program can ask for: the kernel doubles what it is asked. Many kernels tell it only in
    the host's own network namespace."""
    text = _read("/proc/sys/net/core/wmem_max").strip()
    return 2 * (int(text) if text.isdigit() else _USUAL_BUFFER)


def _queued(init: int, protocol: str) -> int:
    """Bytes that wait in the connections of a protocol, whose buffers grow beyond that."""
    total = 0
    for line in _read(f"/proc/{init}/net/{protocol}").splitlines()[1:]:
        words = line.split()
        total += sum(int(part, 16) for part in words[_QUEUES].split(":")) if len(words) > _QUEUES else 0
    return total


def of_process(place: str) -> int:
    """Page tables, and descriptors by the size of their table (VmPTE and FDSize in proc_pid_status(5))."""
    found = 0
    for line in _read(f"{place}/status").splitlines():
        if line.startswith("VmPTE:"):
            found += int(line.split()[1]) * 1024
        elif line.startswith("FDSize:"):
            found += max(0, int(line.split()[1]) - _FEW_DESCRIPTORS) * _DESCRIPTOR
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
