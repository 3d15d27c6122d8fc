"""``skillyard jail`` as its clients start it: a process with pipes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.work.record import RunRecord
from tests import waiting

BOUND_S = 200
SAME = ("test_known_servers", "test_orders", "test_package_sources", "test_wrap_files")
"""Modules of what a command reads, what the gate answers and what servers do: once is enough."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.stem not in SAME:
        item.add_marker("ordinary")
    item.add_marker(pytest.mark.timeout(400))


@dataclass
class Jails:
    """Starts jails whose state is below ``home``."""

    home: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)
    """Variables of every command."""

    @property
    def env(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SKILLYARD_", "SKILLFLAW_"))}
        return {**clean, "SKILLYARD_DATA_DIR": str(self.home), "SKILLYARD_LIMITS__TIMEOUT_MS": "60000", **self.more}

    def words(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "skillyard", "jail", *args]

    def start(self, *args: str, **named: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        env = {**self.env, **named.pop("env", {})}
        process = subprocess.Popen(self.words(*args), env=env, **{**pipes, **named})
        self.started.append(process)
        return process

    def run(self, *args: str, stdin: bytes = b"", **named: Any) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*args, **named)
        out, err = process.communicate(stdin, timeout=BOUND_S)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def python(self, code: str, *args: str, **named: Any) -> subprocess.CompletedProcess[bytes]:
        """Runs Python code in a jail with these options."""
        return self.run(*args, "--", "python3", "-c", code, **named)

    def records(self) -> list[RunRecord]:
        """Returns the records of ended jails, the latest first."""
        import asyncio

        from skillyard.stores.sqlite.database import Database
        from skillyard.stores.sqlite.records import SqliteRecords

        async def read(home: Path) -> list[RunRecord]:
            database = await Database.open(home / "skillyard.db", durable=False)
            try:
                store = SqliteRecords(database)
                whole = [await store.get(record.run_id) for record in await store.list(None, limit=50)]
                return [record for record in whole if record is not None]
            finally:
                await database.close()

        homes = sorted(each for each in (self.home / "jails").iterdir() if each.name.isdigit())
        found = [record for home in homes for record in asyncio.run(read(home))]
        return sorted(found, key=lambda record: record.created_at, reverse=True)


@pytest.fixture
def jails(tmp_path: Path) -> Iterator[Jails]:
    found = Jails(tmp_path / "data")
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
        process.wait(BOUND_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory to show, beside the places that a sandbox has of its own."""
    base = Path("/srv") if os.access("/srv", os.W_OK) else Path("/var/tmp")
    found = base / f"jailed-{os.getpid()}-{time.monotonic_ns()}"
    found.mkdir()
    yield found
    shutil.rmtree(found)


def marked(word: str) -> list[int]:
    """Returns the processes of this host that have ``word`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(entry.name))
    return found


def until(look: Callable[[], object], what: str, bound_s: float = 30.0) -> None:
    """Waits until ``look`` gives something true."""
    waiting.until(look, bound_s, what)
