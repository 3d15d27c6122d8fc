"""Which user ids this keeper's sandboxes get: a block of its own, held by a lock as long as the keeper lives."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from skillyard.sandbox.native.keeper.request import Key
from skillyard.sandbox.native.linux import namespaces

_LOCKS = "/run/skillyard-ids"
_BLOCKS = 64
_PART, _LEAST_PARTS = 256, 8
"""The most sandboxes of one zygote that imports packages, and the parts of a small block."""


@dataclass(frozen=True, slots=True)
class Ids:
    """A block of ids of the keeper's user namespace; ``base``, the zygotes' own, is :attr:`inside` in theirs."""

    base: int
    count: int

    @property
    def inside(self) -> int:
        """A single id is not 0 in there: what the kernel gives to a namespace's root, such as the /proc entries of
        a process that may not be traced, would belong to the sandboxes' own user."""
        return 0 if self.count > 1 else 1


class Slots:
    """The numbers above 0 in a block of ids; each sandbox has one as its user. 0 is the zygotes' own.

    Whoever has a zygote that imports packages has a part of them for itself, which is all that the zygote may become.
    The others share the rest: their zygotes run no foreign code. ``lives`` says whether an owner's zygote is there.
    """

    def __init__(self, count: int, lives: Callable[[Key], bool]) -> None:
        size = max(1, min(_PART, (count - 1) // _LEAST_PARTS))
        self._lives = lives
        self._size = size
        first = 1 + (count - 1) % size
        self._shared = deque(range(1, first))
        self._unclaimed = deque(range(at, at + size) for at in range(first, count, size))
        self._parts: dict[Key, range] = {}
        self._free: dict[Key, deque[int]] = {}

    def part(self, owner: Key) -> range | None:
        """Returns all numbers of this owner, a part of its own; None when none is left to give."""
        if owner not in self._parts and (part := self._claim()) is not None:
            self._parts[owner], self._free[owner] = part, deque(part)
        return self._parts.get(owner)

    def take(self, owner: Key) -> int:
        """Takes a free number, 0 when there is none."""
        free = self._free.get(owner, self._shared)
        if not free and free is self._shared:
            free.extend(self._claim() or ())
        return free.popleft() if free else 0

    def give_back(self, slot: int) -> None:
        free = next((self._free[owner] for owner, part in self._parts.items() if slot in part), self._shared)
        free.append(slot)

    def _claim(self) -> range | None:
        if self._unclaimed:
            return self._unclaimed.popleft()
        unused = (name for name, free in self._free.items() if len(free) == self._size and not self._lives(name))
        if (owner := next(unused, None)) is None:
            return None
        del self._free[owner]
        return self._parts.pop(owner)


def choose(base: int, count: int) -> tuple[Ids, int]:
    """The ids and a descriptor to keep open (-1 when no lock is needed).

    One id only, ours, for an ordinary user and wherever too few ids are mapped to give each sandbox its own.
    """
    if os.geteuid() != 0 or not namespaces.may_map_ids():
        return Ids(0, 1), -1
    first, mapped = _mapped()
    if mapped < count + 1:
        return Ids(0, 1), -1
    if first + mapped <= base + count:  # a container's: its accounts are among the lower half
        base = max(1, first + mapped - count * min(_BLOCKS, max(1, mapped // count // 2)))
    return _lock_block(base, count, first + mapped)


def _mapped() -> tuple[int, int]:
    """The largest run of ids of our user namespace: first, length."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        runs = [(int(words[0]), int(words[2])) for words in map(str.split, file)]
    return max(runs, key=lambda run: run[1])


def _lock_block(base: int, count: int, end: int) -> tuple[Ids, int]:
    os.makedirs(_LOCKS, 0o700, exist_ok=True)
    for number in range(_BLOCKS):
        first = base + number * count
        if first + count > end:
            break
        fd = os.open(f"{_LOCKS}/{first}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        return Ids(first, count), fd
    raise OSError(0, f"no free block of {count} user ids from {base} on")
