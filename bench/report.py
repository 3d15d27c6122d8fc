"""The whole report: runs, and everything else that the budget speaks of, for machines and for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from bench import budget
from bench.budget import Line
from bench.catalogue import Shelf
from bench.network import Ways
from bench.readers import Reading
from bench.schemas import Checked
from bench.services import Served
from bench.streams import Streams
from bench.tasks import Work
from skillyard.bench.report import MIB, Report, plain_table, show, shown_ms, shown_ratio
from skillyard.bench.turns import in_ms

_VERDICT = {True: "[green]met[/]", False: "[red]not met[/]", None: "not measured"}


@dataclass(frozen=True, slots=True)
class WholeReport:
    """``startup`` has seconds by command. Parts that could not be measured are None."""

    runs: Report
    startup: Mapping[str, Sequence[float]]
    network: Ways | None = None
    catalogue: Shelf | None = None
    schemas: Checked | None = None
    reading: Reading | None = None
    streams: Streams | None = None
    work: Work | None = None
    served: Served | None = None

    def budget(self) -> list[Line]:
        runs = self.runs
        return budget.compare(
            runs.latency,
            runs.throughput,
            runs.idle,
            self.startup,
            self.network,
            self.catalogue,
            self.schemas,
            self.reading,
            self.streams,
            runs.processor,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.runs.as_dict(),
            "network": list(self.network.rows()) if self.network else [],
            "policy_added_ms": self.network.added_ms() if self.network else None,
            "catalogue": self.catalogue.as_dict() if self.catalogue else None,
            "schemas": self.schemas.as_dict() if self.schemas else None,
            "reading": self.reading.as_dict() if self.reading else None,
            "streams": self.streams.as_dict() if self.streams else None,
            "services": self.served.as_dict() if self.served else None,
            "commands_and_tasks": self.work.as_dict() if self.work else None,
            "startup": list(self._starts()),
            "budget": [line.as_dict() for line in self.budget()],
        }

    def show(self) -> None:
        """Prints tables for people."""
        show(self.runs, self._tables())

    def _starts(self) -> Iterator[dict[str, Any]]:
        for title, samples in self.startup.items():
            yield {"title": title, **in_ms(samples)}

    def _tables(self) -> Iterator[tuple[str, Table]]:
        if self.network is not None:
            yield "Ways out: one transfer, and a connection with one small answer", _ways(self.network)
        if shelf := self.catalogue:
            yield f"A catalogue of {shelf.names:,} skills, {shelf.bundles:,} bundles", _catalogue(shelf)
        if self.reading is not None:
            yield "Texts that are shaped to be slow: the whole of its half", _reading(self.reading)
        if self.streams is not None:
            yield "Bytes of a running sandbox", _titled(self.streams.rows())
        if self.work is not None:
            yield "Shell commands and tasks", _titled(self.work.rows())
        if self.served is not None:
            yield "Ports of services", _titled(self.served.rows())
        starts = plain_table("command", "p50 ms")
        for one in self._starts():
            starts.add_row(one["title"], f"{one['p50_ms']:.0f}")
        yield "Commands, from start to end", starts
        yield "The budget", _budget(self.budget())


def _ways(ways: Ways) -> Table:
    """Rates and times as parts of the other's with or without TLS alike."""
    table = plain_table("", "MiB/s", "/ direct", "/ plain proxy", "connect ms", "/ direct", "/ plain proxy")
    for row in ways.rows():
        ratios = [shown_ratio(row[name]) for name in ("vs_direct", "vs_proxy")]
        connection = [shown_ratio(row[name]) for name in ("connection_vs_direct", "connection_vs_proxy")]
        table.add_row(row["title"], f"{row['mib_per_s']:,.0f}", *ratios, shown_ms(row["connection_ms"]), *connection)
    return table


def _catalogue(shelf: Shelf) -> Table:
    table, told = plain_table("", "p50", "p99"), shelf.as_dict()
    table.add_row("the first start, which reads every bundle", f"{told['first_start_s']:.1f} s", "")
    table.add_row("a start", f"{told['start_s']:.2f} s", "")
    table.add_row("  without any skills", f"{told['bare_start_s']:.2f} s", "")
    for row in shelf.rows():
        table.add_row(row["title"], f"{shown_ms(row['p50_ms'])} ms", f"{shown_ms(row['p99_ms'])} ms")
    table.add_row("until a new version is in the list", f"{told['noticed_s']:.2f} s", "")
    table.add_row("what a server holds more than one without skills", f"{told['memory_bytes'] / MIB:.1f} MiB", "")
    return table


def _reading(reading: Reading) -> Table:
    table = plain_table("", "times")
    for name, value in reading.rows():
        table.add_row(name, f"{value:.1f}")
    return table


def _titled(rows: Iterable[tuple[str, float | None]]) -> Table:
    table = plain_table("", "")
    for name, value in rows:
        table.add_row(name, "" if value is None else f"{value:.2f}")
    return table


def _budget(lines: list[Line]) -> Table:
    table = plain_table("", "wanted", "measured", "")
    for line in lines:
        wanted = f"{'≥' if line.at_least else '≤'} {line.limit:g} {line.unit}"
        measured = "" if line.measured is None else f"{line.measured:g} {line.unit}"
        verdict = _VERDICT[line.met] if line.judged else "not judged: the machine is busy"
        table.add_row(line.name, wanted, measured, verdict)
    return table
