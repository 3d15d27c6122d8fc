"""Run a command on a host that lacks something: ``python knock_out.py KNOCK… -- COMMAND…``.

The kernel really refuses: by a filter of system calls, by mounts, limits and namespaces of this process, laid on before
the command begins. Standard library only, so that any interpreter can run it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Sequence

CALLS = {
    "x86_64": {"unshare": 272, "mount": 165, "umount2": 166, "pivot_root": 155, "setns": 308, "seccomp": 317,
               "sethostname": 170, "clone3": 435, "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
               "landlock_create_ruleset": 444, "pidfd_open": 434, "close_range": 436, "capset": 126},
    "aarch64": {"unshare": 97, "mount": 40, "umount2": 39, "pivot_root": 41, "setns": 268, "seccomp": 277,
                "sethostname": 161, "clone3": 435, "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
                "landlock_create_ruleset": 444, "pidfd_open": 434, "close_range": 436, "capset": 91},
}[platform.machine()]  # fmt: skip

NEWNS, NEWUSER = 0x20000, 0x10000000
BIND, REC, PRIVATE, REMOUNT, RDONLY = 4096, 16384, 1 << 18, 32, 1
_libc = ctypes.CDLL(None, use_errno=True)


def refuse(calls: Sequence[str], number: int) -> None:
    """seccomp(2): each of ``calls`` fails with ``number`` from now on, here and in what is started."""
    program = [(0x20, 0, 0, 0)]  # load the call's number
    for call in calls:
        program += [(0x15, 0, 1, CALLS[call]), (0x06, 0, 0, 0x00050000 | number)]
    program.append((0x06, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    if os.geteuid() != 0:
        _check(_libc.prctl(38, 1, 0, 0, 0))
    _check(_libc.prctl(22, 2, filter_, 0, 0))


def enter(flags: int) -> None:
    """New namespaces; in a new user namespace everybody keeps the ids that they have (one, for an ordinary user)."""
    uid, gid = os.geteuid(), os.getegid()
    maps = {name: _identity(name) for name in ("gid_map", "uid_map")} if uid == 0 else {}
    if not flags & NEWUSER:
        _check(_libc.unshare(flags))
        return
    if maps:
        _enter_mapped(flags, maps)
        return
    _check(_libc.unshare(flags))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")


def _enter_mapped(flags: int, maps: dict[str, str]) -> None:
    ours = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        for name, text in maps.items():
            _write(f"/proc/{ours}/{name}", text)
        os._exit(0)
    _check(_libc.unshare(flags))
    os.write(writing, b"x")
    if os.waitpid(child, 0)[1]:
        raise OSError("the ids could not be mapped")


def own_mounts() -> None:
    """A mount namespace of our own, in a user namespace where that takes one."""
    enter(NEWNS if os.geteuid() == 0 else NEWNS | NEWUSER)
    _mount("none", "/", None, REC | PRIVATE)


def no_user_namespaces() -> None:
    enter(NEWUSER)
    _write("/proc/sys/user/max_user_namespaces", "0")


def masked_proc() -> None:
    """As in a container: something lies over a part of /proc, and it is not ours to take away."""
    own_mounts()
    _mount("/dev/null", "/proc/version", None, BIND)
    enter(NEWUSER | NEWNS)


def read_only_cgroups() -> None:
    own_mounts()
    for target in _cgroup_mounts():
        _mount(target, target, None, BIND)
        _mount("none", target, None, BIND | REMOUNT | RDONLY)


def no_cgroups() -> None:
    own_mounts()
    for target in reversed(_cgroup_mounts()):
        _check(_libc.umount2(target.encode(), 2))


def small_disk(argument: str) -> None:
    """``PATH=SIZE``: a file system of that size (as tmpfs(5) writes it) on an existing directory."""
    path, _, size = argument.rpartition("=")
    own_mounts()
    _mount("small", path, "tmpfs", 0, f"size={size},mode=0700")


def no_dev_shm() -> None:
    own_mounts()
    kept = {name: os.open(f"/dev/{name}", os.O_PATH) for name in ("null", "zero", "full", "random", "urandom")}
    _mount("none", "/dev", "tmpfs", 0)
    for name, fd in kept.items():
        os.close(os.open(f"/dev/{name}", os.O_CREAT))
        _mount(f"/proc/self/fd/{fd}", f"/dev/{name}", None, BIND)


def no_new_processes(more: str) -> None:
    """RLIMIT_NPROC: ``more`` threads besides this one. In a user namespace of its own, where the kernel counts what is
    in it and nothing else of this user, such as another half of the tests. Binds no root of the first one."""
    enter(NEWUSER)
    resource.setrlimit(resource.RLIMIT_NPROC, (1 + int(more),) * 2)


def most_processes(count: str) -> None:
    """RLIMIT_NPROC as ``ulimit -u`` sets it, counted as above."""
    enter(NEWUSER)
    resource.setrlimit(resource.RLIMIT_NPROC, (int(count),) * 2)


def few_descriptors(count: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(count), int(count)))


def without_capabilities(numbers: str) -> None:
    """Out of the bounding set and every other one (capabilities(7)), as a container's root."""
    for number in numbers.split(","):
        _check(_libc.prctl(24, int(number), 0, 0, 0))
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff"))
    for number in numbers.split(","):
        held &= ~(1 << int(number))
    low, high = held & 0xFFFFFFFF, held >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    _check(_libc.syscall(ctypes.c_long(CALLS["capset"]), header, struct.pack("6I", low, low, 0, high, high, 0)))


def _refuse(argument: str) -> None:
    calls, _, name = argument.partition("=")
    refuse(calls.split(","), getattr(errno, name or "EPERM"))


KNOCKS: dict[str, Callable[..., None]] = {
    "refuse": _refuse,
    "no_user_namespaces": no_user_namespaces,
    "masked_proc": masked_proc,
    "read_only_cgroups": read_only_cgroups,
    "no_cgroups": no_cgroups,
    "no_dev_shm": no_dev_shm,
    "small_disk": small_disk,
    "no_new_processes": no_new_processes,
    "most_processes": most_processes,
    "few_descriptors": few_descriptors,
    "without_capabilities": without_capabilities,
}
"""``name`` or ``name:argument``, in the order in which they are given."""


def _cgroup_mounts() -> list[str]:
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file if line.partition(" - ")[2].startswith("cgroup")]


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [text.encode() if text else None for text in (source, target, kind, options)]
    _check(_libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]))


def _identity(name: str) -> str:
    with open(f"/proc/self/{name}") as file:
        return "".join(f"{first} {first} {count}\n" for first, _, count in map(str.split, file))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())
    os.close(fd)


def _check(got: int) -> None:
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    at = sys.argv.index("--")
    for knock in sys.argv[1:at]:
        name, _, argument = knock.partition(":")
        KNOCKS[name](*([argument] if argument else []))
    os.execvp(sys.argv[at + 1], sys.argv[at + 1 :])


if __name__ == "__main__":
    main()
