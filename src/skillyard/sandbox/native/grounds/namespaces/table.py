"""The steps of a sandbox's walls as a table, for the compiled part.

They are those of :func:`skillyard.sandbox.native.inside.walls.build`, and ``tests/unit/sandbox/native/test_steps.py``
holds that both make the same calls. The keeper makes the table, so that a clone reads nothing but numbers and bytes.
It is made once for all sandboxes that differ in their user alone.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
import struct
from collections.abc import Iterator

from skillyard.sandbox.native.grounds.namespaces.form import (
    ANY,
    DROP_BOUNDING,
    END,
    FORK_ONCE,
    GROW_STACK,
    Argument,
    Filter,
    Given,
    Patched,
    Slot,
    Step,
    argument_bytes,
    encode,
)
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.inside.walls import EMPTY, HOSTNAME, SHM, TMP, WORKSPACE, WRITABLE
from skillyard.sandbox.native.linux import kernel, landlock
from skillyard.sandbox.native.linux.syscall_numbers import NUMBERS

FIRST_GROUP = 3
"""The number of the first descriptor of a control group among those that come with an order."""
_AT = kernel.AT_FDCWD
_OPEN = os.O_WRONLY | os.O_CLOEXEC
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x1 | 0x40
_ONE = 0
"""The slot of a descriptor that the next steps use."""
_RULES = 1
_FEWEST_CAPABILITIES = 37


def order(build: walls.Build, groups: int) -> bytes:
    """Returns the whole table of a sandbox that joins ``groups`` control groups by itself.

    Sandboxes that differ in their user alone have the same table, into which its id is put.
    """
    between = _of_anybody(build._replace(uid=_ANYBODY), groups)
    number = _as_number(build.uid)
    return _as_map(build.uid).join([number.join(parts) for parts in between])


_ANYBODY = 0x5EED_C0DE_5EED_C0DE
"""Stands for an id. Neither its bytes nor its digits are anywhere else in a table."""


def _as_number(uid: int) -> bytes:
    return argument_bytes(uid)


def _as_map(uid: int) -> bytes:
    """Returns the bytes and the size that are written to a map of ids."""
    text = _id_map(uid)
    return argument_bytes(text) + argument_bytes(len(text))


def _id_map(uid: int) -> bytes:
    return f"{walls.INSIDE_ID} {uid} 1".encode()


@functools.lru_cache(64)
def _of_anybody(build: walls.Build, groups: int) -> tuple[tuple[bytes, ...], ...]:
    """Returns a table in pieces.

    The map of the user's id belongs between the outer ones, and the id itself between the inner ones.
    """
    table = encode(
        *_joins(groups),
        _call("unshare", kernel.CLONE_NEWCGROUP, said="cgroup namespace"),
        *_names(),
        *_box(build),
        *_terminals(build.terminals),
        *_proc(build.proc_files, build.proc_directories, build.cpus),
        *_ids(build),
        *_last(build),
        END,
    )
    return tuple(tuple(parts.split(_as_number(_ANYBODY))) for parts in table.split(_as_map(_ANYBODY)))


def _call(name: str, *arguments: Argument, said: str = "", **how: int) -> Step:
    return Step(said or name, NUMBERS[name], arguments, **how)


def _text(text: str) -> bytes:
    return os.fsencode(text) + b"\0"


def _write(path: str, text: bytes) -> Iterator[Step]:
    yield _call("openat", _AT, _text(path), _OPEN, 0, said=f"open {path}", store=_ONE)
    yield _call("write", Slot(_ONE), text, len(text), said=f"write {path}")
    yield _call("close", Slot(_ONE))


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> Step:
    texts = [_text(text) if text else 0 for text in (source, target, kind)]
    return _call("mount", *texts, flags, _text(data) if data else 0, said=f"mount {target}")


def _read_only(target: str, flags: int) -> Step:
    return _mount("none", target, "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags)


def _joins(groups: int) -> Iterator[Step]:
    for number in range(FIRST_GROUP, FIRST_GROUP + groups):
        yield _call("write", Given(number), b"0", 1, said="join a control group")
        yield _call("close", Given(number))


def _names() -> Iterator[Step]:
    # Where a container's filter refuses the host name, the probe finds the wall missing.
    yield _call("sethostname", HOSTNAME.encode(), len(HOSTNAME), lenient=errno.EPERM)
    yield _call("socket", _AF_INET, _DATAGRAM, 0, store=_ONE)
    up = struct.pack("16sh22x", b"lo", _UP_AND_RUNNING)
    yield _call("ioctl", Slot(_ONE), _SIOCSIFFLAGS, up, said="loopback")
    yield _call("close", Slot(_ONE))


_AF_INET, _DATAGRAM = 2, 2 | os.O_CLOEXEC
_TMPFS = kernel.MS_NOSUID | kernel.MS_NODEV


def _box(build: walls.Build) -> Iterator[Step]:
    """Yields the steps for all that can be written."""
    yield _mount("box", TMP, "tmpfs", _TMPFS, f"size={build.disk_bytes},nr_inodes={build.inodes},mode=0755")
    for name, target in WRITABLE.items():
        path = f"{TMP}/{name}"
        yield _call("mkdirat", _AT, _text(path), 0o755, said=f"mkdir {path}")
        if build.own_uid:
            yield _call("fchownat", _AT, _text(path), build.uid, build.uid, 0, said=f"chown {path}")
        yield _mount(path, target, "", kernel.MS_BIND)
    for path in (TMP, SHM):
        yield _call("fchmodat", _AT, _text(path), 0o1777, said=f"chmod {path}")
    for name in build.closed:
        yield _read_only(WRITABLE[name], _TMPFS)


def _terminals(most: int) -> Iterator[Step]:
    if most:
        yield _mount("terminals", walls.TERMINALS, "devpts", walls.TERMINAL_FLAGS, walls.terminal_options(most))


def _proc(files: tuple[str, ...], directories: tuple[str, ...], cpus: tuple[int, ...]) -> Iterator[Step]:
    quiet = _TMPFS | kernel.MS_NOEXEC
    yield _mount("proc", "/proc", "proc", quiet)
    yield from _pass_low_pids()
    yield from _drop_orphans_soon()
    for name in files:
        yield _mount("/dev/null", f"/proc/{name}", "", kernel.MS_BIND)
    for name in directories:
        yield _mount(EMPTY, f"/proc/{name}", "", kernel.MS_BIND)
    yield _mount("/proc/sys", "/proc/sys", "", kernel.MS_BIND)
    yield _read_only("/proc/sys", quiet)
    yield from _write("/proc/self/oom_score_adj", walls.OOM_SCORE.encode())
    if cpus:
        mask = bytearray(max(cpus) // 64 * 8 + 8)
        for cpu in cpus:
            mask[cpu // 8] |= 1 << cpu % 8
        yield _call("sched_setaffinity", 0, len(mask), bytes(mask))


def _pass_low_pids() -> Iterator[Step]:
    reserved = str(walls.RESERVED_PIDS)
    yield _call("openat", _AT, _text("/proc/sys/kernel/ns_last_pid"), _OPEN, 0, lenient=ANY, store=_ONE)
    yield _call("write", Slot(_ONE), reserved.encode(), len(reserved), lenient=ANY, skip=1)
    yield Step("fork once", 0, op=FORK_ONCE)
    yield _call("close", Slot(_ONE), lenient=ANY)


def _drop_orphans_soon() -> Iterator[Step]:
    for name, value in walls.TCP_SETTINGS.items():
        yield _call("openat", _AT, _text(f"/proc/sys/net/ipv4/{name}"), _OPEN, 0, lenient=ANY, store=_ONE)
        yield _call("write", Slot(_ONE), value.encode(), len(value), lenient=ANY)
        yield _call("close", Slot(_ONE), lenient=ANY)


def _ids(build: walls.Build) -> Iterator[Step]:
    """Yields the steps to the user's ids."""
    if build.own_uid:
        yield _call("setgroups", 0, 0)
        for name in ("setresgid", "setresuid"):
            yield _call(name, build.uid, build.uid, build.uid)
    yield _prctl(kernel.PR_SET_DUMPABLE, 1)
    yield _call("unshare", kernel.CLONE_NEWUSER, said="user namespace")
    yield from _write("/proc/self/setgroups", b"deny")
    for path in ("/proc/self/gid_map", "/proc/self/uid_map"):
        yield from _write(path, _id_map(build.uid))


