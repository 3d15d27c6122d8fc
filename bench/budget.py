"""What the project promises of itself (ARCHITECTURE: performance budget), held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.catalogue import Shelf
from bench.network import Ways
from bench.readers import Reading
from bench.schemas import Checked
from bench.streams import FILES, FOLLOWERS, Streams
from skillyard.bench.idle import Idle
from skillyard.bench.installations import PYTHON
from skillyard.bench.processor import PROTOTYPE, Processor
from skillyard.bench.report import MIB
from skillyard.bench.turns import Rounds, median, percentile

_BASE = "a clean python3 -I"
ENOUGH_READY = 1000
MANY_SKILLS = 2000


@dataclass(frozen=True, slots=True)
class Line:
    """``measured`` None: this run did not measure it. One that is not ``judged`` was measured on a busy machine."""

    name: str
    limit: float
    unit: str
    measured: float | None
    at_least: bool = False
    judged: bool = True

    @property
    def met(self) -> bool | None:
        if self.measured is None or not self.judged:
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
    schemas: Checked | None = None,
    reading: Reading | None = None,
    streams: Streams | None = None,
    processor: Processor | None = None,
) -> list[Line]:
    """Each line of the budget; subjects that were not measured leave theirs open, and a busy machine all."""
    added = network.added_ms() if network else None
    policy = Line("what a network policy adds to a ready run, median", 2.0, "ms", added)
    lines = [
        *_latencies(latency),
        *_prototype(processor),
        policy,
        _sustained(throughput),
        *_waiting(idle),
        *_beginning(startup),
        *_skills(catalogue),
        *_schemas(schemas),
        *_reading(reading),
        *_streams(streams),
    ]
    return [replace(line, judged=False) for line in lines] if processor and processor.too_busy else lines


def _latencies(latency: Mapping[str, Rounds]) -> Iterator[Line]:
    for title, limit, name in (
        ("run_code, a sandbox waits ready", 0.14, "ready"),
        ("run_code, on demand", 0.28, "on_demand"),
        ("run_code over HTTP, a sandbox waits ready", 0.25, "http"),
    ):
        yield Line(f"{title}: of {_BASE}", limit, "", _ratio(latency, name, PYTHON))
    tails = [tail for name in ("ready", "on_demand") if (tail := _ms(latency, name, 99)) is not None]
    yield Line("run_code, p99 of the slower of ready and on demand", 10.0, "ms", max(tails, default=None))
    yield Line("numpy and pandas preloaded, ready: of a run without", 1.3, "", _ratio(latency, "data", "ready"))
    yield Line("numpy preloaded, ready: of a run without packages", 1.3, "", _ratio(latency, "numpy", "ready"))
    added = latency["http"].excess(latency["ready"]) if {"http", "ready"} <= latency.keys() else None
    yield Line("what HTTP adds, median", 1.5, "ms", None if added is None else round(added * 1000, 3))


def _prototype(processor: Processor | None) -> Iterator[Line]:
    rows = list(processor.rows()) if processor else []
    beside = {row["mode"]: row for row in rows if row["subject"] == PROTOTYPE}
    for title, limit, mode, name in (
        ("run_code, a sandbox waits ready: of the rough prototype", 2.2, "ready, with pauses", "ours_p50"),
        ("run_code, on demand with pauses: of the rough prototype", 1.5, "on demand, with pauses", "ours_p50"),
        ("runs/s, 8 at once: of the rough prototype", 0.55, "8 at once", "ours_rate"),
    ):
        yield Line(title, limit, "", beside.get(mode, {}).get(name), at_least=name == "ours_rate")


def _sustained(throughput: Mapping[str, Mapping[int, Rounds]]) -> Line:
    ours, theirs = _rates(throughput, "http"), _rates(throughput, PYTHON)
    times = round(max(ours) / max(theirs), 2) if ours and theirs else None
    return Line(f"run_code over HTTP, sustained: of {_BASE}", 3, "", times, at_least=True)


def _rates(throughput: Mapping[str, Mapping[int, Rounds]], name: str) -> list[float]:
    return [median(rounds.samples) for rounds in throughput.get(name, {}).values() if rounds.samples]


def _ratio(latency: Mapping[str, Rounds], name: str, base: str) -> float | None:
    found = latency[name].ratio(latency[base]) if {name, base} <= latency.keys() else None
    return None if found is None else round(found, 3)


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


def _schemas(checked: Checked | None) -> Iterator[Line]:
    told = checked.as_dict() if checked else {}
    small = told.get("small", {}).get("p50_ms")
    yield Line("a check against a small schema, p50", 1.0, "ms", small)
    health = told.get("healthz_attacked", {}).get("p99_ms")
    yield Line("/healthz while others' schemas do not end, p99", 100, "ms", health)


def _reading(reading: Reading | None) -> Iterator[Line]:
    growth, unpacking, secret = (
        (round(reading.worst_growth, 2), round(reading.unpacking_vs_tarfile, 2), round(reading.secret_vs_stat, 1))
        if reading
        else (None, None, None)
    )
    yield Line("a text of twice the length, shaped to be slow: of its half", 4.0, "", growth)
    yield Line("unpack many files: of the same with tarfile", 2.0, "", unpacking)
    yield Line("read a secret again: of a look at its file", 40.0, "", secret)


def _streams(streams: Streams | None) -> Iterator[Line]:
    added, idle, trees = (
        (streams.worst_added_ms(), streams.worst_idle_ms(), streams.worst_trees()) if streams else (None, None, None)
    )
    yield Line("stdin to stdout of a sandbox, beyond a plain pipe, median", 3.0, "ms", added)
    yield Line(f"{FILES:,} small files in and out as streams: of tar", 6.0, "", trees)
    yield Line(f"{FOLLOWERS} readers of nothing, processor time a second", 5.0, "ms", idle)


def _ms(latency: Mapping[str, Rounds], name: str, percent: float) -> float | None:
    if name not in latency or not latency[name].samples:
        return None
    return round(percentile(latency[name].samples, percent) * 1000, 3)
