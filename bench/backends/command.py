"""The command ``python -m bench backends``: which backends and parts, and where the results go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest

from bench.backends import held
from bench.backends.components import COMPONENTS, Component, Lacking
from bench.backends.cost import Plan, measure
from bench.backends.journal import Journal, of_battery, of_suite
from bench.backends.page import put, tables
from skillyard.sandbox.registry import BACKENDS
from skillyard.stores.disk import remove_tree

PARTS = ("conformance", "battery", "programs", "cost")


@click.command("backends")
@click.option("--only", multiple=True, type=click.Choice(list(BACKENDS)), help="Measure these backends alone.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Measure these parts alone.")
@click.option("--quick", is_flag=True, help="A few checks, attacks, programs and runs: a sign of life.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Turns in which costs are measured.  [default: 15]")
@click.option("--runs", type=click.IntRange(4, 1000), help="Runs, four at a time, in one turn.  [default: 100]")
@click.option(
    "--results", type=click.Path(path_type=Path, file_okay=False), help="Keep results there, and add to them."
)
@click.option("--failed", is_flag=True, help="Try again what failed in the results, and keep the rest.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Put the tables there.")
def backends(
    only: Sequence[str],
    parts: Sequence[str],
    quick: bool,
    rounds: int | None,
    runs: int | None,
    results: Path | None,
    failed: bool,
    page: Path | None,
) -> None:
    """Compare the backends: what each holds, and what it costs.

    Starts the real component of each, names those that are lacking, and writes markdown. Without --only and --part all
    of it is measured, which takes hours. With --results a later call adds to what earlier ones measured, and a suite
    or a battery that was ended in the middle goes on.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # what was started is ended
    plan = Plan.of(quick=quick, rounds=rounds, runs=runs)
    with ExitStack() as stack:
        place = results or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place.mkdir(parents=True, exist_ok=True)
        for name in only or BACKENDS:
            file = place / f"{name}.json"
            found = json.loads(file.read_text("utf-8")) if file.exists() else {}
            for part in parts or PARTS:
                journal, whole = place / f"{name}.{part}.jsonl", place / f"{name}.{part}.done.jsonl"
                if failed and whole.exists():
                    whole.replace(journal)
                    Journal(journal).forget_failed()
                found |= _measured(name, part, plan, journal, quick=quick)
                file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
                if journal.exists() and "error" not in found.get(part, {"error": "lacking"}):
                    journal.replace(whole)
                if "lacking" in found:
                    break
        told = {name: found for name in BACKENDS if (found := _found(name, place))}
    text = tables(told, list(told))
    if page is not None:
        put(page, text)
    else:
        click.echo(text, nl=False)


def _found(name: str, place: Path) -> dict[str, Any]:
    """Returns the results of a backend, with those of suites and batteries that were ended in the middle."""
    path = place / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for part, told in (("conformance", of_suite), ("battery", of_battery)):
        if "counts" not in found.get(part, {}) and (lines := Journal(place / f"{name}.{part}.jsonl").lines()):
            found[part] = told(lines) | {"ended_after": len(lines)}
    return found


def _measured(name: str, part: str, plan: Plan, journal: Path, *, quick: bool) -> dict[str, Any]:
    """Returns the results of one part, in a directory of its own."""
    if name not in COMPONENTS:
        return {"lacking": "this table has no component for it: bench/backends/components.py"}
    scratch = Path(tempfile.mkdtemp(prefix="skb-"))
    began = time.monotonic()
    try:
        with COMPONENTS[name](_made(scratch / "c")) as component:
            _say(f"{name}: {part}")
            done = asyncio.run(_part(part, name, component, _made(scratch / "w"), plan, journal, quick=quick))
            versions = {key: " ".join(text.split()) for key, text in component.versions.items()}
            bare = component.bare.title if component.bare else ""
    except (Lacking, pytest.skip.Exception) as why:
        return {"lacking": str(why)}
    except Exception as error:  # noqa: BLE001 - also a component's own failure is a result, and others go on
        done, versions, bare = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}, {}, ""
        _say(f"{name}: {part}: {done['error']}")
    finally:
        remove_tree(scratch)
    host = {"root": os.geteuid() == 0, "processors": len(os.sched_getaffinity(0))}
    done["took_s"] = round(time.monotonic() - began)
    return {part: done, "host": host, **({"versions": versions, "bare": bare} if versions else {})}


async def _part(
    part: str, name: str, component: Component, home: Path, plan: Plan, journal: Path, *, quick: bool
) -> dict[str, Any]:
    doing: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "conformance": lambda: held.conformance(name, component, home, journal, _say, quick=quick),
        "battery": lambda: held.battery(name, component, journal, _say, quick=quick),
        "programs": lambda: held.programs(name, component, home / "data", _say, quick=quick),
        "cost": lambda: measure(name, component, home, plan),
    }
    return await doing[part]()


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _say(text: str) -> None:
    click.echo(text, err=True)
