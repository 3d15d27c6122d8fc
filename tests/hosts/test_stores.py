"""What a host does to a data directory: it is explained, nothing is changed that is not understood, nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.data_dir import DataDir, DataDirUnusable
from skillyard.domain.errors import StoreFault
from skillyard.stores.sqlite.database import Database
from skillyard.testing.twin_sandbox import TwinBackend
from tests.hosts.conftest import Host
from tests.unit.engine.fakes import succeed

CODE = "def main(args): return {}\n"
PAGE = 4096
RUNS = 20


def opened(data: Path) -> SyncRuntime:
    return SyncRuntime(data, backend=TwinBackend(succeed))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that was used: some runs, a blob in its row and one in a file."""
    place = tmp_path / "data"
    with opened(place) as runtime:
        for _ in range(RUNS):
            runtime.run_code(CODE)
        runtime.put_blob(b"small")
        runtime.put_blob(os.urandom(3 * PAGE))
    return place


def contents(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file() and path.name != "lock"}


def overwrite(place: Path, at: int, text: bytes) -> None:
    with (place / "skillyard.db").open("r+b") as file:
        file.seek(at)
        file.write(text)


def every_page(place: Path, step: int = PAGE) -> None:
    """But the first."""
    for at in range(PAGE, (place / "skillyard.db").stat().st_size, step):
        overwrite(place, at, b"\xff" * PAGE)


