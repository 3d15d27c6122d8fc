"""User ids, control groups and processors of this host, lent to sandboxes."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.groups import groups, hierarchies
from skillyard.sandbox.native.groups.groups import Group, GroupLimits
from skillyard.sandbox.native.groups.spares import KEPT_S, Spares
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Key
from skillyard.sandbox.native.linux import landlock, namespaces

_LOCKS = "/run/skillyard-ids"
_BLOCKS = 64
_PART, _LEAST_PARTS = 256, 8
"""The most sandboxes of one zygote that imports packages, and the number of parts of a small block."""


@dataclass(frozen=True, slots=True)
class Ids:
    """A block of ids of the keeper's user namespace; ``base`` is the zygotes' own."""

    base: int
    count: int

    @property
    def inside(self) -> int:
        """Returns the zygotes' own id in their user namespace."""
        # A single id must not be 0: the kernel gives the /proc entries of undumpable processes to a namespace's root.
        return 0 if self.count > 1 else 1


class Slots:
    """The numbers of a block of ids: 0 is the zygotes' own, and each sandbox has another.

    A zygote that imports packages has a part of the block for its sandboxes alone, and can become no other id. All
    other zygotes run no foreign code and share the rest. ``lives`` says whether an owner's zygote is there.
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
        self._usable: dict[Key, int] = {}

    def part(self, owner: Key, *, alone: bool = False) -> range | None:
        """Returns the owner's part of the numbers; None when no part is left.

        An owner that is ``alone`` has one sandbox, and one number.
        """
        if owner not in self._parts and (part := self._claim()) is not None:
            usable = part[:1] if alone else part
            self._parts[owner], self._free[owner], self._usable[owner] = part, deque(usable), len(usable)
        part = self._parts.get(owner)
        return part[: self._usable[owner]] if part is not None else None

    def take(self, owner: Key) -> int:
        """Takes a free number; returns 0 when there is none."""
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
        unused = (
            name for name, free in self._free.items() if len(free) == self._usable[name] and not self._lives(name)
        )
        if (owner := next(unused, None)) is None:
            return None
        del self._free[owner], self._usable[owner]
        return self._parts.pop(owner)


def choose_ids(base: int, count: int) -> tuple[Ids, int]:
    """Returns ids for sandboxes, and the descriptor of their lock to keep open (-1 for none).

    It is our own id alone for an ordinary user, and where too few are mapped to give each sandbox its own.
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
    """Returns first id and length of the largest run of ids of our user namespace."""
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


_SWEEP_AGAIN_S, _SWEEP_SELDOM_S = 0.02, 5.0
_REMOVE_RETRY_S = 0.01


class Processors:
    """Gives each sandbox whole processors, in turn, where no controller counts their time."""

    def __init__(self, *, counted: bool) -> None:
        self.all = tuple(sorted(os.sched_getaffinity(0)))
        self._counted = counted
        self._turn = 0

    def take(self, cpus: float) -> tuple[int, ...]:
        """Returns as many as the limit rounds up to; none where the sandbox may use all of them."""
        wanted = max(1, int(cpus) + (cpus > int(cpus)))
        if self._counted or wanted >= len(self.all):
            return ()
        self._turn += 1
        return tuple(self.all[(self._turn + i) % len(self.all)] for i in range(wanted))


@dataclass(frozen=True, slots=True)
class Share:
    """One sandbox's share of the host; ``slot`` numbers its id, 0 where all have the same.

    ``again`` has the limits of a group that may be used again."""

    slot: int
    group: Group | None
    again: GroupLimits | None = None


