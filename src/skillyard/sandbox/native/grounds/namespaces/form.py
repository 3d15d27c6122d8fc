"""The form in which the compiled part of a zygote takes its steps: a table of system calls."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SYSCALL, FORK_ONCE, GROW_STACK, DROP_BOUNDING, LAST = range(5)
NUMBER, BYTES, SLOT, GIVEN, FILTER, PATCHED = range(6)
SLOTS, MOST_GIVEN, MOST_ARGUMENTS = 8, 16, 6
NONE = ANY = 255
_HEAD = struct.Struct("=BBBBHBB")


class Slot(NamedTuple):
    """The result of an earlier step."""

    number: int


class Given(NamedTuple):
    """A descriptor that came with the order."""

    number: int


class Patched(NamedTuple):
    """Bytes whose last four become a slot's descriptor."""

    data: bytes
    slot: int


class Filter(NamedTuple):
    """The closing filter, which the zygote has."""


Argument = int | bytes | Slot | Given | Patched | Filter


class Step(NamedTuple):
    """A step of the walls. It may fail with ``lenient`` (an errno, or ANY).

    Its result goes into the slot ``store``, and after a success the next ``skip`` steps are left out.
    """

    name: str
    call: int
    arguments: tuple[Argument, ...] = ()
    op: int = SYSCALL
    lenient: int = 0
    store: int = NONE
    skip: int = 0


END = Step("the end", 0, op=LAST)
"""The mark that ends each table. One that breaks off between two steps lacks it, and is refused."""


def encode(*steps: Step) -> bytes:
    """Returns a table, or a part of one."""
    return b"".join(map(_encode, steps))


def _encode(step: Step) -> bytes:
    name = step.name.encode("ascii")[:255]
    head = _HEAD.pack(step.op, step.lenient, step.store, step.skip, step.call, len(step.arguments), len(name))
    return b"".join((head, name, *map(argument_bytes, step.arguments)))


def argument_bytes(argument: Argument) -> bytes:
    """Returns an argument as it stands in a table."""
    if isinstance(argument, int):
        return struct.pack("=Bq", NUMBER, argument)
    if isinstance(argument, bytes):
        return struct.pack("=BH", BYTES, len(argument)) + argument
    if isinstance(argument, Patched):
        return struct.pack("=BBH", PATCHED, argument.slot, len(argument.data)) + argument.data
    if isinstance(argument, Filter):
        return struct.pack("=B", FILTER)
    return struct.pack("=BB", SLOT if isinstance(argument, Slot) else GIVEN, argument.number)


def decode(table: bytes) -> Iterator[Step]:
    """Yields the steps of a table but END. Raises ValueError for one that cannot be read."""
    try:
        yield from _decode(table)
    except struct.error as error:
        raise ValueError(f"a table of steps breaks off: {error}") from None


def _decode(table: bytes) -> Iterator[Step]:
    at = 0
    while at < len(table):
        op, lenient, store, skip, call, count, named = _HEAD.unpack_from(table, at)
        at += _HEAD.size
        if op > LAST or NONE > store >= SLOTS or count > MOST_ARGUMENTS:
            raise ValueError("a step has no meaning")
        if op in (GROW_STACK, DROP_BOUNDING) and not count:
            raise ValueError("a step has no size")
        name, at = _piece(table, at, named)
        if op == LAST:
            if count or at < len(table):
                raise ValueError("something comes behind the end of a table of steps")
            return
        arguments = []
        for _ in range(count):
            argument, at = _read(table, at)
            arguments.append(argument)
        yield Step(name.decode("latin-1"), call, tuple(arguments), op, lenient, store, skip)
    raise ValueError("a table of steps has no end")


def _piece(table: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(table):
        raise ValueError("a table of steps breaks off")
    return table[at : at + size], at + size


def _read(table: bytes, at: int) -> tuple[Argument, int]:
    (kind,) = struct.unpack_from("=B", table, at)
    at += 1
    if kind == NUMBER:
        return struct.unpack_from("=q", table, at)[0], at + 8
    if kind == FILTER:
        return Filter(), at
    if kind == BYTES:
        (size,) = struct.unpack_from("=H", table, at)
        return _piece(table, at + 2, size)
    if kind not in (SLOT, GIVEN, PATCHED):
        raise ValueError("an argument has no meaning")
    (number,) = struct.unpack_from("=B", table, at)
    if number >= (MOST_GIVEN if kind == GIVEN else SLOTS):
        raise ValueError("an argument has no meaning")
    if kind != PATCHED:
        return (Slot if kind == SLOT else Given)(number), at + 1
    (size,) = struct.unpack_from("=H", table, at + 1)
    if size < 4:
        raise ValueError("an argument has no room for a descriptor")
    data, at = _piece(table, at + 3, size)
    return Patched(data, number), at
