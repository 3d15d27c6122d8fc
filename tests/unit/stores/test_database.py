"""The database: what it promises beyond what the stores on it show."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.stores.sqlite import database as module
from skillyard.stores.sqlite import migrations
from skillyard.stores.sqlite.database import Database, Operation

pytestmark = pytest.mark.anyio

INSERT = "INSERT INTO notes (text) VALUES (?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "state.db"


@pytest.fixture(params=[False, True], ids=["near", "durable"])
async def database(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Database]:
    database = await Database.open(path, durable=request.param)
    await database.write(lambda c: c.execute("CREATE TABLE notes (text TEXT UNIQUE)"))
    yield database
    await database.close()


async def texts(database: Database) -> list[str]:
    return [row[0] for row in await database.fetch("SELECT text FROM notes ORDER BY rowid")]


def add(text: str) -> Operation[object]:
    return lambda connection: connection.execute(INSERT, (text,)).rowcount


async def test_files_are_private(database: Database, path: Path) -> None:
    await database.write(add("x"))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_many_writes_at_once_are_all_stored(database: Database) -> None:
    await asyncio.gather(*(database.write(add(str(number))) for number in range(500)))
    assert sorted(await texts(database), key=int) == [str(number) for number in range(500)]


async def test_a_failing_write_fails_alone(database: Database) -> None:
    await database.write(add("taken"))
    asked = [database.write(add(text)) for text in [*"abcdefgh", "taken", *"ijkl"]]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results if result != 1] == [StoreFault]
    assert sorted(await texts(database)) == [*"abcdefghijkl", "taken"]


async def test_an_operation_that_raises_stores_nothing(database: Database) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute(INSERT, ("half",))
        raise LookupError("changed my mind")

    for asked in (database.write(half), database.submit(half, alone=True), database.submit(half)):
        with pytest.raises(LookupError, match="changed my mind"):
            await asked
    assert await texts(database) == []


async def test_submitted_operations_run_in_order(database: Database) -> None:
    operations = [database.submit(add(str(number)), alone=number % 3 == 0) for number in range(50)]
    await asyncio.gather(*operations)
    assert await texts(database) == [str(number) for number in range(50)]


async def test_what_nobody_awaits_is_stored_by_close(path: Path) -> None:
    database = await Database.open(path)
    await database.write(lambda c: c.execute("CREATE TABLE notes (text TEXT)"))
    for number in range(10):
        database.submit(add(str(number)), alone=number % 2 == 0)
    await database.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (10,)


async def test_an_operation_alone_sees_no_unfinished_write_of_others(database: Database, path: Path) -> None:
    def committed(_: sqlite3.Connection) -> int:
        with closing(sqlite3.connect(path)) as other:
            count: int = other.execute("SELECT count(*) FROM notes").fetchone()[0]
            return count

    before = [database.submit(add(str(number))) for number in range(10)]
    seen = database.submit(committed, alone=True)
    after = [database.submit(add(str(number))) for number in range(10, 20)]
    await asyncio.gather(*before, *after)
    assert await seen == 10


async def test_a_cancelled_write_that_has_not_begun_is_not_stored(database: Database) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(_: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)

    holding = database.submit(hold, alone=True)
    await begun.wait()
    waiting = asyncio.ensure_future(database.write(add("cancelled")))
    await asyncio.sleep(0)
    waiting.cancel()
    gate.set()
    await holding
    await database.write(add("later"))
    assert await texts(database) == ["later"]


async def test_the_loop_runs_while_another_process_holds_the_lock(database: Database, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(database.write(add("patient")))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("COMMIT")
    assert await waiting == 1


async def test_a_lock_held_too_long_is_a_fault(path: Path) -> None:
    database = await Database.open(path, busy_timeout_s=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        asked = [database.write(lambda c: c.execute("DELETE FROM runs")) for _ in range(10)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert all("locked by another process" in str(result) for result in results)
    await database.write(lambda c: c.execute("DELETE FROM runs"))
    await database.close()


async def test_the_log_stays_small(database: Database, path: Path) -> None:
    text, read = "x" * 20_000, asyncio.ensure_future(database.fetch("SELECT 1"))
    for start in range(0, 2400, 200):
        await asyncio.gather(*(database.write(add(f"{text}{start + n}")) for n in range(200)))
        await (
            read
        )  # behind the last checkpoint, in the same thread: that of one round runs beside the next one's writes
        read = asyncio.ensure_future(database.fetch("SELECT 1"))
    await read
    assert Path(f"{path}-wal").stat().st_size < 5 * module.RESTART_PAGES * 4096 // 2


async def test_after_close_nothing_works_and_the_log_is_folded_in(path: Path) -> None:
    database = await Database.open(path)
    await database.write(lambda c: c.execute("CREATE TABLE notes (text TEXT)"))
    await database.close()
    await database.close()
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]
    for asked in (database.write(add("x")), database.fetch("SELECT 1"), database.lookup("SELECT 1", ())):
        with pytest.raises(StoreFault, match="closed"):
            await asked


async def test_a_newer_database_is_refused_and_left_alone(path: Path) -> None:
    await (await Database.open(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    before = path.read_bytes()
    with pytest.raises(StoreFault, match=r"newer skillyard.*upgrade"):
        await Database.open(path)
    assert path.read_bytes() == before


async def test_another_applications_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreFault, match="another application"):
        await Database.open(path)


@pytest.mark.parametrize("damage", ["garbage", "truncated"])
async def test_a_damaged_database_is_a_fault(path: Path, damage: str) -> None:
    database = await Database.open(path)
    await database.write(lambda c: c.execute("CREATE TABLE notes (text TEXT)"))
    await database.close()
    path.write_bytes(b"no database" * 1000 if damage == "garbage" else path.read_bytes()[:5000])
    with pytest.raises(StoreFault, match=r"no SQLite database|is damaged"):
        await Database.open(path)


async def test_a_path_that_cannot_be_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFault, match="cannot be opened"):
        await Database.open(tmp_path / "file" / "state.db")
    with pytest.raises(StoreFault, match="cannot be opened"):
        await Database.open(tmp_path)


def test_migrations_apply_from_every_earlier_version(tmp_path: Path) -> None:
    known = migrations.known()
    schemas = []
    for start in range(len(known) + 1):
        with closing(sqlite3.connect(tmp_path / str(start), isolation_level=None)) as connection:
            migrations.migrate(connection, "x", known[:start])
            migrations.migrate(connection, "x", known)
            migrations.migrate(connection, "x", known)
            schemas.append(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall())
            assert connection.execute("PRAGMA user_version").fetchone() == (len(known),)
    assert all(schema == schemas[0] for schema in schemas)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    broken = migrations.Migration(2, "0002_broken.sql", "CREATE TABLE b (x);\nCREATE TABLE a (x);\n")
    first = migrations.Migration(1, "0001_a.sql", "CREATE TABLE a (x);\n")
    with closing(sqlite3.connect(tmp_path / "x", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            migrations.migrate(connection, "x", [first, broken])
        assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
        assert connection.execute("PRAGMA user_version").fetchone() == (0,)


OPENER = """
import asyncio, sys
from pathlib import Path
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.database import Operation

async def main():
    database = await Database.open(Path(sys.argv[1]))
    for number in range(50):
        await database.write(lambda c: c.execute("UPDATE blob_owners SET count = count"))
    await database.close()

asyncio.run(main())
"""


async def test_several_processes_may_make_it_and_use_it_at_once(path: Path) -> None:
    command = [sys.executable, "-c", OPENER, str(path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
