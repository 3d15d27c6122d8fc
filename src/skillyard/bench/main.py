"""``skillyard bench``."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from skillyard.bench import catalogue, idle, latency, network, schemas, startup, throughput
from skillyard.bench.catalogue import Shelf
from skillyard.bench.idle import Idle
from skillyard.bench.job import WrongResult
from skillyard.bench.network import Ways
from skillyard.bench.peers import open_peers
from skillyard.bench.plan import CONCURRENCY, Plan
from skillyard.bench.report import Report
from skillyard.bench.schemas import Checked
from skillyard.bench.subject import GivenUp, Skipped
from skillyard.bench.yards import open_yards
from skillyard.client.errors import RunFailed
from skillyard.domain.errors import SandboxFault, SkillyardError
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.render import emit_json
from skillyard.server_process import ServerFailed

Say = Callable[[str], None]


def bench(quick: bool, ready: int | None, output: Path | None, as_json: bool) -> None:
    """What :mod:`skillyard.faces.cli.bench` calls. Raises Failure."""
    plan = Plan.of(quick=quick, ready=ready)
    try:
        report = asyncio.run(_measure(plan, quick, _silent if as_json else _aloud))
    except (WrongResult, RunFailed, ServerFailed) as error:
        raise Failure(f"the benchmark broke off: {error}", code=Exit.FAILED) from error
    if output is not None:
        output.write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        emit_json(report.as_dict())
        return
    from skillyard.bench.tables import show

    show(report)


async def _measure(plan: Plan, quick: bool, say: Say) -> Report:
    began, load = time.perf_counter(), os.getloadavg()[0]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * max(CONCURRENCY)))
    with tempfile.TemporaryDirectory(prefix="skillyard-bench-") as directory:
        home = Path(directory)
        say(f"{plan.ready} sandboxes that wait")
        waiting, skipped = await _idle(home / "idle", plan.ready)
        say("runtimes, servers" + (", numpy and pandas" if plan.data else ""))
        async with open_yards(home) as yards:
            ours, without = await yards.subjects(data=plan.data)
            with open_peers(home, yards.packages) as (peers, absent):
                subjects, given_up = [*ours, *peers], GivenUp()
                say(f"latency, at most {plan.latency_s:.0f} s")
                latencies = await latency.measure(subjects, plan, given_up)
                say("throughput")
                loaded = [subject for subject in subjects if subject.loaded]
                rates = await throughput.measure(loaded, plan, given_up)
            say("ways out")
            ways, closed = await _ways(home / "network", plan)
            say(f"a catalogue of {plan.skills} skills")
            shelf, unread = await _shelf(home / "catalogue", plan.skills)
            say(f"schemas that do not end, {plan.schemas_s:.0f} s")
            checked, unchecked = await _schemas(home / "schemas", plan.schemas_s)
            say("commands")
            starts = await asyncio.to_thread(startup.measure, yards.ready_server.data_dir, plan.starts)
            servers = [server.startup_s for server in (yards.ready_server, yards.demand_server)]
            probe = await yards.native().probe()
    took = time.perf_counter() - began
    failed = [Skipped(s.id, s.title, f"gave up: {given_up[s.id]}") for s in peers if s.id in given_up]
    skips = [*skipped, *without, *absent, *failed, *closed, *unread, *unchecked]
    return Report(
        quick,
        took,
        load,
        subjects,
        latencies,
        rates,
        waiting,
        starts,
        servers,
        probe.enforced(),
        skips,
        ways,
        shelf,
        checked,
    )


async def _idle(home: Path, count: int) -> tuple[Idle | None, list[Skipped]]:
    try:
        return await idle.measure(home, count), []
    except (SandboxFault, TimeoutError) as error:
        reason = str(error) or "they were not ready in time"
        return None, [Skipped("idle", f"{count} ready sandboxes", reason)]


async def _ways(home: Path, plan: Plan) -> tuple[Ways | None, list[Skipped]]:
    try:
        return await network.measure(home, plan.network_rounds, plan.network_bytes), []
    except (SkillyardError, RunFailed, OSError) as error:
        return None, [Skipped("network", "the ways out", " ".join(str(error).split())[:200])]


async def _shelf(home: Path, names: int) -> tuple[Shelf | None, list[Skipped]]:
    home.mkdir()
    try:
        return await catalogue.measure(home, names, versions=5, rounds=40), []
    except (SkillyardError, ServerFailed, TimeoutError, OSError) as error:
        return None, [Skipped("catalogue", "the catalogue", " ".join(str(error).split())[:200])]


async def _schemas(home: Path, seconds: float) -> tuple[Checked | None, list[Skipped]]:
    try:
        return await schemas.measure(home, seconds), []
    except (SkillyardError, ServerFailed, TimeoutError, OSError) as error:
        return None, [Skipped("schemas", "schemas that do not end", " ".join(str(error).split())[:200])]


def _aloud(text: str) -> None:
    click.echo(f"measuring: {text} …", err=True)


def _silent(_: str) -> None:
    """Standard error stays free for errors."""
