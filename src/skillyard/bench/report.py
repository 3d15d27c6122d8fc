"""What was measured, as one value and as JSON."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from skillyard._version import __version__
from skillyard.bench.baseline import PYTHON, PYTHON_BARE, interpreter
from skillyard.bench.idle import Idle
from skillyard.bench.stats import Rounds, in_ms, median
from skillyard.bench.subject import Skipped, Subject

FORMAT = 3
MIB = 1024 * 1024
BASES = {"vs_python": PYTHON, "vs_python_bare": PYTHON_BARE}
"""Names of ratios, and the subjects that latencies are divided by."""


@dataclass(slots=True)
class Report:
    """Latencies in seconds, throughputs in jobs per second."""

    quick: bool
    took_s: float
    load: float
    subjects: Sequence[Subject]
    latency: Mapping[str, Rounds]
    throughput: Mapping[str, Mapping[int, Rounds]]
    idle: Idle | None
    server_start_s: Sequence[float]
    protections: Mapping[str, str]
    skipped: list[Skipped]
    bases: Mapping[str, str] = field(default_factory=lambda: BASES)

    def as_dict(self) -> dict[str, Any]:
        """Returns the JSON form. Ratios are medians over rounds of own time / the other's for the same job."""
        return {
            "format": FORMAT,
            "skillyard": __version__,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "quick": self.quick,
            "took_s": round(self.took_s, 1),
            "host": host() | {"load_before": self.load, "protections": dict(self.protections)},
            "latency": list(self.latencies()),
            "throughput": list(self.throughputs()),
            "idle": asdict(self.idle) if self.idle else None,
            "server_start": in_ms(self.server_start_s),
            "skipped": [asdict(one) for one in self.skipped],
        }

    def latencies(self) -> Iterator[dict[str, Any]]:
        """Yields one object for each subject that has samples."""
        for subject in self.subjects:
            rounds = self.latency[subject.id]
            if rounds.samples:
                yield {
                    **_named(subject),
                    "rounds": len(rounds.blocks),
                    "samples": len(rounds.samples),
                    **in_ms(rounds.samples),
                    **{name: self._ratio(subject, base) for name, base in self.bases.items()},
                }

    def throughputs(self) -> Iterator[dict[str, Any]]:
        """Yields one object for each subject and concurrency: the median of its windows."""
        for subject in self.subjects:
            for level, rounds in self.throughput.get(subject.id, {}).items():
                if not rounds.samples:
                    continue
                rate = round(median(rounds.samples), 1)
                yield {**_named(subject), "concurrency": level, "windows": len(rounds.blocks), "runs_per_s": rate}

    def _ratio(self, subject: Subject, base: str) -> float | None:
        """Against the base doing the same job."""
        same = base if subject.job.environment == "base" else f"{base}_data"
        if same not in self.latency:
            return None
        ratio = self.latency[subject.id].ratio(self.latency[same])
        return None if ratio is None else round(ratio, 4)


def host() -> dict[str, Any]:
    """Returns facts about this machine."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "root": os.geteuid() == 0,
        "baseline": {"python": interpreter(), "site_packages": "empty, of a virtual environment of its own"},
    }


def _named(subject: Subject) -> dict[str, Any]:
    return {"id": subject.id, "title": subject.title, "job": subject.job.name, "walls": subject.walls}