def statement(sql: str) -> Callable[[Path], None]:
    def work(place: Path) -> None:
        with closing(sqlite3.connect(place / "skillyard.db")) as connection:
            connection.execute(sql)
            connection.commit()

    return work


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no database": (lambda place: overwrite(place, 0, b"garbage!"), "is no SQLite database; move the file away"),
    "all pages": (every_page, "is damaged; restore it"),
    "cut short": (lambda place: os.truncate(place / "skillyard.db", 5000), "is damaged|is no SQLite database"),
    "a table is gone": (statement("DROP TABLE runs"), "lacks table runs: something else changed it; restore"),
    "an index is gone": (statement("DROP INDEX runs_live"), "lacks index runs_live"),
    "a newer one's": (statement("PRAGMA user_version = 99"), r"newer skillyard \(its schema is 99.*upgrade skillyard"),
    "another program's": (statement("PRAGMA application_id = 7"), "another application; choose another data directory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_database_that_cannot_be_trusted_is_named_and_left_alone(name: str, data: Path) -> None:
    damage, says = REFUSED[name]
    damage(data)
    before = contents(data)
    with pytest.raises(StoreFault, match=says), opened(data):
        pass
    assert contents(data) == before


def test_a_damaged_page_is_told_when_it_is_read_and_nothing_hangs(data: Path) -> None:
    every_page(data, 2 * PAGE)
    with pytest.raises(StoreFault, match="is damaged; restore it"):
        _use(data)


def _use(data: Path) -> None:
    with opened(data) as runtime:
        runtime.run_code(CODE)
        runtime.list_blobs()
        runtime.list_runs(limit=500)


def test_a_damaged_log_is_not_replayed(data: Path) -> None:
    """What is not whole in it was never committed (sqlite.org/walformat.html)."""
    (data / "skillyard.db-wal").write_bytes(os.urandom(5 * PAGE))
    with opened(data) as runtime:
        assert len(runtime.list_runs(limit=500)["runs"]) == RUNS


WORKS_ON = f"""
import sys
from pathlib import Path
from skillyard import SyncRuntime
from skillyard.testing.twin_sandbox import TwinBackend
from tests.unit.engine.fakes import succeed

runtime = SyncRuntime(Path(sys.argv[1]), backend=TwinBackend(succeed))
runtime.open()
for _ in range({RUNS}):
    runtime.run_code("def main(args): return {{}}")
print("done", flush=True)
sys.stdin.read()
"""


def test_a_log_that_was_cut_short_loses_its_last_commits_and_nothing_else(tmp_path: Path) -> None:
    """As after a power loss without ``records.durable``."""
    place, root = tmp_path / "data", Path(__file__).parents[2]
    command = [sys.executable, "-c", WORKS_ON, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    log = place / "skillyard.db-wal"
    os.truncate(log, log.stat().st_size // 2)
    with opened(place) as runtime:
        left = runtime.list_runs(limit=500)["runs"]
        assert 0 < len(left) < RUNS
        assert {run["status"] for run in left} <= {"completed", "failed"}
        assert runtime.run_code(CODE).run_id


def test_blobs_whose_files_are_gone_are_named_and_others_stay(data: Path) -> None:
    for path in (data / "blobs" / "sha256").rglob("*"):
        if path.is_file():
            path.unlink()
    with opened(data) as runtime:
        by_size = {blob["size_bytes"]: blob["blob_id"] for blob in runtime.list_blobs()["blobs"]}
        assert b"".join(runtime.stream_blob(by_size[5])) == b"small"
        with pytest.raises(StoreFault, match="missing or damaged; restore the blob directory"):
            list(runtime.stream_blob(by_size[3 * PAGE]))
        assert runtime.put_blob(os.urandom(3 * PAGE)).size_bytes == 3 * PAGE


@pytest.mark.parametrize("name", ["blobs", "run", "snapshots", "environments", "skills"])
def test_a_directory_of_ours_that_is_gone_is_made_again(name: str, data: Path) -> None:
    shutil.rmtree(data / name, ignore_errors=True)
    with opened(data) as runtime:
        assert len(runtime.list_runs(limit=500)["runs"]) == RUNS
        assert runtime.put_blob(os.urandom(3 * PAGE)).size_bytes == 3 * PAGE


@pytest.mark.parametrize("name", ["blobs", "environments", "skills"])
def test_a_file_where_a_directory_should_be_is_named(name: str, data: Path) -> None:
    shutil.rmtree(data / name)
    (data / name).touch()
    with pytest.raises((StoreFault, DataDirUnusable), match=r"File exists|Not a directory"), opened(data):
        pass


def test_blobs_that_vanish_under_a_runtime_are_named(data: Path) -> None:
    with opened(data) as runtime:
        shutil.rmtree(data / "blobs")
        with pytest.raises(StoreFault, match="blob store"):
            runtime.put_blob(os.urandom(3 * PAGE))
        assert runtime.put_blob(b"in a row").size_bytes == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory to another user takes root")
def test_another_users_directory_is_refused(data: Path) -> None:
    os.chown(data, 12345, 12345)
    with pytest.raises(DataDirUnusable, match="belongs to the user id 12345"), opened(data):
        pass
    with pytest.raises(DataDirUnusable, match="belongs to the user id 12345"), DataDir(data).restored():
        pass
    os.chown(data, 0, 0)


def test_a_directory_that_is_open_to_all_is_closed(data: Path) -> None:
    data.chmod(0o777)
    with opened(data):
        assert data.stat().st_mode & 0o777 == 0o700


def test_tokens_that_others_can_read_are_refused(host: Host) -> None:
    assert host.run("token", "create", "someone").returncode == 0
    (host.data_dir / "tokens.json").chmod(0o644)
    done = host.run("token", "list")
    assert done.returncode != 0
    assert "run: chmod 600" in done.stderr


def test_a_database_that_another_process_holds_is_told_after_a_while(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Database.open
    monkeypatch.setattr(Database, "open", lambda path, **more: real(path, **more, busy_timeout_s=0.2))
    with opened(data) as runtime, another(data) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFault, match="locked by another process; end that process or try again"):
            runtime.run_code(CODE)
        other.execute("COMMIT")
        assert runtime.run_code(CODE).run_id


def test_a_database_that_another_process_holds_for_a_moment_costs_time_only(data: Path) -> None:
    with opened(data) as runtime, another(data) as other:
        other.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.5, lambda: other.execute("COMMIT"))
        ending.start()
        assert runtime.run_code(CODE).run_id
        ending.join()


def another(data: Path) -> Any:
    return closing(sqlite3.connect(data / "skillyard.db", isolation_level=None, check_same_thread=False))


@pytest.fixture
def read_only(data: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        yield from _closed_by_modes(data)
        return
    if subprocess.run(["mount", "--bind", str(data), str(data)], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(data)], check=True, capture_output=True)
        yield data
    finally:
        subprocess.run(["umount", str(data)], check=True, capture_output=True)


def _closed_by_modes(data: Path) -> Iterator[Path]:
    paths = [*sorted(data.rglob("*")), data]
    modes = {path: path.stat().st_mode & 0o777 for path in paths}
    for path in paths:
        path.chmod(modes[path] & 0o555)
    yield data
    for path in reversed(paths):
        path.chmod(modes[path])


def test_a_directory_that_cannot_be_written_is_named(read_only: Path) -> None:
    """Its owner may open his own directory again, so an ordinary user meets the files."""
    says = "Read-only file system; name another with --data-dir" if os.geteuid() == 0 else "cannot be|Permission denied"
    with pytest.raises((DataDirUnusable, StoreFault, PermissionError), match=says):
        opened(read_only).open()
