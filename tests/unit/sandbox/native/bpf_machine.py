"""A small interpreter of classic BPF: what the kernel makes of a filter (seccomp(2))."""

from __future__ import annotations

from collections.abc import Iterable

from skillyard.sandbox.native.linux import seccomp
from skillyard.sandbox.native.linux.bpf import Instruction

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def verdict(program: list[Instruction], nr: int, audit: int, *args: int) -> int:
    values = [*args, *([0] * (6 - len(args)))]
    memory = {0: nr, 4: audit} | {16 + 8 * i: value & 0xFFFFFFFF for i, value in enumerate(values)}
    accumulator = at = 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        match code:
            case 0x20:
                accumulator = memory[constant]
            case 0x54:
                accumulator &= constant
            case 0x15:
                at += yes if accumulator == constant else no
            case 0x35:
                at += yes if accumulator >= constant else no
            case 0x45:
                at += yes if accumulator & constant else no
            case 0x06:
                return constant
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def strictest(programs: Iterable[list[Instruction]], arch: str, nr: int, *args: int) -> int:
    """What the kernel makes of several filters."""
    said = [verdict(program, nr, seccomp.AUDIT_ARCH[arch], *args) for program in programs]
    return next((word for word in said if word != ALLOW), ALLOW)
