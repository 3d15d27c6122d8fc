"""What the project promises of itself (ARCHITECTURE: performance budget), held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skillyard.bench.catalogue import Shelf
from skillyard.bench.idle import Idle
from skillyard.bench.network import Ways
from skillyard.bench.stats import Rounds, median, percentile

MIB = 1024 * 1024
ENOUGH_READY = 1000
MANY_SKILLS = 2000


@dataclass(frozen=True, slots=True)
class Line:
    """``measured`` None: this run did not measure it."""

    name: str
    limit: float
    unit: str
    measured: float | None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def compare(
    latency: Mapping[str, Rounds],
    throughput: Mapping[str, Mapping[int, Rounds]],
    idle: Idle | None,
    startup: Mapping[str, Sequence[float]],
    network: Ways | None = None,
    catalogue: Shelf | None = None,
) -> list[Line]:
    """Each line of the budget; subjects that were not measured leave theirs open."""
    added = network.added_ms() if network else None
    policy = Line("what a network policy adds to a ready run, median", 2.0, "ms", added)
    return [
        *_latencies(latency),
        policy,
        _sustained(throughput),
        *_waiting(idle),
        *_beginning(startup),
        *_skills(catalogue),
    ]


def _latencies(latency: Mapping[str, Rounds]) -> Iterator[Line]:
    yield Line("run_code, a sandbox waits ready, p50", 1.5, "ms", _ms(latency, "ready", 50))
    yield Line("run_code, on demand, p50", 3.0, "ms", _ms(latency, "on_demand", 50))
    tails = [tail for name in ("ready", "on_demand") if (tail := _ms(latency, name, 99)) is not None]
    yield Line("run_code, p99 of the slower of these", 10.0, "ms", max(tails, default=None))
    yield Line("numpy and pandas preloaded, ready, p50", 4.0, "ms", _ms(latency, "data", 50))
    numpy = latency["numpy"].ratio(latency["ready"]) if {"numpy", "ready"} <= latency.keys() else None
    yield Line("numpy preloaded, ready: of a run without packages", 1.3, "", None if numpy is None else round(numpy, 2))
    added = latency["http"].excess(latency["ready"]) if {"http", "ready"} <= latency.keys() else None
    yield Line("what HTTP adds, median", 1.5, "ms", None if added is None else round(added * 1000, 3))


def _sustained(throughput: Mapping[str, Mapping[int, Rounds]]) -> Line:
    rates = [median(rounds.samples) for name in ("ready", "on_demand") for rounds in throughput.get(name, {}).values()]
    return Line("run_code in process, sustained", 500, "runs/s", round(max(rates)) if rates else None, at_least=True)


def _waiting(idle: Idle | None) -> Iterator[Line]:
    held = idle.unshared_bytes if idle else None
    yield Line("a ready sandbox, unshared memory", 4.0, "MiB", None if held is None else round(held / MIB, 2))
    many = idle.sandboxes if idle and idle.sandboxes >= ENOUGH_READY else None
    yield Line("ready sandboxes at once", ENOUGH_READY, "", many, at_least=True)


def _beginning(startup: Mapping[str, Sequence[float]]) -> Iterator[Line]:
    typical = {title: round(median(samples) * 1000, 1) for title, samples in startup.items()}
    slowest = max((ms for title, ms in typical.items() if title.startswith("skillyard ")), default=None)
    yield Line("import skillyard, the interpreter's start included", 150, "ms", typical.get("import skillyard"))
    yield Line("the slowest client command, from start to end", 150, "ms", slowest)


def _skills(shelf: Shelf | None) -> Iterator[Line]:
    page = round(shelf.page_ms, 3) if shelf else None
    yield Line("a page of 50 skills with summaries, p50", 5.0, "ms", page)
    many = shelf if shelf and shelf.names >= MANY_SKILLS else None
    yield Line(f"what {MANY_SKILLS:,} skills add to a start", 2.0, "s", round(many.start_s, 3) if many else None)


def _ms(latency: Mapping[str, Rounds], name: str, percent: float) -> float | None:
    if name not in latency or not latency[name].samples:
        return None
    return round(percentile(latency[name].samples, percent) * 1000, 3)
