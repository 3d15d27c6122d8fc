"""The limits of runs. One above its maximum is refused by name, never clamped (design §8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any

from skillyard.domain.errors import InvalidInput, shown
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run.

    Units are milliseconds, MiB, cores, processes with threads, and MiB of written files.
    """

    timeout_ms: int = 300_000
    memory_mb: int = 512
    cpus: float = 1.0
    pids: int = 256
    disk_mb: int = 512

    def as_dict(self) -> dict[str, int | float]:
        return {
            "timeout_ms": self.timeout_ms,
            "memory_mb": self.memory_mb,
            "cpus": self.cpus,
            "pids": self.pids,
            "disk_mb": self.disk_mb,
        }


MINIMUM = Limits(timeout_ms=1, memory_mb=16, cpus=0.01, pids=4, disk_mb=1)


@dataclass(frozen=True, slots=True)
class LimitFamily:
    """Defaults and maxima of one kind of run (design §8)."""

    defaults: Limits = field(default_factory=Limits)
    maxima: Limits = field(
        default_factory=lambda: Limits(timeout_ms=3_600_000, memory_mb=8192, cpus=16.0, pids=4096, disk_mb=16384)
    )

    bounded: str = ""
    """Names what brought maxima down; empty for the settings alone."""

    def within(self, most: Mapping[str, int | float], bounded: str = "") -> LimitFamily:
        """Returns the family with maxima of at most ``most``, as ``bounded`` has them.

        Defaults above them come down to them.
        """
        maxima = {name: min(value, most.get(name, value)) for name, value in self.maxima.as_dict().items()}
        defaults = {name: min(value, maxima[name]) for name, value in self.defaults.as_dict().items()}
        return LimitFamily(Limits(**defaults), Limits(**maxima), bounded if most else "")  # type: ignore[arg-type]

    def resolve(self, asked: Mapping[str, Any], *, where: str = "limits") -> Limits:
        """The limits for a request that names some of them.

        Raises InvalidInput for an unknown name, a wrong type, or a value outside minimum and maximum.
        """
        known = {f.name for f in fields(Limits)}
        values: dict[str, Any] = {}
        for name, value in asked.items():
            path = f"{where}.{name}"
            if name not in known:
                raise InvalidInput(path, f"unknown limit; known are {', '.join(sorted(known))}")
            values[name] = self._checked(path, name, value)
        return replace(self.defaults, **values)

    def _checked(self, path: str, name: str, value: object) -> int | float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidInput(path, "must be a number", shown(value))
        if name != "cpus" and not isinstance(value, int):
            raise InvalidInput(path, "must be an integer", shown(value))
        low, high = getattr(MINIMUM, name), getattr(self.maxima, name)
        if not low <= value <= high:
            by = f", with {self.bounded}" if self.bounded and value > high else ""
            raise InvalidInput(path, f"must be from {low} to {high}{by}", shown(value), limit=name, maximum=high)
        return float(value) if name == "cpus" else value
