"""Walls and limits by name, and what a backend says of each (design §5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from skillyard.domain.errors import ProtectionMissing


class Level(StrEnum):
    """Who enforces it: the kernel; our own watching and killing; nobody."""

    KERNEL = "kernel"
    SUPERVISED = "supervised"
    MISSING = "missing"


WALLS = (
    "user_namespace",
    "mount_namespace",
    "pid_namespace",
    "net_namespace",
    "ipc_namespace",
    "uts_namespace",
    "cgroup_namespace",
    "read_only_root",
    "private_proc",
    "non_root",
    "own_uid",
    "no_capabilities",
    "no_new_privs",
    "seccomp",
    "landlock",
)
LIMITS = ("memory", "cpus", "pids", "disk", "timeout", "output")
PROTECTIONS = WALLS + LIMITS

ABILITIES = ("egress",)
"""Optional: ``egress`` is a network with no way out but the gate."""

ADVISORY = frozenset({"own_uid", "uts_namespace", "cgroup_namespace"})
"""Recorded, and not demanded by default: an ordinary user has one uid to give."""


@dataclass(frozen=True, slots=True)
class Protection:
    """One wall or limit: how it is enforced here, by what, and how to get it when it is not."""

    level: Level
    by: str = ""
    why: str = ""
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """What policy asks of a backend. ``kernel_only`` names limits that may not be merely supervised;
    ``allow_degraded`` names protections that may be missing."""

    kernel_only: frozenset[str] = frozenset()
    allow_degraded: frozenset[str] = frozenset()

    def check(self, offered: Mapping[str, Protection]) -> None:
        """Raises ProtectionMissing naming every protection that falls short and its mend."""
        short = list(self._short(offered))
        if short:
            raise ProtectionMissing(
                "this host cannot enforce: " + "; ".join(short), protections=[s.split(" ")[0] for s in short]
            )

    def _short(self, offered: Mapping[str, Protection]) -> Iterable[str]:
        for name in PROTECTIONS:
            if name in self.allow_degraded or name in ADVISORY:
                continue
            have = offered.get(name, Protection(Level.MISSING, why="the backend does not offer it"))
            if have.level is Level.MISSING:
                yield f"{name} ({have.why or 'not available'}" + (f"; {have.mend}" if have.mend else "") + ")"
            elif have.level is Level.SUPERVISED and name in self.kernel_only:
                yield f"{name} (only supervised here, and the policy requires the kernel)"


@dataclass(frozen=True, slots=True)
class Probe:
    """What a backend can do on this host, found by doing it."""

    backend: str
    ready: bool
    protections: Mapping[str, Protection]
    facts: Mapping[str, str]
    """Versions and the like, for doctor and the run record."""
    abilities: Mapping[str, Protection] = field(default_factory=dict)
    """What it can do beside (:data:`ABILITIES`); what is not named here it cannot."""

    def demand(self, ability: str) -> None:
        """Raises ProtectionMissing, with the reason, when it cannot do that."""
        have = self.abilities.get(
            ability, Protection(Level.MISSING, why=f"the {self.backend} backend does not offer it")
        )
        if have.level is Level.MISSING:
            mend = f"; {have.mend}" if have.mend else ""
            raise ProtectionMissing(f"there is no {ability} here ({have.why}{mend})", protections=[ability])

    def enforced(self) -> dict[str, str]:
        return {name: p.level.value for name, p in self.protections.items()}
