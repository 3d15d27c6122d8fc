"""Measures everything that the project promises of itself: ``python -m bench`` from a checkout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import click

from bench import catalogue, commands, network, readers, schemas, services, streams, tasks
from bench.mcp import mcp
from bench.peers import BUBBLEWRAP, open_peers
from bench.report import WholeReport
from skillyard.bench.main import Say, measure, show, show_runs
from skillyard.bench.report import BASES
from skillyard.bench.subject import Skipped
from skillyard.bench.turns import Plan
from skillyard.client.errors import RunFailed
from skillyard.domain.errors import SkillyardError
from skillyard.faces.cli.failures import reported
from skillyard.faces.cli.options import bench_options
from skillyard.server_process import ServerFailed, ServerProcess

T = TypeVar("T")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@bench_options
@click.pass_context
def bench(
    context: click.Context,
    quick: bool,
    ready: int | None,
    output: Path | None,
    profile: bool,
    against: Path | None,
    as_json: bool,
) -> None:
    """Measure what the project promises of itself, beside others that do the same job.

    What `skillyard bench` measures, beside bubblewrap, sandlock, srt and docker where they are installed; then bytes
    and connections through the gate, a catalogue of many skills, schemas that do not end, shell commands
    and tasks, ports of services, and the start of commands.
    All is held against the project's budget. Works in a directory of its own.

    `backends` compares the isolations instead, `mcp` measures MCP servers in jails and calls of tools by code, `e2b`
    sandboxes through E2B's SDK.
    """
    if context.invoked_subcommand is not None:
        return

    async def work(home: Path, say: Say) -> WholeReport:
        return await _measure(home, Plan.of(quick=quick, ready=ready), say, quick=quick)

    if str(output) == "-":
        output, as_json = None, True
    if profile or against:
        show_runs(quick, output, against, as_json=as_json)
        return
    show(work, WholeReport.show, output, as_json=as_json)


async def _measure(home: Path, plan: Plan, say: Say, *, quick: bool) -> WholeReport:
    runs = await measure(home / "runs", plan, say, quick=quick, peers=open_peers)
    say("ways out")
    rounds, size = (2, 4 << 20) if quick else (8, 64 << 20)
    ways, closed = await _tried("network", "the ways out", network.measure(home / "network", rounds, size))
    skills = 40 if quick else 2000
    say(f"a catalogue of {skills} skills")
    shelf, unread = await _tried(
        "catalogue", "the catalogue", catalogue.measure(home / "catalogue", skills, versions=5, rounds=40)
    )
    seconds = 2.0 if quick else 12.0
    say(f"schemas that do not end, {seconds:.0f} s")
    checked, unchecked = await _tried("schemas", "schemas that do not end", schemas.measure(home / "schemas", seconds))
    say("texts that are shaped to be slow")
    reading = await asyncio.to_thread(lambda: readers.measure(home / "readers", quick=quick))
    say("bytes of a running sandbox")
    moved, unmoved = await _tried(
        "streams", "bytes of a running sandbox", streams.measure(home / "streams", 2 if quick else 8)
    )
    say("shell commands and tasks")
    worked, idle = await _tried(
        "tasks", "shell commands and tasks", asyncio.to_thread(lambda: tasks.measure(home / "tasks", quick=quick))
    )
    say("ports of services")
    served, closed_ports = await _tried(
        "services", "ports of services", asyncio.to_thread(lambda: services.measure(home / "services", quick=quick))
    )
    say("commands")
    starts = await asyncio.to_thread(_commands, home / "commands", 3 if quick else 9)
    runs.skipped += [*closed, *unread, *unchecked, *unmoved, *idle, *closed_ports]
    runs.bases = {**BASES, "vs_bubblewrap": BUBBLEWRAP}
    return WholeReport(runs, starts, ways, shelf, checked, reading, moved, worked, served)


async def _tried(name: str, title: str, measuring: Awaitable[T]) -> tuple[T | None, list[Skipped]]:
    try:
        return await measuring, []
    except (SkillyardError, RunFailed, ServerFailed, TimeoutError, OSError) as error:
        return None, [Skipped(name, title, " ".join(str(error).split())[:200])]


def _commands(data_dir: Path, times: int) -> dict[str, list[float]]:
    with ServerProcess(data_dir) as server:
        return commands.measure(server.data_dir, times)


if __name__ == "__main__":
    if sys.argv[1:2] == ["backends"]:  # it starts what tests start, and nothing else of it is needed without pytest
        from bench.backends.command import backends

        bench.add_command(backends)
    if sys.argv[1:2] == ["e2b"]:
        from bench.e2b import e2b

        bench.add_command(e2b)
    bench.add_command(mcp)
    with reported():
        bench(standalone_mode=False)
