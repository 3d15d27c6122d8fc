"""System calls that are closed here because no namespace makes them harmless (seccomp(2)).

Laid over the native backend's filters, never in their place: of several the kernel heeds the strictest.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence

from skillyard.sandbox.native.linux import bpf, kernel, seccomp
from skillyard.sandbox.native.linux.bpf import ALLOW, AND, ARG0, ARG1, ARG2, JEQ, JGE, LOAD, Instruction, refuse
from skillyard.sandbox.native.linux.syscall_numbers import numbers
from skillyard.sandbox.native.linux.system_calls import BUILDING

_SOCKETS = ("connect", "bind", "listen", "accept", "accept4")
"""A datagram socket of a pair could be connected to any socket of the host: so none of these, and no such pair."""

_PAIR_TYPES = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET: connected once and for all (unix(7))."""
_TYPE_MASK = 0xF

_MESSAGES = ("sendmsg", "sendmmsg")
"""They hand descriptors to others: a file that was removed and is held by a message nobody counts."""

_ABOUT_OTHERS = {"prlimit64": ARG0, "sched_setscheduler": ARG0, "sched_setparam": ARG0}
"""Calls that name a process, and where: only oneself, 0. Neither Landlock nor a shared uid stands before them."""

_ABOUT_MANY = {"setpriority": (0, 1), "ioprio_set": (1, 2)}
"""Likewise, behind what is meant: a process or a group (PRIO_PROCESS, IOPRIO_WHO_PGRP and so on), never a user, who
may be the server's."""

_MODES_AND_TIMES = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat",
)  # fmt: skip
"""Landlock does not know them: the owner of a file may do them wherever it lies. Where the sandbox is the same user as
the server they change nothing, and say that all is well, as on a file system that has no modes: what copies files
would fail otherwise. A file keeps the mode that it was made with. With a user of its own it owns nothing else."""
_OWNERS = ("chown", "fchown", "lchown", "fchownat")
_DONE = 0
"""Answered in place of an error's number: success."""

_IDENTITIES = ("setuid", "setgid", "setreuid", "setregid", "setfsuid", "setfsgid")
_SETRES = ("setresuid", "setresgid")
_KEPT = frozenset(
    {
        "seccomp",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
        "sched_setaffinity",
    }
)
"""What builds these walls."""

_TRUNCATES = 3
"""The Landlock version that knows truncation."""


def zygote_filter(ids: tuple[int, int] | None, version: int, arch: str = kernel.ARCH) -> bytes:
    """From before the zygote's first instruction on. ``ids`` are first and count of those it may give; None where
    there are none, and all are one user."""
    nr = numbers(arch)
    closed = [*(name for name in BUILDING if name not in _KEPT), *_SOCKETS, "fallocate"]
    if ids is None:
        closed += _OWNERS
    if version < _TRUNCATES:
        closed.append("truncate")
    program = seccomp.head(arch)
    program += bpf.when(nr["socket"], [refuse(errno.EAFNOSUPPORT)])
    program += bpf.when(nr["socketpair"], _pair())
    for name, argument in _ABOUT_OTHERS.items():
        program += bpf.when(nr[name], bpf.one_of(argument, [0], refuse()))
    for name, kinds in _ABOUT_MANY.items():
        program += bpf.when(nr[name], [*bpf.one_of(ARG0, kinds, refuse())[:-1], *bpf.one_of(ARG1, [0], refuse())])
    if ids is not None:
        program += _identities(nr, *ids)
    else:
        program += _closed(nr, _MODES_AND_TIMES, _DONE)
    program += _closed(nr, closed)
    return bpf.assemble([*program, ALLOW])


def closing_filter(arch: str = kernel.ARCH) -> bytes:
    """For each program, before its first foreign instruction: the native closing filter, and no messages."""
    native = seccomp.closing_filter(arch, memory_counted=False)
    return bpf.assemble([*native[:-1], *_closed(numbers(arch), _MESSAGES), ALLOW])


def _closed(nr: Mapping[str, int], names: Iterable[str], answer: int = errno.EPERM) -> list[Instruction]:
    answers = {"clone3": errno.ENOSYS, "fallocate": errno.EOPNOTSUPP}
    return [step for name in names if name in nr for step in bpf.when(nr[name], [refuse(answers.get(name, answer))])]


def _pair() -> list[Instruction]:
    wanted = [(JEQ, len(_PAIR_TYPES) - i, 0, kind) for i, kind in enumerate(_PAIR_TYPES)]
    return [(LOAD, 0, 0, ARG1), (AND, 0, 0, _TYPE_MASK), *wanted, refuse(errno.EPROTONOSUPPORT), ALLOW]


def _identities(nr: Mapping[str, int], first: int, count: int) -> list[Instruction]:
    """Only ids of the block, all three of them named: no other id can be had, whatever capability is held."""
    within = [step for argument in (ARG0, ARG1, ARG2) for step in _within(argument, first, count)]
    program: list[Instruction] = []
    for name in _SETRES:
        program += bpf.when(nr[name], [*within, ALLOW])
    for name in _IDENTITIES:
        program += bpf.when(nr[name], [refuse()])
    return program + bpf.when(nr["setgroups"], bpf.one_of(ARG0, [0], refuse()))


def _within(argument: int, first: int, count: int) -> Sequence[Instruction]:
    return ((LOAD, 0, 0, argument), (JGE, 1, 0, first), refuse(), (JGE, 0, 1, first + count), refuse())
