"""``skillyard demo``."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from skillyard._version import __version__
from skillyard.bench.processes import alive, family
from skillyard.bundled import EXAMPLES
from skillyard.client.errors import RunFailed
from skillyard.client.sync import SyncClient
from skillyard.data_dir import DataDir
from skillyard.demo.screen import Screen
from skillyard.demo.story import DemoFailed, Story
from skillyard.domain.protection import LIMITS, WALLS, Level
from skillyard.engine.environments import remove_tree
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.server_process import ServerFailed, ServerProcess

_PATIENCE_S = 120.0
_END_S = 5.0
"""What a keeper may take to end once its server is gone."""


def demo(rows: int, directory: Path | None, keep: bool) -> None:
    """What :mod:`skillyard.faces.cli.demo` calls. Raises Failure."""
    try:
        with _ending_well(), _workplace(directory, keep) as work:
            _show(work, (directory or work).absolute() / "report.md", rows)
            if keep:
                click.echo(f"\nkept: {work}\nserve it: skillyard serve --data-dir {work / 'data'}")
    except (DemoFailed, RunFailed, ServerFailed) as error:
        raise Failure(f"the demo failed: {error}", code=Exit.FAILED) from error


def _show(work: Path, report: Path, rows: int) -> None:
    screen = Screen()
    user = "root" if os.geteuid() == 0 else f"an ordinary user (uid {os.geteuid()})"
    click.secho(f"skillyard {__version__} on Linux {platform.release()}, as {user}", bold=True)
    server = ServerProcess(work / "data", skills_dirs=[EXAMPLES])
    try:
        with screen.step("skillyard serve") as line:
            server.start()
            line.text = f"ready at {server.url}, with a token of its own"
        with SyncClient(data_dir=server.data_dir) as yard:
            record = Story(yard, screen, work, report, rows).tell()
        screen.part("What stood round that run, by its record, and by what, as doctor says")
        _show_walls(screen, record["enforced"], _doctor(work / "doctor"))
        screen.part("It stops")
        with screen.step("SIGTERM") as line:
            line.text = _stopped(server)
    finally:
        server.stop()


def _stopped(server: ServerProcess) -> str:
    """Says what is gone. Raises DemoFailed for a process of the server's keeper that stays."""
    before = family(DataDir(server.data_dir).run)
    server.stop()
    deadline = time.monotonic() + _END_S
    while left := [pid for pid in before if alive(pid)]:
        if time.monotonic() > deadline:
            raise DemoFailed(f"these processes outlived the server: {left}")
        time.sleep(0.01)
    return f"the server, its keeper and {len(before)} processes in all are gone"


def _show_walls(screen: Screen, enforced: Mapping[str, str], protections: Mapping[str, Any]) -> None:
    for title, names in (("walls", WALLS), ("limits", LIMITS)):
        for level in Level:
            chosen = [name for name in names if enforced.get(name, "missing") == level]
            if chosen:
                texts = (_explained(name, protections.get(name, {})) for name in chosen)
                screen.paragraph(f"{title}, {level}", ", ".join(texts))


def _explained(name: str, entry: Mapping[str, Any]) -> str:
    """With what doctor knows beyond the name."""
    parts = [str(entry.get("by", "")), str(entry.get("why", "")), str(entry.get("mend", ""))]
    known = "; ".join(part for part in parts if part and part != name.replace("_", " "))
    return f"{name} ({known})" if known else name


def _doctor(directory: Path) -> Mapping[str, Any]:
    """Its ``protections`` by name. Raises DemoFailed when policy demands more than there is."""
    command = [sys.executable, "-m", "skillyard", "doctor", "--json", "--data-dir", str(directory)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S)
    if done.returncode:
        raise DemoFailed(f"doctor ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    protections: Mapping[str, Any] = json.loads(done.stdout)["protections"]
    return protections


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
