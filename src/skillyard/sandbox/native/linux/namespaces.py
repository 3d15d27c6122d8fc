"""The keeper's namespaces, in a user namespace of its own unless it may mount without one."""

from __future__ import annotations

import errno
import os

from skillyard.sandbox.native.linux import kernel

_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN, _CAP_SETFCAP = 6, 7, 21, 31
_MAPPERS = (_CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP)
"""The capabilities to map all our ids into a new user namespace, our 0 among them."""


def enter() -> None:
    """Enters new mount and pid namespaces; the latter begins with the next child.

    A container's root often lacks CAP_SYS_ADMIN. Where it may map ids, its sandboxes have ids of their own all the
    same; else it has one id to give, as an ordinary user has. Raises OSError naming the step.
    """
    held = capabilities() if os.geteuid() == 0 else 0
    if not _has(held, _CAP_SYS_ADMIN):
        if all(_has(held, needed) for needed in _MAPPERS):
            _enter_with_all_ids()
        else:
            _enter_with_one_id()
    unshare("mount and pid namespaces", kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)


def leave_network() -> None:
    """Enters a new network namespace, after :func:`enter`. Raises OSError naming the step.

    From a sandbox's network the keeper can come back only to one that its own user namespace owns (setns(2)).
    """
    unshare("network namespace", kernel.CLONE_NEWNET)


def may_enter() -> bool:
    """Returns whether :func:`enter` is possible: root must be able to map itself."""
    held = capabilities()
    return os.geteuid() != 0 or _has(held, _CAP_SYS_ADMIN) or _has(held, _CAP_SETFCAP)


def capabilities() -> int:
    """Returns our effective capabilities, a bit each (proc_pid_status(5))."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapEff")), 0)


def may_map_ids() -> bool:
    """Returns whether we may map more ids than our own."""
    held = capabilities()
    return _has(held, _CAP_SETUID) and _has(held, _CAP_SETGID)


def _has(held: int, capability: int) -> bool:
    return bool(held >> capability & 1)


def unshare(what: str, flags: int) -> None:
    """Raises OSError naming ``what``. A limit that is reached reads as a full disk otherwise."""
    try:
        kernel.unshare(flags)
    except OSError as error:
        why = "a limit of namespaces is reached" if error.errno == errno.ENOSPC else os.strerror(error.errno or 0)
        raise OSError(error.errno, f"unshare ({what}): {why}") from None


def _enter_with_one_id() -> None:
    uid, gid = os.geteuid(), os.getegid()
    unshare("user namespace", kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
        write(f"/proc/self/{name}", text)


def _enter_with_all_ids() -> None:
    """Lets a child write the maps: only a process outside may map more than one id."""
    maps = {name: _same(name) for name in ("gid_map", "uid_map")}
    ours = os.getpid()
    entered_r, entered_w = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(entered_w)
            if os.read(entered_r, 1):
                for name, text in maps.items():
                    write(f"/proc/{ours}/{name}", text)
                status = 0
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)
    os.close(entered_r)
    try:
        unshare("user namespace", kernel.CLONE_NEWUSER)
        os.write(entered_w, b"x")
    finally:
        os.close(entered_w)
        failed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if failed:
        raise OSError(failed, f"uid_map: {os.strerror(failed)}")


def _same(name: str) -> str:
    """Returns a map of all our namespace's ids to themselves."""
    with open(f"/proc/self/{name}", encoding="ascii") as file:
        return "".join(f"{first} {first} {count}\n" for first, _, count in map(str.split, file))


def write(path: str, text: str) -> None:
    """Writes a file in one call, as the kernel wants its maps. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)
