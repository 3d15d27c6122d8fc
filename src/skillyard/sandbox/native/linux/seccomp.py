"""The filters that hold foreign code to the system calls it may make (seccomp(2)).

Default-deny. Two filters: the large one goes into the zygote once and is inherited; the small closing one goes into
each sandbox when its walls are built, and takes away what building them needed. What they let through, and why, stands
in :mod:`skillyard.sandbox.native.linux.system_calls` and :mod:`skillyard.sandbox.native.linux.call_arguments`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from skillyard.sandbox.native.linux import bpf, kernel
from skillyard.sandbox.native.linux.bpf import ALLOW, JEQ, JGE, KILL, LOAD, Instruction, refuse
from skillyard.sandbox.native.linux.call_arguments import BUILDING_RULES, CLOSING_RULES, RULES, UNCOUNTED_RULES, Rule
from skillyard.sandbox.native.linux.syscall_numbers import numbers
from skillyard.sandbox.native.linux.system_calls import ABSENT, ALLOWED, BUILDING

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Of linux/audit.h: what the kernel calls the way by which a call came in."""

X32_BIT = 0x40000000


def large_filter(arch: str = kernel.ARCH) -> list[Instruction]:
    """For the zygote: the allow-list, and for the while of building, what builds the walls."""
    nr = numbers(arch)
    program = head(arch) + _rules((*RULES, *BUILDING_RULES), nr)
    for name in ABSENT:
        if name not in BUILDING:
            program += bpf.when(nr[name], [refuse(errno.ENOSYS)])
    names = [name for group in ALLOWED for name in group.calls] + list(BUILDING)
    newer = max(nr.values()) + 1
    program += [(JGE, 0, 1, newer), refuse(errno.ENOSYS)]
    return program + bpf.search(nr[name] for name in names if name in nr)


def closing_filter(arch: str = kernel.ARCH, *, memory_counted: bool = True) -> list[Instruction]:
    """For a sandbox whose walls stand: what built them is refused from here on. Where no controller counts memory,
    so is memory that no process shows as its own."""
    nr = numbers(arch)
    program = head(arch)
    if not memory_counted:
        program += _rules(UNCOUNTED_RULES, nr)
    program += _rules(CLOSING_RULES, nr)
    for name in BUILDING:
        program += bpf.when(nr[name], [refuse(errno.ENOSYS if name in ABSENT else errno.EPERM)])
    return [*program, ALLOW]


def assemble(program: list[Instruction]) -> bytes:
    """As :func:`skillyard.sandbox.native.linux.kernel.install_filter` takes it."""
    return bpf.assemble(program)


def head(arch: str) -> list[Instruction]:
    """Another architecture's entry, or x32's, ends the process: its numbers mean other calls."""
    head: list[Instruction] = [
        (LOAD, 0, 0, bpf.ARCH),
        (JEQ, 1, 0, AUDIT_ARCH[arch]),
        KILL,
        (LOAD, 0, 0, bpf.NR),
    ]
    if arch == "x86_64":
        head += [(JGE, 0, 1, X32_BIT), KILL]
    return head


def _rules(rules: Iterable[Rule], nr: Mapping[str, int]) -> list[Instruction]:
    return [step for rule in rules for name in rule.calls for step in bpf.when(nr[name], rule.body)]
