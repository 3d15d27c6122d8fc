"""What the runs of an environment import, and so what is worth importing before they begin.

All of it rests on what foreign code says, so it decides about time and memory and nothing else, and only names of the
environment's own modules count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 64
"""Runs after which an import counts a third of a fresh one."""
TAKE, KEEP = 0.1, 0.05
"""Shares of the runs that must import a module for it to be taken, and to be kept."""
MOST = 64
"""Modules imported ahead for one environment."""
MOST_KNOWN = 256
PATIENCE = 64
"""Runs after which a set may change again, once it has changed a few times; before, half as many each time."""
FAULT_S = 86400.0
"""How long a module that could not be imported ahead is left out."""


@dataclass(frozen=True, slots=True)
class ModuleFault:
    """``at`` is UTC seconds since the epoch."""

    why: str
    at: float


@dataclass(slots=True)
class Habits:
    """Of the runs of one environment. ``seen`` are modules and how many runs imported them, both these and ``runs``
    fading; ``ahead`` is the set that is imported ahead, since ``since`` runs."""

    runs: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)
    faults: dict[str, ModuleFault] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    since: int = 0
    patience: int = 1

    def note(self, imported: Iterable[str], used: Collection[str], modules: Collection[str]) -> None:
        """One run imported these; of those that were there already it ``used`` these top-level ones. ``modules`` are
        the environment's own top-level names."""
        fade = 1 - 1 / WINDOW
        self.runs = self.runs * fade + 1
        for name in self.seen:
            self.seen[name] *= fade
        again = [name for name in self.ahead if _top(name) in used]
        for name in dict.fromkeys([*imported, *again]):
            if admissible(name, modules):
                self.seen[name] = self.seen.get(name, 0.0) + 1
        if len(self.seen) > MOST_KNOWN:
            kept = set(sorted(self.seen, key=lambda name: -self.seen[name])[:MOST_KNOWN])
            self.seen = {name: count for name, count in self.seen.items() if name in kept}
        self.since += 1

    def wanted(self, now: float) -> tuple[str, ...]:
        """What should be imported ahead: what most runs use comes first, then what they imported first."""
        self.faults = {name: fault for name, fault in self.faults.items() if now - fault.at < FAULT_S}
        shares = {name: count / max(1.0, self.runs) for name, count in self.seen.items() if name not in self.faults}
        worth = [name for name, share in shares.items() if share >= (KEEP if name in self.ahead else TAKE)]
        return tuple(sorted(worth, key=lambda name: -round(shares[name], 1))[:MOST])

    def due(self, wanted: Iterable[str]) -> bool:
        """Whether it is time to change the set: a zygote for it has to be made, so not at every whim."""
        fresh, old = set(wanted), set(self.ahead)
        if fresh == old:
            return False
        return self.since >= (PATIENCE if fresh < old else self.patience)

    def adopt(self, ahead: tuple[str, ...]) -> None:
        self.ahead, self.since, self.patience = ahead, 0, min(PATIENCE, 2 * self.patience)

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "seen": self.seen,
            "faults": {name: [fault.why, fault.at] for name, fault in self.faults.items()},
            "ahead": list(self.ahead),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Habits:
        """From :meth:`as_dict`. Raises ValueError for anything else."""
        try:
            seen = {str(name): float(count) for name, count in data["seen"].items()}
            faults = {str(name): ModuleFault(str(why), float(at)) for name, (why, at) in data["faults"].items()}
            return cls(float(data["runs"]), seen, faults, tuple(map(str, data["ahead"])))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no habits: {error}") from None


def admissible(name: str, modules: Collection[str]) -> bool:
    """Whether this is a module of the environment that is no program: importing ``x.__main__`` would run it."""
    parts = name.split(".")
    return parts[0] in modules and all(part.isidentifier() and not part.startswith("__") for part in parts)


def _top(name: str) -> str:
    return name.partition(".")[0]
