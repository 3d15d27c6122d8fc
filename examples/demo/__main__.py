"""Does the main job of a Skills Runtime on this machine and shows it: ``./demo``, or ``python -m examples.demo``."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from examples.demo.screen import Screen
from examples.demo.story import DemoFailed, Story
from skillyard._version import __version__
from skillyard.bench.idle import alive, family
from skillyard.bundled import EXAMPLES
from skillyard.client.errors import RunFailed
from skillyard.client.sync import SyncClient
from skillyard.data_dir import DataDir
from skillyard.domain.sandbox.guarantees import AUTO, LIMITS, WALLS, Level
from skillyard.faces.cli.failures import Exit, Failure, reported
from skillyard.sandbox.registry import BACKENDS
from skillyard.server_process import ServerFailed, ServerProcess
from skillyard.stores.disk import remove_tree

_ISOLATION = "SKILLYARD_POLICY__ISOLATION"
_PATIENCE_S = 120.0
_END_S = 5.0
"""What a keeper may take to end once its server is gone."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rows",
    type=click.IntRange(1000, 5_000_000),
    default=300_000,
    show_default=True,
    help="Rows of the table that it makes.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to work, and to leave the report.  [default: a temporary directory]",
)
@click.option("--keep", is_flag=True, help="Leave the data directory, to look at it and to serve it.")
def demo(rows: int, directory: Path | None, keep: bool) -> None:
    """Do the main job of a Skills Runtime on this machine, and show it.

    A server is started with the example skills. A table of several hundred thousand rows becomes a blob, a skill
    summarises it, and code that imports the skill answers a question about it. Hostile code is contained. The demo
    shows each step, its result, its time, and the walls that stood. Nothing is left running.
    """
    try:
        with _ending_well(), _workplace(directory, keep) as work:
            _show(work, (directory or work).absolute() / "report.md", rows)
            if keep:
                click.echo(f"\nkept: {work}\nserve it: skillyard serve --data-dir {work / 'data'}")
    except (DemoFailed, RunFailed, ServerFailed) as error:
        raise Failure(f"the demo failed: {error}", code=Exit.FAILED) from error


def _show(work: Path, report: Path, rows: int) -> None:
    screen = Screen()
    settings = {_ISOLATION: os.environ.get(_ISOLATION, AUTO)}
    user = "root" if os.geteuid() == 0 else f"an ordinary user (uid {os.geteuid()})"
    click.secho(f"skillyard {__version__} on Linux {platform.release()}, as {user}", bold=True)
    with screen.step("skillyard doctor") as line:
        told = _doctor(work / "doctor", settings)
        line.text = f"runs will be isolated by '{told['isolation']}'"
    _warn(told)
    server = ServerProcess(work / "data", skills_dirs=[EXAMPLES], settings=settings)
    try:
        with screen.step("skillyard serve") as line:
            server.start()
            line.text = f"ready at {server.url}, with a token of its own"
        with SyncClient(data_dir=server.data_dir) as yard:
            record = Story(yard, screen, work, report, rows).tell()
        screen.part("What stood round that run, by its record, and by what, as doctor says")
        _show_walls(screen, record["enforced"], told)
        _warn(told)
        screen.part("It stops")
        with screen.step("SIGTERM") as line:
            line.text = _stopped(server)
    finally:
        server.stop()


def _stopped(server: ServerProcess) -> str:
    """Says what is gone. Raises DemoFailed for a process of the server's keeper that stays."""
    run_dir = DataDir(server.data_dir).run
    before = [pid for place in (run_dir, *(run_dir / name for name in BACKENDS)) for pid in family(place)]
    server.stop()
    deadline = time.monotonic() + _END_S
    while left := [pid for pid in before if alive(pid)]:
        if time.monotonic() > deadline:
            raise DemoFailed(f"these processes outlived the server: {left}")
        time.sleep(0.01)
    return f"the server, its keeper and {len(before)} processes in all are gone"


def _show_walls(screen: Screen, enforced: Mapping[str, str], told: Mapping[str, Any]) -> None:
    """Mends only where this isolation is the strongest: what would mend another is said once, beside this."""
    details = ("by", "why") if told["passed_over"] else ("by", "why", "mend")
    for title, names in (("walls", WALLS), ("limits", LIMITS)):
        for level in Level:
            chosen = [name for name in names if enforced.get(name, "missing") == level]
            if chosen:
                texts = (_explained(name, told["protections"].get(name, {}), details) for name in chosen)
                screen.paragraph(f"{title}, {level}", ", ".join(texts))


def _explained(name: str, entry: Mapping[str, Any], details: Sequence[str]) -> str:
    """With what doctor knows beyond the name."""
    parts = [str(entry.get(detail, "")) for detail in details]
    known = "; ".join(part for part in parts if part and part != name.replace("_", " "))
    return f"{name} ({known})" if known else name


def _warn(told: Mapping[str, Any]) -> None:
    """Loudly, when this machine closes what the strongest isolation needs."""
    for stronger, why in told["passed_over"].items():
        click.secho(
            f"\n  '{stronger}' does not stand on this machine, so this demo runs with '{told['isolation']}'.\n  {why}",
            fg="yellow",
            bold=True,
        )


def _doctor(directory: Path, settings: Mapping[str, str]) -> Mapping[str, Any]:
    """Its report. Raises DemoFailed when policy demands more than there is."""
    command = [sys.executable, "-m", "skillyard", "doctor", "--json", "--data-dir", str(directory)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        env={**os.environ, **settings},
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise DemoFailed(f"doctor ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    told: Mapping[str, Any] = json.loads(done.stdout)
    if done.returncode:
        short = told["facts"].get("why") or f"these are missing: {', '.join(told['mandatory_missing'])}"
        raise DemoFailed(f"no sandbox can be made here: {short}; {told['facts'].get('mend', '')}".rstrip("; "))
    return told


@contextmanager
def _workplace(directory: Path | None, keep: bool) -> Iterator[Path]:
    """A new directory of our own, removed at the end unless it is wanted."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="skillyard-demo-", dir=directory)).absolute()
    try:
        yield work
    finally:
        if not keep:
            remove_tree(work)  # a data directory holds read-only directories


@contextmanager
def _ending_well() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that the server is stopped."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    with reported():
        demo(standalone_mode=False)
