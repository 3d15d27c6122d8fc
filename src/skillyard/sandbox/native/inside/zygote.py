"""The warm interpreter that every sandbox of one environment is cloned from.

It runs inside the sandbox root, has one thread, holds no secret and no principal's data, and parses only the keeper's
messages. It imports packages ahead behind the filter that its sandboxes have. Their code can spoil this process and its
clones, and the keeper trusts neither.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from skillyard.guest import main as guest
from skillyard.ipc import packets
from skillyard.sandbox.native.inside import init, steps, walls
from skillyard.sandbox.native.inside.plain import be_plain, import_ahead
from skillyard.sandbox.native.inside.walls import INTO_CGROUP, SINGLE_INTO_CGROUP, SINGLE_PLAIN
from skillyard.sandbox.native.linux import kernel

Clone = Callable[[bytes, list[int]], tuple[int, int]]
"""Clones this process for an order and its descriptors; returns as :func:`kernel.clone`."""
BecomeInit = Callable[[bytes, list[int]], None]
"""Makes a fresh clone the init of a sandbox, and serves."""

_INTO_CGROUP, _SINGLE = (INTO_CGROUP, SINGLE_INTO_CGROUP), (SINGLE_PLAIN, SINGLE_INTO_CGROUP)
_SCRATCH = "size=64m,nr_inodes=4096,mode=0755"


def main(
    keeper: int,
    packages: str,
    preload: list[str],
    large: str,
    closing: str,
    directories: list[tuple[str, bool]],
    compiled: bool,
) -> None:
    """Serves clones on the descriptor ``keeper`` until it closes; filters are in hexadecimal.

    ``directories`` of the host are in the root already, each with whether it can be written to. ``compiled`` says that
    its orders are tables for the compiled part.
    """
    sock = socket.socket(fileno=keeper)
    part = steps.Compiled(os.path.dirname(steps.__file__)) if compiled else None
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(bytes.fromhex(large))
    be_plain(packages)
    if preload:
        with _scratch():
            import_watched(sock, preload)
    closing_filter = bytes.fromhex(closing)
    shown = [walls.Shown(*each) for each in directories]

    def become_init(order: bytes, fds: list[int]) -> None:
        groups = [] if order.startswith(_INTO_CGROUP) else fds[3:]
        walls.build(walls.Build.decode(order[1:]), groups, closing_filter, shown)
        init.Init(*fds[:3], single=order.startswith(_SINGLE)).run()

    freeze(bool(preload))
    packets.send(sock, {"ready": True})
    if part is None:
        serve(sock, _clone, become_init)
    else:
        serve_compiled(part, sock.fileno(), closing_filter, packages)


@contextmanager
def _scratch() -> Iterator[None]:
    """Makes the writable places of a sandbox while packages are imported, and removes them."""
    places = tuple(walls.WRITABLE.values())
    for place in places:
        kernel.mount("scratch", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, _SCRATCH)
    os.chdir(walls.WORKSPACE)
    yield
    os.chdir("/")
    for place in places:
        kernel.umount(place)


def import_watched(sock: socket.socket, names: list[str]) -> None:
    """Imports modules ahead, each after the keeper has looked at us with the one before.

    A module that fails ends this process, in which half of a package may be left; the next one begins without it.
    """
    for name in names:
        failed = import_ahead([name])
        if name in failed:
            packets.send(sock, {"fault": failed[name]})
            os._exit(1)
        packets.send(sock, {"imported": True})
        if not sock.recv(16):
            os._exit(0)


def freeze(preload: bool, *, warm_up: bool = True) -> None:
    """Readies the guest for forks, and keeps the collector away from pages that they share."""
    guest.prepare(preload, warm_up=warm_up)
    # What wakes in a sandbox does not interrupt the server and the keeper (sched(7)); clones inherit it. gVisor's
    # kernel does not know this policy, and a container may refuse it.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    gc.collect()
    kernel.give_back_memory()
    gc.freeze()
    gc.disable()


def serve(sock: socket.socket, clone: Clone, become_init: BecomeInit) -> None:
    """Serves clones until the keeper closes ``sock``. Reads none of its orders.

    Each page that this process touches is copied again after each clone.
    """
    while (got := packets.receive_raw(sock)) is not None:
        order, fds = got
        try:
            pid, pidfd = clone(order, fds)
        except OSError as error:
            packets.send(sock, {"failed": str(error)})
        else:
            if pid == 0:
                os.close(sock.fileno())
                _become(order, fds, become_init)
            tell_cloned(sock, pid, pidfd)
            os.close(pidfd)
        for fd in fds:
            os.close(fd)


_LATER = (
    f"import sys; sys.path.append({walls.CODE_ROOT!r});"
    " from skillyard.sandbox.native.inside.later import main; main(*sys.argv[1:])"
)


def serve_compiled(part: steps.Compiled, sock: int, closing: bytes, packages: str) -> None:
    """Serves clones as :func:`serve` does. This process runs no Python until the keeper lets go."""
    first = os.path.join(os.path.dirname(steps.__file__), steps.FIRST)
    command = (first, sys.executable, "-I", "-S", "-B", "-c", _LATER, packages)
    what, made = part.serve(sock, walls.NAMESPACES, closing, command, os.environ, init.be_guest)
    if what == steps.ENDED:
        return
    try:
        init.Init.begun(made.control, made.nothing, made.children, made.stack, made.worker).serve()
        os._exit(0)
    finally:
        os._exit(1)


def tell_cloned(sock: socket.socket, pid: int, pidfd: int) -> None:
    """Tells the keeper of a clone, by the pid alone where no descriptor can be sent.

    The packages of another zygote may have as many in flight as our user may (unix(7), ETOOMANYREFS).
    """
    try:
        packets.send(sock, {"pid": pid}, [pidfd])
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        packets.send(sock, {"pid": pid})


def _become(order: bytes, fds: list[int], become_init: BecomeInit) -> None:
    """Never returns: whatever happens, this process is not the zygote any more."""
    try:
        become_init(order, fds)
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the keeper must hear of it, and this process must end
        try:
            packets.send(socket.socket(fileno=fds[0]), {"broken": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(1)


def _clone(order: bytes, fds: list[int]) -> tuple[int, int]:
    into = fds[-1] if order.startswith(_INTO_CGROUP) else -1
    return kernel.clone(walls.NAMESPACES | kernel.CLONE_PARENT, cgroup=into)
