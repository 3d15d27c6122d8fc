"""One QEMU process: its command line, its user, and its end.

QEMU opens nothing by itself: image, snapshot and sockets are descriptors that it inherits, so its user needs no right
to any file of ours. It is in a network of its own without interfaces, has no capability, can start no process, and
the kernel ends it with its server where its sandbox belongs to one.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from skillyard.domain.errors import SandboxFault
from skillyard.sandbox.microvm.first import CHANNEL_PORT, CHANNELS, ORDER_PORT
from skillyard.sandbox.microvm.image import INITIAL, KERNEL, ROOT, Image
from skillyard.sandbox.native.groups.groups import GroupLimits
from skillyard.values import dataclass

ORDER, MONITOR, LOG, SAID = "order", "monitor", "log", "said"
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
CMDLINE = "console=ttyS0 quiet panic=-1 init=/init random.trust_cpu=off"
_ENDS_S = 30.0
_HELPERS = ("unshare", "setpriv")
_CODE_MB = 128
"""Memory in which emulation keeps translated code."""
_OWN_MB = 256
"""Memory of QEMU itself, and of the snapshot that it reads."""
_OWN_TASKS = 96
"""Threads of QEMU besides the processors: at most 64 of them read and write files."""
_OWN_CPUS = 0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a machine that a snapshot depends on."""

    qemu: str
    version: str
    accel: str
    memory_mb: int
    processors: int

    @property
    def text(self) -> str:
        return f"{self.version}/{self.accel}/{self.memory_mb}/{self.processors}"

    def room(self) -> GroupLimits:
        """Returns the limits of a control group round QEMU: the machine, and QEMU's own needs."""
        own = _OWN_MB + (_CODE_MB if self.accel == "tcg" else 0)
        return GroupLimits(self.memory_mb + own << 20, self.processors + _OWN_TASKS, self.processors + _OWN_CPUS)


def channel(number: int) -> str:
    """Returns the name of a channel's socket."""
    return f"channel{number}"


def sockets(monitor: bool) -> list[str]:
    return [ORDER, *map(channel, range(CHANNELS)), *([MONITOR] if monitor else [])]


def words(
    shape: Shape, image: Mapping[str, int], ends: Mapping[str, int], memory: int, *, boots: bool
) -> Iterator[str]:
    """Yields the command line of QEMU. ``ends`` are descriptors of listening sockets.

    One that boots works in the file ``memory``, any other in pages of its own that begin as those of the file.
    """
    yield from (shape.qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none")
    yield from ("-sandbox", SANDBOX)
    accel = (
        f"tcg,thread={'multi' if shape.processors > 1 else 'single'},tb-size={_CODE_MB}"
        if shape.accel == "tcg"
        else "kvm"
    )
    yield from ("-accel", accel, "-cpu", "max" if shape.accel == "tcg" else "host")
    yield from ("-machine", "q35,usb=off,vmport=off,smm=off,sata=off,dump-guest-core=off,memory-backend=ram")
    place = f"size={shape.memory_mb}M,mem-path=/proc/self/fd/{memory},share={'on' if boots else 'off'}"
    yield from ("-object", f"memory-backend-file,id=ram,{place},prealloc=off,merge=off,dump=off")
    yield from ("-m", f"{shape.memory_mb}M", "-smp", str(shape.processors))
    yield from ("-kernel", f"/proc/self/fd/{image[KERNEL]}", "-initrd", f"/proc/self/fd/{image[INITIAL]}")
    yield from ("-append", CMDLINE)
    yield from ("-add-fd", f"fd={image[ROOT]},set=1")
    yield from ("-blockdev", "driver=file,node-name=root,filename=/dev/fdset/1,read-only=on,locking=off")
    yield from ("-device", "virtio-blk-pci,drive=root,disable-legacy=on")
    yield from ("-device", "virtio-serial-pci,max_ports=8,disable-legacy=on")
    for number, (name, port) in enumerate(
        [(ORDER, ORDER_PORT), *((channel(n), f"{CHANNEL_PORT}{n}") for n in range(CHANNELS))]
    ):
        yield from ("-chardev", f"socket,id={name},fd={ends[name]},server=on,wait=off")
        yield from ("-device", f"virtserialport,chardev={name},name={port},nr={number + 1}")
    if LOG in ends:
        yield from ("-add-fd", f"fd={ends[LOG]},set=2", "-chardev", "file,id=log,path=/dev/fdset/2")
    else:
        yield from ("-chardev", "null,id=log")
    yield from ("-serial", "chardev:log")
    if MONITOR in ends:
        yield from ("-chardev", f"socket,id=monitor,fd={ends[MONITOR]},server=on,wait=off")
        yield from ("-mon", "chardev=monitor,mode=control")
    if not boots:
        yield from ("-chardev", "stdio,id=steps,signal=off", "-mon", "chardev=steps,mode=control")
        yield from ("-incoming", "defer")


def restoring(state: int) -> bytes:
    """Returns what QEMU reads from its standard input: how to take the state of a descriptor."""
    shared = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}
    steps: dict[str, object] = {
        "qmp_capabilities": {},
        "migrate-set-capabilities": shared,
        "migrate-incoming": {"uri": f"fd:{state}"},
    }
    return "".join(json.dumps({"execute": name, "arguments": given}) for name, given in steps.items()).encode()


