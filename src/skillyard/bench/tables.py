"""The report for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from skillyard.bench.budget import MIB, Line
from skillyard.bench.catalogue import Shelf
from skillyard.bench.plan import CONCURRENCY
from skillyard.bench.report import Report, host

_PLAIN_WIDTH = 130
_VERDICT = {True: "[green]met[/]", False: "[red]not met[/]", None: "not measured"}


def show(report: Report) -> None:
    """Tables on standard output, for a terminal or not."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(_where(report))
    for title, table in _tables(report):
        console.print(f"\n[bold]{title}[/]")
        console.print(table)
    for skipped in report.skipped:
        console.print(f"not measured: {skipped.title}: {skipped.reason}", markup=False, soft_wrap=True)


def _where(report: Report) -> str:
    facts = host()
    user = "root" if facts["root"] else "an ordinary user"
    busy = report.load > facts["cpus"]
    return (
        f"Linux {facts['kernel']} {facts['machine']}, {facts['cpus']} cpus, CPython {facts['python']}, as {user}; "
        f"load {report.load:.1f} before, {report.took_s:.0f} s in all.\n"
        "Everybody does the same job in turns, each time from nothing: read ratios, not digits. They are medians over\n"
        "rounds of own time / that of python3 -I, of python3 -I -S, and of bubblewrap round python3 -I.\n"
        f"python3 is {facts['baseline']['python']}, with empty site-packages in an environment of its own."
        + (
            "\n[yellow]The machine is busy with other things: the budget below is for one that is not.[/]"
            if busy
            else ""
        )
    )


def _tables(report: Report) -> Iterator[tuple[str, Table]]:
    rows = list(report.latencies())
    for job in dict.fromkeys(row["job"] for row in rows):
        yield f"Latency of one run, job '{job}'", _latency([row for row in rows if row["job"] == job])
    yield "Throughput, runs a second", _throughput(report)
    if report.network is not None:
        yield "Ways out: one transfer, and a connection with one small answer", _ways(report)
    if shelf := report.catalogue:
        yield f"A catalogue of {shelf.names:,} skills, {shelf.bundles:,} bundles", _catalogue(shelf)
    yield "Waiting and beginning", _waiting(report)
    yield "The budget", _budget(report.budget())


def _latency(rows: list[dict[str, Any]]) -> Table:
    table = _table("", "p50 ms", "p95", "p99", "/ -I", "/ -I -S", "/ bwrap", "runs")
    table.add_column("walls and limits", no_wrap=True)
    for row in rows:
        times = [_ms(row[name]) for name in ("p50_ms", "p95_ms", "p99_ms")]
        ratios = [_ratio(row[name]) for name in ("vs_python", "vs_python_bare", "vs_bubblewrap")]
        table.add_row(row["title"], *times, *ratios, str(row["samples"]), row["walls"])
    return table


def _throughput(report: Report) -> Table:
    table = _table("callers at once", *map(str, CONCURRENCY))
    for subject in report.subjects:
        rates = {r["concurrency"]: r["runs_per_s"] for r in report.throughputs() if r["id"] == subject.id}
        if rates:
            table.add_row(subject.title, *(f"{rates[level]:,.0f}" if level in rates else "" for level in CONCURRENCY))
    return table


def _ways(report: Report) -> Table:
    """Rates and times as parts of the other's with or without TLS alike."""
    table = _table("", "MiB/s", "/ direct", "/ plain proxy", "connect ms", "/ direct", "/ plain proxy")
    for row in report.network.rows() if report.network else ():
        ratios = [_ratio(row[name]) for name in ("vs_direct", "vs_proxy")]
        connection = [_ratio(row[name]) for name in ("connection_vs_direct", "connection_vs_proxy")]
        table.add_row(row["title"], f"{row['mib_per_s']:,.0f}", *ratios, _ms(row["connection_ms"]), *connection)
    return table


def _catalogue(shelf: Shelf) -> Table:
    table, told = _table("", "p50", "p99"), shelf.as_dict()
    table.add_row("the first start, which reads every bundle", f"{told['first_start_s']:.1f} s", "")
    table.add_row("a start", f"{told['start_s']:.2f} s", "")
    table.add_row("  without any skills", f"{told['bare_start_s']:.2f} s", "")
    for row in shelf.rows():
        table.add_row(row["title"], f"{_ms(row['p50_ms'])} ms", f"{_ms(row['p99_ms'])} ms")
    table.add_row("until a new version is in the list", f"{told['noticed_s']:.2f} s", "")
    table.add_row("what a server holds more than one without skills", f"{told['memory_bytes'] / MIB:.1f} MiB", "")
    return table


def _waiting(report: Report) -> Table:
    table = _table("", "")
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
    for one in report.as_dict()["startup"]:
        table.add_row(one["title"], f"{one['p50_ms']:.0f} ms")
    return table


def _budget(lines: list[Line]) -> Table:
    table = _table("", "wanted", "measured", "")
    for line in lines:
        wanted = f"{'≥' if line.at_least else '≤'} {line.limit:g} {line.unit}"
        measured = "" if line.measured is None else f"{line.measured:g} {line.unit}"
        table.add_row(line.name, wanted, measured, _VERDICT[line.met])
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
