"""Measures what a run costs here, beside a plain interpreter that does the same job: ``skillyard bench``."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from skillyard.bench import idle, processor, turns
from skillyard.bench.idle import Idle
from skillyard.bench.installations import baselines, clean_interpreter, open_installations
from skillyard.bench.processor import Processor
from skillyard.bench.report import Report
from skillyard.bench.subject import GivenUp, Skipped, Subject, WrongResult
from skillyard.bench.turns import CONCURRENCY, Plan
from skillyard.client.errors import RunFailed
from skillyard.domain.errors import SandboxFault
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.render import emit_json
from skillyard.server_process import ServerFailed

Say = Callable[[str], None]
Peers = Callable[[Path, str, Path | None], AbstractContextManager[tuple[list[Subject], list[Skipped]]]]
"""Opens the others that are measured beside: from a directory, a clean interpreter, and where numpy and pandas lie."""


class Measured(Protocol):
    """A report for machines; ``show`` prints it for people."""

    def as_dict(self) -> dict[str, Any]: ...


M = TypeVar("M", bound=Measured)


def bench(
    quick: bool, ready: int | None, output: Path | None, profile: bool, against: Path | None, as_json: bool
) -> None:
    """Measures and shows. Raises Failure."""
    if profile or against:
        show_runs(quick, output, against, as_json=as_json)
        return

    async def work(home: Path, say: Say) -> Report:
        return await measure(home, Plan.of(quick=quick, ready=ready), say, quick=quick)

    from skillyard.bench.report import show as print_tables

    show(work, print_tables, output, as_json=as_json)


def show_runs(quick: bool, output: Path | None, against: Path | None, *, as_json: bool) -> None:
    """Measures the time of runs alone, and shows it by process. Raises Failure."""
    from skillyard.bench.report import show_processor

    async def work(home: Path, say: Say) -> Processor:
        return await _processor(home, say, quick=quick, against=against)

    show(work, show_processor, output, as_json=as_json)


async def _processor(home: Path, say: Say, *, quick: bool, against: Path | None = None) -> Processor:
    say("processor time of runs")
    return await asyncio.to_thread(processor.measure, home, 1 if quick else 5, against)


def show(
    work: Callable[[Path, Say], Coroutine[Any, Any, M]],
    people: Callable[[M], None],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Does the work in a directory of its own and shows what it measured. Raises Failure."""
    try:
        with tempfile.TemporaryDirectory(prefix="skillyard-bench-") as directory:
            report = asyncio.run(work(Path(directory), _silent if as_json else _aloud))
    except (WrongResult, RunFailed, ServerFailed) as error:
        raise Failure(f"the benchmark broke off: {error}", code=Exit.FAILED) from error
    if output is not None:
        output.write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        emit_json(report.as_dict())
    else:
        people(report)


async def measure(home: Path, plan: Plan, say: Say, *, quick: bool, peers: Peers | None = None) -> Report:
    """Measures waiting sandboxes, latency and throughput. Raises what jobs of ours, runtimes and servers raise."""
    began, load = time.perf_counter(), os.getloadavg()[0]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * max(CONCURRENCY)))
    say(f"{plan.ready} sandboxes that wait")
    waiting, skipped = await _idle(home / "idle", plan.ready)
    say("runtimes, servers" + (", numpy and pandas" if plan.data else ""))
    python = clean_interpreter(home)
    async with open_installations(home) as ours:
        own, without = await ours.subjects(data=plan.data)
        opened = peers(home, python, ours.packages) if peers else nullcontext(([], []))
        with opened as (others, absent):
            subjects, given_up = [*own, *baselines(python, ours.packages), *others], GivenUp()
            say(f"latency, at most {plan.latency_s:.0f} s")
            latencies = await turns.latency(subjects, plan, given_up)
            say("throughput")
            rates = await turns.throughput([subject for subject in subjects if subject.loaded], plan, given_up)
        probe = await ours.native().probe()
        servers = [server.startup_s for server in (ours.ready_server, ours.demand_server)]
    used = await _processor(home, say, quick=quick)
    failed = [Skipped(s.id, s.title, f"gave up: {given_up[s.id]}") for s in subjects if s.id in given_up]
    skips = [*skipped, *without, *absent, *failed, *used.skipped]
    took = time.perf_counter() - began
    return Report(quick, took, load, subjects, latencies, rates, used, waiting, servers, probe.enforced(), skips)


async def _idle(home: Path, count: int) -> tuple[Idle | None, list[Skipped]]:
    try:
        return await idle.measure(home, count), []
    except (SandboxFault, TimeoutError) as error:
        reason = str(error) or "they were not ready in time"
        return None, [Skipped("idle", f"{count} ready sandboxes", reason)]


def _aloud(text: str) -> None:
    click.echo(f"measuring: {text} …", err=True)


def _silent(_: str) -> None:
    """Says nothing: standard error stays free for errors."""
