"""Which user ids this keeper's sandboxes get: a block of its own, held by a lock as long as the keeper lives."""

from __future__ import annotations

import fcntl
import os

from skillyard.sandbox.native.keeper import namespaces
from skillyard.sandbox.native.keeper.zygote_process import Ids

_LOCKS = "/run/skillyard-ids"
_BLOCKS = 64


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