def _prctl(option: int, *values: int) -> Step:
    return _call("prctl", option, *values, *([0] * (4 - len(values))), said=f"prctl {option}")


def _last(build: walls.Build) -> Iterator[Step]:
    yield from _stacks(build.stack_bytes)
    for kind, value in walls.limits(build):
        yield _limit(kind, value)
    yield _prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    yield _call("chdir", _text(WORKSPACE))
    yield from _landlock(build)
    yield Step("bounding set", 0, (_capabilities(),), op=DROP_BOUNDING)
    yield _prctl(kernel.PR_SET_SECUREBITS, kernel.SECBITS_LOCKED)
    yield _prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    yield _call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))
    yield _prctl(kernel.PR_SET_DUMPABLE, 0)
    yield _call("seccomp", 1, 0, Filter())


def _stacks(size: int) -> Iterator[Step]:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if not size or (soft != resource.RLIM_INFINITY and soft <= size):
        return
    yield Step("grow the stack", 0, (walls.stack_room(soft),), op=GROW_STACK)
    yield _prlimit("stack", resource.RLIMIT_STACK, size, hard)


def _limit(kind: int, value: int) -> Step:
    return _prlimit(kernel.refused_limit(kind, value), kind, value, value)


def _prlimit(said: str, kind: int, soft: int, hard: int) -> Step:
    pair = struct.pack("qq", soft, hard) if min(soft, hard) < 0 else struct.pack("QQ", soft, hard)
    return _call("prlimit64", 0, kind, pair, 0, said=said)


def _landlock(build: walls.Build) -> Iterator[Step]:
    version = build.landlock
    if not version:
        return
    rules = [("/", landlock.READ), ("/dev", landlock.TERMINALS if build.terminals else landlock.DEVICES)]
    rules += [(path, landlock.writable(version)) for name, path in WRITABLE.items() if name not in build.closed]
    known = landlock.attributes(version)
    yield _call("landlock_create_ruleset", known, len(known), 0, store=_RULES)
    for path, rights in rules:
        yield _call("openat", _AT, _text(path), os.O_PATH | os.O_CLOEXEC, 0, said=f"open {path}", store=_ONE)
        rule = Patched(struct.pack("=Qi", rights & landlock.handled(version), -1), _ONE)
        yield _call("landlock_add_rule", Slot(_RULES), 1, rule, 0)
        yield _call("close", Slot(_ONE))
    yield _call("landlock_restrict_self", Slot(_RULES), 0)
    yield _call("close", Slot(_RULES))


def _capabilities() -> int:
    """Returns how many capabilities this kernel has. Raises OSError."""
    count = kernel.capabilities()
    if count < _FEWEST_CAPABILITIES:
        raise OSError(0, f"prctl capbset_read: stopped at capability {count}")
    return count
