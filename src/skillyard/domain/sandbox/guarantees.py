"""Guarantees of a sandbox, their attestors and walls, and a policy's demand (design §4).

A guarantee is a promise about foreign code: it reaches no file of the host, or it holds to its memory limit. A wall is
a part of Linux that upholds it, such as a mount namespace. A backend made of such parts names its walls, and the
guarantees follow from them. A backend made of anything else (a virtual machine, a remote service) names the guarantees
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from skillyard.domain.errors import ProtectionMissing
from skillyard.values import dataclass

AUTO = "auto"
"""The name of an isolation that stands for the one of the best rank that is ready on this host."""


class Level(StrEnum):
    """The attestor: the kernel, our own watching, the provider of the sandbox, or nobody."""

    KERNEL = "kernel"
    SUPERVISED = "supervised"
    PROVIDER = "provider"
    MISSING = "missing"

    @classmethod
    def _missing_(cls, _: object) -> Level:
        """Counts an attestation that is not known as missing."""
        return cls.MISSING


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


class Evidence(NamedTuple):
    """The walls of a guarantee.

    It stands or falls with those that are ``bearing``. ``further`` ones strengthen it, and bear it where a backend is
    by its nature without all the first.
    """

    bearing: tuple[str, ...]
    further: tuple[str, ...]


BOUNDARIES: Mapping[str, Evidence] = {
    "host_files": Evidence(("mount_namespace", "read_only_root"), ("landlock",)),
    "host_processes": Evidence(("pid_namespace", "private_proc"), ("cgroup_namespace", "seccomp", "landlock")),
    "network": Evidence(("net_namespace",), ("seccomp", "landlock")),
    "privilege": Evidence(("non_root", "no_capabilities", "no_new_privs"), ("user_namespace",)),
    "kernel_surface": Evidence(("seccomp",), ("no_new_privs", "no_capabilities")),
    "neighbours": Evidence(
        ("pid_namespace", "net_namespace", "ipc_namespace", "mount_namespace"),
        ("uts_namespace", "own_uid", "seccomp", "landlock"),
    ),
}
"""Each guarantee that is not a limit, with its walls. Foreign code reaches no file and no process of the host, and no
network but what policy names; it holds no privilege and gains none; it reaches only the system calls that programs
need; it neither sees nor changes another sandbox."""

GUARANTEES = (*BOUNDARIES, *LIMITS)

ABILITIES = ("egress", "direct", "forwarding", "terminals", "keeping", "snapshots")
"""Optional: ``egress`` is a network with no way out but the gate; ``direct`` says that programs find it which know no
proxy; ``forwarding`` reaches ports of a sandbox from outside; ``terminals`` of a sandbox's own are there for programs
to be started on; ``keeping`` spares chosen programs when a sandbox is cleared between two calls; ``snapshots`` make
sandboxes from the files of others."""

ADVISORY = frozenset({"own_uid", "uts_namespace", "cgroup_namespace"})
"""Walls that are recorded, and not demanded by default: an ordinary user has one uid to give."""

OWN_KERNEL = "own_kernel"
"""A further wall, which a policy, a rule or a skill can demand by name: system calls of programs are answered by a
kernel of the sandbox's own, and none reaches the kernel that the host shares with others."""

KERNEL_CAN = frozenset({*BOUNDARIES, "memory", "cpus", "pids", "disk"})
"""The guarantees that ``require = "kernel"`` demands of the kernel; time and output are always watched."""


@dataclass(frozen=True, slots=True)
class Nature:
    """The design of a backend, the same on any host.

    ``rank`` is its place where an isolation is chosen by itself, the least first; without one it has to be named.
    ``without`` names the walls and guarantees that it does not have: choosing it accepts that, and nothing else.
    ``network`` says whether its sandboxes can be given one, ``remote`` whether they are on other hosts, ``ports`` on
    which ones inside a program of ours listens. Probe, record and doctor show every missing wall all the same.
    """

    rank: int | None = None
    without: frozenset[str] = frozenset()
    network: bool = True
    remote: bool = False
    ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Protection:
    """One wall, limit or guarantee: its attestor here, the evidence, and a remedy."""

    level: Level
    by: str = ""
    why: str = ""
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A guarantee as it stands. ``attestor`` answers for it; ``evidence`` names its walls that stand, or is the
    backend's own word; ``lacking`` names its walls that are missing."""

    attestor: Level
    evidence: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


_SILENT = Protection(Level.MISSING, why="the backend does not offer it")
_SHARED = Protection(
    Level.MISSING, why="the host's kernel answers programs", mend="choose an isolation that has one: doctor --all"
)
_STRENGTH = (Level.MISSING, Level.PROVIDER, Level.SUPERVISED, Level.KERNEL)


