"""The report of a benchmark: one value, its JSON form, and its tables for people."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from skillyard._version import __version__
from skillyard.bench.idle import Idle
from skillyard.bench.installations import PYTHON, PYTHON_BARE, interpreter
from skillyard.bench.processor import Processor
from skillyard.bench.subject import Skipped, Subject
from skillyard.bench.turns import CONCURRENCY, Rounds, in_ms, median

FORMAT = 4
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
    processor: Processor
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
            "processor": self.processor.as_dict(),
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
        """Yields one object for each subject and concurrency: the median of its windows.

        ``vs_python`` divides it by that of a plain interpreter, window by window.
        """
        plain = self.throughput.get(PYTHON, {})
        for subject in self.subjects:
            for level, rounds in self.throughput.get(subject.id, {}).items():
                if not rounds.samples:
                    continue
                rate, times = round(median(rounds.samples), 1), rounds.ratio(plain.get(level, Rounds()))
                yield {
                    **_named(subject),
                    "concurrency": level,
                    "windows": len(rounds.blocks),
                    "runs_per_s": rate,
                    "vs_python": None if times is None else round(times, 2),
                }

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


_PLAIN_WIDTH = 130


def show(report: Report, more: Iterable[tuple[str, Table]] = ()) -> None:
    """Prints the report and ``more`` tables, for a terminal or not."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(_where(report))
    for title, table in (*_tables(report), *more):
        console.print(f"\n[bold]{title}[/]")
        console.print(table)
    for skipped in report.skipped:
        console.print(f"not measured: {skipped.title}: {skipped.reason}", markup=False, soft_wrap=True)


def _where(report: Report) -> str:
    facts = host()
    user = "root" if facts["root"] else "an ordinary user"
    busy = report.processor.too_busy
    return (
        f"Linux {facts['kernel']} {facts['machine']}, {facts['cpus']} cpus, CPython {facts['python']}, as {user}; "
        f"load {report.load:.1f} before, {report.took_s:.0f} s in all.\n"
        "Everybody does the same job in turns, each time from nothing: read ratios, not digits. They are medians over\n"
        "rounds of own time / that of the other.\n"
        f"python3 is {facts['baseline']['python']}, with empty site-packages in an environment of its own."
        + (
            "\n[yellow]The machine is busy with other things: ratios are worse, and no budget is judged.[/]"
            if busy
            else ""
        )
    )


def _tables(report: Report) -> Iterator[tuple[str, Table]]:
    rows = list(report.latencies())
    for job in dict.fromkeys(row["job"] for row in rows):
        yield (
            f"Latency of one run, job '{job}'",
            _latency([row for row in rows if row["job"] == job], [*report.bases]),
        )
    yield "Throughput, runs a second", _throughput(report)
    yield f"Processor time of a run, by {report.processor.way}", _processor(report.processor)
    yield "Waiting and beginning", _waiting(report)


def _latency(rows: list[dict[str, Any]], bases: Sequence[str]) -> Table:
    named = [f"/ {base.removeprefix('vs_').replace('_', ' ')}" for base in bases]
    table = plain_table("", "p50 ms", "p95", "p99", *named, "runs")
    table.add_column("walls and limits", no_wrap=True)
    for row in rows:
        times = [shown_ms(row[name]) for name in ("p50_ms", "p95_ms", "p99_ms")]
        ratios = [shown_ratio(row[name]) for name in bases]
        table.add_row(row["title"], *times, *ratios, str(row["samples"]), row["walls"])
    return table


def show_processor(found: Processor) -> None:
    """Prints what runs take, and which process takes it."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    if found.too_busy:
        console.print(f"The machine is busy: others use {found.busy:.1f} processors. Read processor time alone.")
    console.print(f"Processor time is told by {found.way}. Ratios are ours / that of the other.")
    console.print(_processor(found))
    profile = plain_table("8 callers at once, ms of processor a run")
    rows = list(found.profile())
    names = list(dict.fromkeys(name for row in rows for name in row if name != "subject"))
    for name in names:
        profile.add_column(name, justify="right")
    for row in rows:
        profile.add_row(row["subject"], *(shown_ms(row.get(name, 0.0)) for name in names))
    console.print(profile)
    for skipped in found.skipped:
        console.print(f"not measured: {skipped.title}: {skipped.reason}", markup=False, soft_wrap=True)


def _processor(found: Processor) -> Table:
    table = plain_table("", "", "p50 ms", "processor ms", "runs/s", "ours / its p50", "/ processor", "/ runs/s")
    for row in found.rows():
        times = [shown_ms(row[name]) for name in ("p50_ms", "cpu_ms", "runs_per_s")]
        ratios = [shown_ratio(row[name]) for name in ("ours_p50", "ours_cpu", "ours_rate")]
        table.add_row(row["mode"], row["subject"], *times, *ratios)
    return table


def _throughput(report: Report) -> Table:
    columns = [name for level in CONCURRENCY for name in (str(level), "/ python")]
    table = plain_table("callers at once", *columns)
    for subject in report.subjects:
        rows = {r["concurrency"]: r for r in report.throughputs() if r["id"] == subject.id}
        if rows:
            table.add_row(subject.title, *(cell for level in CONCURRENCY for cell in _rate(rows.get(level))))
    return table


def _rate(row: Mapping[str, Any] | None) -> tuple[str, str]:
    return ("", "") if row is None else (f"{row['runs_per_s']:,.0f}", shown_ratio(row["vs_python"]))


def _waiting(report: Report) -> Table:
    table = plain_table("", "")
    table.show_header = False
    if idle := report.idle:
        table.add_row(f"{idle.sandboxes} sandboxes made ready", f"{idle.made_s:.2f} s")
        if idle.unshared_bytes is not None:
            table.add_row("  unshared memory of each", f"{idle.unshared_bytes / MIB:.2f} MiB")
        if idle.host_bytes is not None:
            table.add_row("  what each took of the host's memory", f"{idle.host_bytes / MIB:.2f} MiB")
        table.add_row("  all of them ended", f"{idle.ended_s:.2f} s")
    if report.server_start_s:
        table.add_row("skillyard serve, until it is ready", f"{sorted(report.server_start_s)[0] * 1000:.0f} ms")
    return table


def plain_table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def shown_ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def shown_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
