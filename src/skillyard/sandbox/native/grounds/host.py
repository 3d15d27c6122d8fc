"""What namespaces and gVisor have of this host: user ids, control groups and processors, lent to sandboxes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skillyard.sandbox.native.grounds import ids, interpreter
from skillyard.sandbox.native.groups import hierarchies, parents
from skillyard.sandbox.native.groups.groups import Group, GroupLimits
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Key
from skillyard.sandbox.native.linux import landlock

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
    """One sandbox's part of the host: ``slot`` is the number of its id, 0 for the one id that all have."""

    slot: int
    group: Group | None


class Host:
    """What was found about this host when the keeper started, and what of it is in use."""

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        """Raises OSError."""
        self._loop = loop
        self.run_dir: str = config["run_dir"]
        self.python = interpreter.describe()
        self.ids, self._id_lock = ids.choose(config["uid_base"], config["uid_count"])
        self.cgroups = hierarchies.find("skillyard-" + hashlib.sha256(self.run_dir.encode()).hexdigest()[:12])
        self._sweep_again(self.cgroups.sweep())
        self.cgroups.stand_back()
        self.landlock = landlock.abi()
        self.processors = Processors(counted=self.cgroups.has("cpu"))
        self.proc_files, self.proc_directories = masked_proc()
        self._doomed: list[Group] = []
        self._slots: ids.Slots | None = None
        os.makedirs(f"{self.run_dir}/root", 0o700, exist_ok=True)

    def begin(self, lives: Callable[[Key], bool]) -> None:
        self._slots = ids.Slots(self.ids.count, lives)

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

    def part(self, key: Key) -> range | None:
        """Returns the ids that a zygote with packages may become, and nobody else; None when none are left."""
        assert self._slots is not None
        return self._slots.part(key)

    def take(self, name: str, key: Key, limits: GroupLimits) -> Share:
        """Takes a share for a sandbox. Raises OSError; nothing is taken then."""
        assert self._slots is not None
        slot = 0
        if self.ids.count > 1 and not (slot := self._slots.take(key)):
            raise OSError(0, "all user ids for sandboxes are in use")
        try:
            return Share(slot, self.group(name, limits))
        except OSError:
            if slot:
                self._slots.give_back(slot)
            raise

    def give_back(self, share: Share) -> None:
        assert self._slots is not None
        if share.slot:
            self._slots.give_back(share.slot)
        if share.group is not None:
            self.bury(share.group)

    def group(self, name: str, limits: GroupLimits) -> Group | None:
        """Makes a control group, where there are any. Raises OSError."""
        return self.cgroups.make(name, limits) if self.cgroups.parents else None

    def bury(self, group: Group) -> None:
        """Removes a group that nobody is in, once the keeper has nothing else to do."""
        self._doomed.append(group)
        self._loop.when_idle(self._bury)

    def empty(self) -> bool:
        return not self._doomed

    def leave(self) -> None:
        """Removes all groups that are left. The kernel ends sandboxes with their keeper, but keeps their groups."""
        self.cgroups.sweep()
        self.cgroups.close()

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
        """Removes groups that a killed keeper left, when the last of its processes has ended."""
        if left:
            later = min(2 * pause_s, _SWEEP_SELDOM_S)
            self._loop.after(pause_s, lambda: self._sweep_again(parents.remove(left), later))


def _for_everybody(path: str) -> bool:
    """What only root may touch, no sandbox can: root's id is mapped in none."""
    try:
        return bool(os.stat(path).st_mode & 0o007)
    except FileNotFoundError:
        return False


def masked_proc() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns which of the dangerous parts of /proc exist on this kernel: files, directories."""
    files = tuple(name for name in walls.MASKED_FILES if _for_everybody(f"/proc/{name}"))
    directories = tuple(name for name in walls.MASKED_DIRECTORIES if os.path.isdir(f"/proc/{name}"))
    return files, directories