def weaker(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Returns the weaker level of each name of ``one``; ``other`` lacks what it does not name."""
    levels = {name: (Level(level), Level(other.get(name, Level.MISSING))) for name, level in one.items()}
    return {name: min(both, key=_STRENGTH.index).value for name, both in levels.items()}


def guarantees(offered: Mapping[str, Protection], nature: Nature) -> dict[str, Guarantee]:
    """Returns each guarantee by name, as ``offered`` upholds it."""
    found = {name: _boundary(name, offered, nature.without) for name in BOUNDARIES}
    return found | {name: _attested(offered.get(name, _SILENT)) for name in LIMITS}


def _attested(protection: Protection) -> Guarantee:
    stands = protection.level is not Level.MISSING and protection.by
    return Guarantee(protection.level, (protection.by,) if stands else ())


def _boundary(name: str, offered: Mapping[str, Protection], without: frozenset[str]) -> Guarantee:
    """Returns the guarantee, which is missing as soon as one bearing wall is.

    It is so also where the backend itself says otherwise.
    """
    bearing, further = _bearers(name, without)
    named = {wall: offered[wall] for wall in (*bearing, *further) if wall in offered}
    if name in offered:
        claims = [offered[name], *(named[wall] for wall in bearing if wall in named)]
    else:
        claims = [named.get(wall, _SILENT) for wall in bearing]
    weakest = min((claim.level for claim in claims), key=_STRENGTH.index, default=Level.MISSING)
    said = (offered[name].by,) if name in offered and offered[name].by else ()
    standing = tuple(wall for wall, have in named.items() if have.level is not Level.MISSING)
    lacking = tuple(wall for wall, have in named.items() if have.level is Level.MISSING)
    return Guarantee(weakest, () if weakest is Level.MISSING else (*said, *standing), lacking)


def _bearers(name: str, without: frozenset[str]) -> Evidence:
    """Returns the walls of a guarantee for a backend that is without some.

    The further ones bear it when no other is left.
    """
    bearing, further = ([wall for wall in walls if wall not in without] for walls in BOUNDARIES[name])
    if not bearing:
        return Evidence(tuple(wall for wall in further if wall not in ADVISORY), tuple(further))
    return Evidence(tuple(bearing), tuple(further))


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a policy.

    ``kernel_only`` names guarantees that the kernel itself must attest; ``allow_degraded`` names guarantees, and walls,
    that may be missing. ``named`` are guarantees and walls that may not be missing whatever else is said.
    """

    kernel_only: frozenset[str] = frozenset()
    allow_degraded: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()

    def check(self, offered: Mapping[str, Protection]) -> None:
        """Raises ProtectionMissing with everything that falls short, each with its remedy."""
        if short := dict(self._short(offered)):
            why = "; ".join(f"{name} ({reason})" for name, reason in short.items())
            raise ProtectionMissing(f"this host cannot enforce: {why}", protections=list(short))

    def shortfall(self, offered: Mapping[str, Protection]) -> list[str]:
        """Returns the names of everything that falls short."""
        return [name for name, _ in self._short(offered)]

    def demands(self, name: str) -> bool:
        """Returns whether a wall or guarantee of that name may not be missing. A wall is demanded for as long as one
        demanded guarantee rests on it."""
        if name in self.named:
            return True
        if name in self.allow_degraded or name in ADVISORY:
            return False
        if name not in WALLS:
            return True
        return any(name in _walls(boundary) for boundary in BOUNDARIES if boundary not in self.allow_degraded)

    def _short(self, offered: Mapping[str, Protection]) -> Iterator[tuple[str, str]]:
        """Each name that falls short, and why."""
        for name in self._asked(offered):
            have = offered.get(name, _SHARED if name == OWN_KERNEL else _SILENT)
            if have.level is Level.MISSING:
                yield name, (have.why or "not available") + (f"; {have.mend}" if have.mend else "")
            elif have.level is not Level.KERNEL and self._of_the_kernel(name):
                word = "supervised" if have.level is Level.SUPERVISED else "attested by its provider"
                yield name, f"only {word} here, and the policy requires the kernel"

    def _asked(self, offered: Mapping[str, Protection]) -> Iterator[str]:
        """Returns the names to look at.

        They are a guarantee that the backend speaks of by name, and the walls of any other. A wall that is named counts
        in any case; one that is not counts where its guarantee is not attested otherwise.
        """
        spoken = [name for name in BOUNDARIES if name in offered or offered.keys().isdisjoint(_walls(name))]
        rested_on = {wall for name in BOUNDARIES if name not in spoken for wall in _walls(name)}
        walls = [wall for wall in WALLS if wall in rested_on or wall in offered or wall in self.named]
        walls += self.named & {OWN_KERNEL}
        boundaries = [name for name in BOUNDARIES if name in spoken or name in self.named]
        return filter(self.demands, (*boundaries, *walls, *LIMITS))

    def _of_the_kernel(self, name: str) -> bool:
        """Returns whether the kernel must attest a wall, named itself or by a guarantee on it."""
        if name in self.kernel_only:
            return True
        return any(name in _walls(asked) for asked in self.kernel_only if asked in BOUNDARIES)


def _walls(name: str) -> tuple[str, ...]:
    return (*BOUNDARIES[name].bearing, *BOUNDARIES[name].further)


@dataclass(frozen=True, slots=True)
class Probe:
    """The abilities of a backend on this host, found by trying.

    ``protections`` are its walls and limits, or guarantees, by name.
    """

    backend: str
    ready: bool
    protections: Mapping[str, Protection]
    facts: Mapping[str, str]
    """Versions and the like, for doctor and the run record."""
    abilities: Mapping[str, Protection] = field(default_factory=dict)
    """Further abilities (:data:`ABILITIES`); the backend lacks those that are not named."""
    away: str = ""
    """Why an engine or a server behind it does not answer, which may pass; empty for what is there or not to be had."""

    def able(self, ability: str) -> bool:
        """Returns whether it can do that."""
        return self.abilities.get(ability, _SILENT).level is not Level.MISSING

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


def absent(backend: str, why: str, facts: Mapping[str, str], mend: str = "", *, away: bool = False) -> Probe:
    """Returns the probe of a backend that cannot work here; ``away`` says that it may soon."""
    nothing, told = Protection(Level.MISSING, why=why, mend=mend), f"{why}; {mend}" if mend else why
    return Probe(backend, False, dict.fromkeys(PROTECTIONS, nothing), {**facts, "why": told}, away=told if away else "")