class Host:
    """The resources of this host and those of them that are in use."""

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        """Raises OSError."""
        self._loop = loop
        self.run_dir: str = config["run_dir"]
        self.python = root.find_interpreter()
        self.ids, self._id_lock = choose_ids(config["uid_base"], config["uid_count"])
        self.cgroups = hierarchies.find("skillyard-" + hashlib.sha256(self.run_dir.encode()).hexdigest()[:12])
        left = groups.sweep_noted(self.run_dir)
        groups.note(self.run_dir, dict.fromkeys((*left, *self.cgroups.parents.values())))
        self._sweep_again(self.cgroups.sweep())
        self.cgroups.stand_back()
        self.landlock = landlock.abi()
        self.processors = Processors(counted=self.cgroups.has("cpu"))
        self.proc_files, self.proc_directories = masked_proc()
        self._doomed: list[Group] = []
        self._spares = Spares(self.bury)
        self._fades = False
        self._slots: Slots | None = None
        os.makedirs(f"{self.run_dir}/root", 0o700, exist_ok=True)

    def begin(self, lives: Callable[[Key], bool]) -> None:
        self._slots = Slots(self.ids.count, lives)

    def facts(self) -> dict[str, Any]:
        return {
            "landlock": self.landlock,
            "own_uid": self.ids.count > 1,
            "uids": [self.ids.base, self.ids.count],
            "cgroup_version": self.cgroups.version,
            "cgroups": sorted(self.cgroups.parents),
            "cgroups_missing": self.cgroups.missing,
            "python": self.python.executable,
        }

    def part(self, key: Key, *, alone: bool = False) -> range | None:
        """Returns the ids of one zygote, a single one where ``alone``; None when none are left."""
        assert self._slots is not None
        return self._slots.part(key, alone=alone)

    def take(self, name: str, key: Key, limits: GroupLimits, *, again: bool = False) -> Share:
        """Takes a share for a sandbox. Raises OSError; nothing is taken then.

        ``again`` says that no foreign code gets a descriptor of its group, which others may then use afterwards.
        """
        assert self._slots is not None
        slot = 0
        if self.ids.count > 1 and not (slot := self._slots.take(key)):
            raise OSError(0, "all user ids for sandboxes are in use")
        try:
            group = self._spares.take(limits) if again else None
            return Share(slot, group or self.group(name, limits), limits if again else None)
        except OSError:
            if slot:
                self._slots.give_back(slot)
            raise

    def give_back(self, share: Share) -> None:
        assert self._slots is not None
        if share.slot:
            self._slots.give_back(share.slot)
        if share.group is None:
            return
        if share.again is not None:
            self._spares.keep(share.group, share.again)
            self._loop.when_idle(self._look)
            if not self._fades:
                self._fades = True
                self._loop.after(KEPT_S, self._fade)
        else:
            self.bury(share.group)

    def _look(self) -> None:
        if self._spares.look():
            self._loop.when_idle(self._look)

    def _fade(self) -> None:
        self._fades = False  # so that the next group begins it again where this fails
        if (again_s := self._spares.fade()) is not None:
            self._fades = True
            self._loop.after(again_s, self._fade)

    def group(self, name: str, limits: GroupLimits) -> Group | None:
        """Makes a control group, where there are any. Raises OSError."""
        return self.cgroups.make(name, limits) if self.cgroups.parents else None

    def bury(self, group: Group) -> None:
        """Removes a group without processes, once the keeper has nothing else to do."""
        self._doomed.append(group)
        self._loop.when_idle(self._bury)

    def empty(self) -> bool:
        return not self._doomed

    def leave(self) -> None:
        """Removes all groups that are left, which the kernel does not do."""
        self.cgroups.sweep()
        self.cgroups.close()
        groups.sweep_noted(self.run_dir)

    def _bury(self) -> None:
        doomed, self._doomed = self._doomed, []
        for group in doomed:
            try:
                if not group.remove():
                    self._doomed.append(group)
            except Exception as error:  # noqa: BLE001 - the next keeper removes it
                self._loop.report(error)
        if self._doomed:
            self._loop.after(_REMOVE_RETRY_S, self._bury)

    def _sweep_again(self, left: list[str], pause_s: float = _SWEEP_AGAIN_S) -> None:
        """Removes groups of a killed keeper when the last of its processes has ended."""
        if left:
            later = min(2 * pause_s, _SWEEP_SELDOM_S)
            self._loop.after(pause_s, lambda: self._sweep_again(groups.remove(left), later))


def _for_everybody(path: str) -> bool:
    # No sandbox can touch a file for root alone, whose id is mapped in none.
    try:
        return bool(os.stat(path).st_mode & 0o007)
    except FileNotFoundError:
        return False


def masked_proc() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the dangerous files and directories of /proc that this kernel has."""
    files = tuple(name for name in walls.MASKED_FILES if _for_everybody(f"/proc/{name}"))
    directories = tuple(name for name in walls.MASKED_DIRECTORIES if os.path.isdir(f"/proc/{name}"))
    return files, directories