def confined(uid: int | None, accel: str, dies: bool) -> list[str]:
    """Returns the words before QEMU's, which take privileges and the network away.

    ``uid`` is None where this process is not root and has no other user to give. With ``dies`` the kernel ends it with
    this thread.
    """
    if missing := [name for name in _HELPERS if shutil.which(name) is None]:
        raise SandboxFault(f"not installed: {', '.join(missing)}; install util-linux")
    end = ["--pdeathsig", "KILL"] if dies else []
    if uid is None:
        return [
            "unshare",
            "--user",
            "--map-current-user",
            "--net",
            "--ipc",
            "--",
            "setpriv",
            "--no-new-privs",
            *end,
            "--",
        ]
    groups = (kvm_groups(Path("/dev/kvm").stat()) if accel == "kvm" else None) or ["--clear-groups"]
    user = ["--reuid", str(uid), "--regid", str(uid), *groups, "--inh-caps=-all", "--bounding-set=-all"]
    return ["unshare", "--net", "--ipc", "--", "setpriv", *user, "--no-new-privs", *end, "--"]


def kvm_groups(device: os.stat_result) -> list[str] | None:
    """Returns words for setpriv: groups that may open /dev/kvm; None where only root may.

    Root's group is given to nobody.
    """
    if device.st_mode & 0o006 == 0o006:
        return ["--clear-groups"]
    if device.st_gid != 0 and device.st_mode & 0o060 == 0o060:
        return ["--groups", str(device.st_gid)]
    return None


def launch(
    place: Path,
    shape: Shape,
    image: Image,
    uid: int | None,
    name: str,
    memory: int,
    restored: int | None = None,
    *,
    dies: bool,
    groups: Sequence[str] = (),
) -> int:
    """Starts a machine whose sockets are below ``place``; returns its process. Raises SandboxFault.

    Without the state of a snapshot (``restored``) it boots, with a monitor and a log. ``memory`` is the file of its
    memory. ``name`` tells its process from others; by a write to each of the files ``groups`` it becomes a member of
    control groups. No transport of asyncio has it, since those end
    theirs with the event loop, and tasks outlive it.
    """
    opened: dict[str, int] = {}
    listening: list[socket.socket] = []
    copies: list[int] = []
    try:
        for end in sockets(restored is None):
            listening.append(listen(place, end))
            opened[end] = listening[-1].fileno()
        if restored is None:
            copies.append(os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            opened[LOG] = copies[-1]
        descriptors = {key: _again(value, copies) for key, value in image.descriptors.items()}
        memory = _again(memory, copies)
        stdin = os.open(os.devnull, os.O_RDONLY) if restored is None else _given(restoring(_again(restored, copies)))
        copies.append(stdin)
        copies.append(os.open(place / SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        said = copies[-1]
        line = [
            *_joined(groups),
            *confined(uid, shape.accel, dies),
            *words(shape, descriptors, opened, memory, boots=restored is None),
            "-name",
            name,
        ]
        for descriptor in (*opened.values(), *copies):
            os.set_inheritable(descriptor, True)
        path = os.environ.get("PATH", os.defpath)
        nothing = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        actions = [nothing, (os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, said, 2)]
        return os.posix_spawnp(line[0], line, {"PATH": path}, file_actions=actions, setsid=True)
    except OSError as error:
        raise SandboxFault(f"QEMU does not start: {error}") from None
    finally:
        for listener in listening:
            listener.close()
        for copy in copies:
            os.close(copy)


def _joined(groups: Sequence[str]) -> list[str]:
    """Returns words before a command that put it into control groups, or end it."""
    joins = "".join(f"echo 0 >{shlex.quote(file)} && " for file in groups)
    return ["/bin/sh", "-c", f'{joins}exec "$@"', "sh"] if groups else []


def _given(text: bytes) -> int:
    """Returns the end of a pipe that gives a short text, and then ends."""
    source, target = os.pipe()
    os.write(target, text)
    os.close(target)
    return source


def _again(descriptor: int, copies: list[int]) -> int:
    """Opens a file anew, for reading: an offset of its own, and no right to write."""
    copies.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
    return copies[-1]


@contextmanager
def short(place: Path) -> Iterator[str]:
    """Gives a short name of a directory, since names of sockets have at most 107 bytes."""
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}"
    finally:
        os.close(directory)


def listen(place: Path, name: str) -> socket.socket:
    """Returns a listening socket below ``place``. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with short(place) as directory:
            listener.bind(f"{directory}/{name}")
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener


async def connect(place: Path, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to a socket of a machine. Raises OSError."""
    with short(place) as directory:
        return await asyncio.open_unix_connection(f"{directory}/{name}")


def processes_of(name: str) -> Iterator[int]:
    """Yields the processes of the machine ``name``, also before they have executed QEMU."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_of(int(entry.name), name):
            yield int(entry.name)


def _is_of(pid: int, name: str) -> bool:
    return _words(pid).endswith(b"\0-name\0" + name.encode() + b"\0")


def count() -> int:
    """Returns how many machines of skillyard this host has, of all servers."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sum(f"name={ORDER_PORT},".encode() in _words(pid) for pid in pids)


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def began(pid: int) -> str:
    """Returns the beginning of a process that lives; empty where there is none.

    It tells the process from another of its number, and stays when it executes another program.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        state, *words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else f"{boot} {words[18]}"


def _reap(pidfd: int) -> None:
    """Takes the status of a process that has ended, unless an earlier server started it."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


async def end(pid: int, beginning: str) -> None:
    """Kills the process that began at ``beginning``; returns when it has ended.

    Raises SandboxFault where it does not.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        if beginning and began(pid) == beginning:
            loop.add_reader(pidfd, ended.set)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            async with asyncio.timeout(_ENDS_S):
                await ended.wait()
        _reap(pidfd)
    except TimeoutError:
        raise SandboxFault(f"QEMU (process {pid}) does not end") from None
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
