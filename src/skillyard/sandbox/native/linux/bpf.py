"""Pieces of a seccomp filter: classic BPF over ``struct seccomp_data`` (linux/filter.h)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, constant (linux/filter.h)."""

NR, ARCH = 0, 4
ARG0, ARG1, ARG2, ARG3 = 16, 24, 32, 40
"""Offsets of the lower half of each argument. The kernel takes flags, options and families as 32 bits."""

LOAD, AND, JEQ, JGE, JSET, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06

_RET_ALLOW = 0x7FFF0000
_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000

ALLOW: Instruction = (RETURN, 0, 0, _RET_ALLOW)
KILL: Instruction = (RETURN, 0, 0, _RET_KILL_PROCESS)


def refuse(number: int = errno.EPERM) -> Instruction:
    return (RETURN, 0, 0, _RET_ERRNO | number)


def when(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Lets ``body``, which must end in a return, decide about the call ``number``."""
    return [(JEQ, 0, len(body), number), *body]


def one_of(argument: int, values: Iterable[int], otherwise: Instruction) -> list[Instruction]:
    wanted = list(values)
    checks = [(JEQ, len(wanted) - i, 0, value) for i, value in enumerate(wanted)]
    return [(LOAD, 0, 0, argument), *checks, otherwise, ALLOW]


def none_of(argument: int, values: Iterable[int]) -> list[Instruction]:
    wanted = list(values)
    checks = [(JEQ, len(wanted) - i, 0, value) for i, value in enumerate(wanted)]
    return [(LOAD, 0, 0, argument), *checks, ALLOW, refuse()]


def without(argument: int, flags: int, otherwise: Instruction) -> list[Instruction]:
    """Allows any value that has none of ``flags``."""
    return [(LOAD, 0, 0, argument), (JSET, 0, 1, flags), otherwise, ALLOW]


def unless_null(argument: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Lets ``body`` decide when a pointer is given, of which both halves count."""
    return [
        (LOAD, 0, 0, argument),
        (JEQ, 0, 2, 0),
        (LOAD, 0, 0, argument + 4),
        (JEQ, len(body), 0, 0),
        *body,
    ]


def search(values: Iterable[int]) -> list[Instruction]:
    """Allows exactly ``values`` and refuses all else: a binary search over the edges of ranges."""
    return _search([edge for pair in ranges(values) for edge in pair], inside=False)


def ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    """Returns sorted, half-open ranges that cover exactly ``values``."""
    out: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if out and out[-1][1] == value:
            out[-1] = (out[-1][0], value + 1)
        else:
            out.append((value, value + 1))
    return out


def _search(bounds: Sequence[int], inside: bool) -> list[Instruction]:
    """``inside`` says what lies left of the first edge."""
    if not bounds:
        return [ALLOW if inside else refuse()]
    middle = len(bounds) // 2
    right = _search(bounds[middle + 1 :], inside ^ (middle % 2 == 0))
    left = _search(bounds[:middle], inside)
    if len(left) > 255:
        raise ValueError("the filter is too long for its jumps")
    return [(JGE, len(left), 0, bounds[middle]), *left, *right]


def assemble(program: Sequence[Instruction]) -> bytes:
    """Returns an array of ``struct sock_filter``."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
