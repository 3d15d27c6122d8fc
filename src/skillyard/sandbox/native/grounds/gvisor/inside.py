"""pid 1 of a gVisor sandbox: root there, which starts programs as an ordinary user.

It mounts the writable directories, warms the interpreter up, gets its descriptors from the keeper over the socket that
is its standard input, and goes on as the native backend's init. The keeper can reach it in no other way.

In a sandbox for one guest program the static program (``first.c``) is pid 1, where it was built. Its worker builds the
inside then, and no fork copies an interpreter.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import struct

from skillyard.guest import main as guest
from skillyard.ipc import packets
from skillyard.sandbox.native.inside import agreed, init
from skillyard.sandbox.native.inside.plain import be_plain, import_ahead
from skillyard.sandbox.native.linux import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BOX = "run/box"
_DEVICES_NOT_GIVEN = ("fuse", "net/tun", "ptmx")
_COVERED = "/proc/1"
_CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP, _CAP_KILL = 6, 7, 8, 5
_BOUNDING = range(38)
"""The capabilities that gVisor knows, up to CAP_AUDIT_READ (capabilities(7))."""
_KEPT = 1 << _CAP_KILL | 1 << _CAP_SETGID | 1 << _CAP_SETUID | 1 << _CAP_SETPCAP


_CONTROL, _CHANNEL, _OUTPUT, _LAST_WORDS = 3, 16, 17, 18
"""The descriptors that a worker has from the static program."""


def main(packages: str, preload: list[str], disk_bytes: int, processes: int, filters: list[str]) -> None:
    """Builds the inside and serves; never returns. The filters come assembled, in hexadecimal."""
    control = os.dup(0)
    os.set_inheritable(control, False)
    try:
        _build(packages, preload, disk_bytes)
        _, (channel, output) = _first_message(control)
        _be_quiet()
        _hold(_KEPT)
        Init(control, channel, output, Bounds(disk_bytes, processes, filters)).run()
    except BaseException as error:  # noqa: BLE001 - the keeper must hear of it, and this process must end
        _tell_broken(control, error)
    finally:
        os._exit(1)


def work(packages: str, disk_bytes: int, processes: int, filters: list[str]) -> None:
    """Builds the inside as the static program's worker, and runs one request; never returns."""
    bounds = Bounds(disk_bytes, processes, filters)
    try:
        _build(packages, [], disk_bytes)
        os.write(_CONTROL, agreed.READY)
    except BaseException as error:  # noqa: BLE001 - as above
        _tell_broken(_CONTROL, error)
        os._exit(1)

    def serve() -> None:
        init.be_child((0, _OUTPUT, _OUTPUT, _CHANNEL, _LAST_WORDS))
        bounds.enter()
        init.serve_guest(frozenset(), waits=True)

    init.end_with(serve)


def start_later(packages: str, disk_bytes: int, processes: int, filters: list[str], *pieces: str) -> None:
    """Goes on as a program that the static program starts beside its worker."""
    from skillyard.sandbox.native.inside import later

    def be_child(fds: tuple[int, ...]) -> None:
        init.be_child(fds)
        Bounds(disk_bytes, processes, filters).enter()

    init.end_with(lambda: later.main(packages, *pieces, be_child=be_child))


def _build(packages: str, preload: list[str], disk_bytes: int) -> None:
    _make_writable(disk_bytes)
    _close_doors()
    be_plain(packages)
    import_ahead(preload)
    guest.prepare(bool(preload), warm_up=False)  # most of these interpreters run one request
    gc.freeze()


def _tell_broken(control: int, error: BaseException) -> None:
    packets.send(socket.socket(fileno=control), {"broken": f"{type(error).__name__}: {error}"})


class Bounds:
    """The bounds of foreign code inside of gVisor: limits, an ordinary user, filters."""

    def __init__(self, disk_bytes: int, processes: int, filters: list[str]) -> None:
        self._limits = (
            (resource.RLIMIT_NPROC, processes),
            (resource.RLIMIT_FSIZE, 2 * disk_bytes),  # above the tmpfs: a full disk reads as ENOSPC
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, 1024),
            (resource.RLIMIT_MEMLOCK, 1 << 16),
        )
        self._filters = [bytes.fromhex(text) for text in filters]

    def enter(self) -> None:
        """Gives up root for good."""
        for kind, value in self._limits:
            resource.setrlimit(kind, (value, value))
        _become_nobody()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        for made in self._filters:
            kernel.install_filter(made)


class Init(init.Init):
    """The native init as root: each child gives that up and then installs the filters."""

    def __init__(self, control: int, channel: int, output: int, bounds: Bounds) -> None:
        self._bounds = bounds
        self._keeper = socket.socket(fileno=os.dup(control))
        super().__init__(control, channel, output)

    def be_child(self, fds: tuple[int, ...]) -> None:
        super().be_child(fds)
        self._bounds.enter()

    def kill_tree(self, leader: int, *, beside: bool) -> None:
        # A hopper was seen to go on here after all were stopped. It ends with the last program of the sandbox.
        _kill_tree(leader)

    def heard(self, message: dict[str, Any]) -> None:
        """Tells how full the disk is, which only gVisor's kernel knows."""
        if "weigh" in message:
            told = os.statvfs(agreed.WORKSPACE)
            packets.send(self._keeper, {"weighed": (told.f_blocks - told.f_bfree) * told.f_frsize})


def _first_message(control: int) -> tuple[dict[str, Any], list[int]]:
    sock = socket.socket(fileno=control)
    try:
        got = packets.receive(sock)
    finally:
        sock.detach()
    if got is None or len(got[1]) != 2:
        raise OSError(0, "the keeper sent no descriptors")
    return got


def _be_quiet() -> None:
    """Drops the keeper's pipe for errors; from here on they go over the control socket."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _make_writable(disk_bytes: int) -> None:
    """Mounts one tmpfs for all that the sandbox can write, so that one limit counts it all."""
    os.chdir("/")
    kernel.mount("box", _BOX, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={disk_bytes},mode=0755")
    for name, target in agreed.WRITABLE.items():
        path = f"{_BOX}/{name}"
        os.mkdir(path)
        os.chmod(path, 0o755 if target == agreed.WORKSPACE else 0o1777)
        os.chown(path, agreed.INSIDE_ID, agreed.INSIDE_ID)
        kernel.mount(path, target, None, kernel.MS_BIND)
    kernel.umount(_BOX)
    os.chdir(agreed.WORKSPACE)


def _close_doors() -> None:
    """Removes devices that no program needs, and hides this process's part of /proc."""
    for name in _DEVICES_NOT_GIVEN:
        try:
            os.unlink(f"/dev/{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.mount("none", _COVERED, "tmpfs", kernel.MS_RDONLY, "size=4096,mode=0555")


def _become_nobody() -> None:
    """Gives up root. No securebits are needed where no_new_privs is fixed."""
    for capability in _BOUNDING:
        kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(agreed.INSIDE_ID, agreed.INSIDE_ID, agreed.INSIDE_ID)
    os.setresuid(agreed.INSIDE_ID, agreed.INSIDE_ID, agreed.INSIDE_ID)
    _hold(0)


def _hold(capabilities: int) -> None:
    """Holds exactly these as effective and permitted, and none to inherit (capset(2))."""
    header = struct.pack("Ii", 0x20080522, 0)
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    kernel.call("capset", kernel.NR_CAPSET, header, struct.pack("6I", low, low, 0, high, high, 0))


def _parents() -> dict[int, int]:
    """Returns each process's parent; older gVisors have no list of children."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or is the one that is covered
    return found


def _kill_tree(leader: int) -> None:
    """Stops all that is found, looks again until nothing new is there, then kills."""
    stopped: set[int] = set()
    fresh = {leader}
    while fresh:
        for pid in fresh:
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                continue
        stopped |= fresh
        fresh = {pid for pid, parent in _parents().items() if parent in stopped} - stopped
    for pid in stopped:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
