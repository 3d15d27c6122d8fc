"""One SQLite file behind one event loop: quick to write, never in the loop's way for long.

A short write runs **on the loop's own thread** when nothing else is being written. The hop to a writer thread and back
costs more than the write itself, and while the loop computes, a thread that needs the interpreter lock for every step
of SQLite can starve for seconds. Such a write is bounded: that connection never waits for a lock (a busy database sends
the write to the writer thread), never syncs to disk and never checkpoints; beyond the first few, writes that come in
one turn of the loop share a transaction; after one slow transaction the writer thread takes over for a second.

Durability: WAL. A commit survives the death of the process, kill -9 included. With ``durable`` it is also synced to the
disk before it is reported and so survives the loss of power; without, the last commits before a power loss may be gone,
and the file is intact.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from skillyard.domain.errors import StoreFault
from skillyard.stores.disk import give_to_owner
from skillyard.stores.sqlite import migrations
from skillyard.stores.sqlite.faults import as_fault, is_busy
from skillyard.values import dataclass

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]
"""Reads and writes inside a transaction that it neither begins nor ends. It may run a second time after
its first run was rolled back, so it changes nothing but the database."""
Row = tuple[Any, ...]

logger = logging.getLogger(__name__)

OLDEST_SQLITE = (3, 37, 0)
SINGLY = 4
"""Writes of one turn of the loop that are committed on the spot; those beyond wait for its end, together."""
NEAR_BATCH = 32
"""Writes that one turn of the loop commits at most: about one millisecond."""
SLOW_S = 0.1
RESPITE_S = 1.0
CHECKPOINT_EVERY = 200
_MODE_RETRY_S = 0.005
MAX_BATCH = 256
"""Writes that the writer thread commits in one transaction."""
RESTART_PAGES = 4096
"""A log of 16 MiB is made to start over, with writers held back for the few milliseconds that takes."""


class _Done(NamedTuple):
    """The result of an operation, or why it failed (then nothing of it was stored)."""

    value: Any = None
    error: Exception | None = None


def _transact(connection: sqlite3.Connection, operation: Operation[T]) -> T:
    """Run one operation in an immediate transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        value = operation(connection)
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return value


def _commit_together(connection: sqlite3.Connection, operations: Sequence[Operation[Any]]) -> list[_Done]:
    """Run operations in one transaction; when one fails, each again in a transaction of its own.

    Raises sqlite3.Error when no transaction can be begun.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = [_Done(operation(connection)) for operation in operations]
        connection.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - told to the caller that awaits the operation
        _roll_back(connection)
        if len(operations) == 1:
            return [_Done(error=error)]
    else:
        return done
    return [_alone(connection, operation) for operation in operations]


def _roll_back(connection: sqlite3.Connection) -> None:
    """SQLite has already rolled back after some errors (a full disk is one)."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _alone(connection: sqlite3.Connection, operation: Operation[Any]) -> _Done:
    try:
        return _Done(_transact(connection, operation))
    except Exception as error:  # noqa: BLE001 - told to the caller that awaits the operation
        return _Done(error=error)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """An operation and who waits for it. ``alone``: never in one transaction with another."""

    operation: Operation[Any]
    future: asyncio.Future[Any]
    alone: bool = False


class _Writer:
    """Owns one connection. Jobs are committed in the order in which they came, in few transactions.

    All methods but the thread's own are called on the loop.
    """

    def __init__(self, connection: sqlite3.Connection, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._name = name
        self._loop = loop
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._held: _Job | None = None
        self.waiting = 0
        """Jobs that are not answered yet."""
        self._thread = threading.Thread(target=self._run, name=f"skillyard-writer-{name}", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        self.waiting += 1
        self._queue.put(job)

    def stop(self) -> None:
        """Finish what has queued up and end the thread. Blocks; call it off the loop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            done = self._commit([job for job in batch if not job.future.cancelled()])
            try:
                self._loop.call_soon_threadsafe(self._answer, len(batch), done)
            except RuntimeError:  # the loop has closed: nobody waits any more
                return

    def _next_batch(self) -> list[_Job] | None:
        first = self._held or self._queue.get()
        self._held = None
        if first is None or first.alone:
            return None if first is None else [first]
        batch = [first]
        while len(batch) < MAX_BATCH and (job := self._ready()) is not None:
            if job.alone:
                self._held = job
                break
            batch.append(job)
        return batch

    def _ready(self) -> _Job | None:
        try:
            job = self._queue.get_nowait()
        except Empty:
            return None
        if job is None:
            self._queue.put(None)  # nothing is put after the stop mark: it is found again next time
        return job

    def _commit(self, jobs: Sequence[_Job]) -> list[tuple[_Job, _Done]]:
        try:
            done = _commit_together(self._connection, [job.operation for job in jobs])
        except Exception as error:  # noqa: BLE001 - the thread goes on: everybody else's records depend on it
            done = [_Done(error=error)] * len(jobs)
        return list(zip(jobs, done, strict=True))

    def _answer(self, count: int, done: Sequence[tuple[_Job, _Done]]) -> None:
        self.waiting -= count
        _answer(done, self._name)


def _answer(done: Sequence[tuple[_Job, _Done]], name: str) -> None:
    """Wake who waits. An error of SQLite becomes a StoreFault."""
    for job, (value, error) in done:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(_translated(error, name))


def _translated(error: Exception, name: str) -> Exception:
    """Returns an operation's error as a caller of the database sees it."""
    if isinstance(error, sqlite3.Error):
        fault = as_fault(error, name)
        fault.__cause__ = error
        return fault
    return error


@dataclass(frozen=True, slots=True)
class _Connections:
    near: sqlite3.Connection
    """On the loop's thread: short writes and single rows."""
    far: sqlite3.Connection
    """The writer thread's."""
    reader: sqlite3.Connection
    """The reader thread's: long reads and checkpoints."""


class Database:
    """Made by :meth:`open`, ended by :meth:`close`, used from the loop that opened it."""

    def __init__(self, path: Path, connections: _Connections, *, durable: bool) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._near = connections.near
        self._writer = _Writer(connections.far, path.name, self._loop)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix=f"skillyard-reader-{path.name}")
        self._near_from = float("inf") if durable else 0.0
        self._in_turn = False
        self._written = 0
        self._turn: list[_Job] = []
        self._since_checkpoint = 0
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, durable: bool = False, busy_timeout_s: float = 10.0) -> Database:
        """Opens or makes the file (0600, in a 0700 directory) and brings its schema up to date.

        Raises StoreFault, naming cause and remedy, when it is damaged, locked for ``busy_timeout_s``, not writable,
        another application's, or of a newer skillyard.
        """
        connections = await asyncio.to_thread(_connect_all, path, durable, busy_timeout_s)
        return cls(path, connections, durable=durable)

    async def execute(self, sql: str, values: Sequence[Any]) -> int:
        """Runs one statement, which is a transaction by itself; returns how many rows it changed.

        Raises as :meth:`write`.
        """
        return await self.write(lambda connection: connection.execute(sql, values).rowcount, single=True)

    async def write(self, operation: Operation[T], *, single: bool = False) -> T:
        """Run a short operation in a transaction; it is committed when this returns. ``single`` is for an operation of
        one statement.

        Raises what the operation raises, and StoreFault for SQLite's errors; nothing is stored then.
        A cancelled write may or may not be stored.
        """
        if self._written < SINGLY and not self._turn and self._may_be_near():
            self._begin_turn()
            self._written += 1
            started = time.perf_counter()
            try:
                return operation(self._near) if single else _transact(self._near, operation)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise as_fault(error, self._path.name) from error
            finally:
                self._count(1, started)
        return await self.submit(operation)

    def submit(self, operation: Operation[T], *, alone: bool = False) -> asyncio.Future[T]:
        """Queue an operation; it is stored even if nobody awaits the future. Those queued run in order.

        ``alone`` gives it a transaction of its own, in the writer thread: for operations that also touch
        files and for long ones. No write of anyone's is unfinished while it runs.
        """
        self._check_open()
        job = _Job(operation, self._loop.create_future(), alone)
        if not alone and self._may_be_near():
            self._turn.append(job)
            self._begin_turn()
        else:
            self._hand_over()
            self._writer.put(job)
        return job.future

    async def lookup(self, sql: str, values: Sequence[Any]) -> Row | None:
        """The one row that a unique key selects, read on the loop's thread."""
        self._check_open()
        try:
            rows = self._near.execute(sql, values).fetchall()
        except UnicodeEncodeError:  # half a surrogate pair: no stored text holds it
            return None
        except sqlite3.Error as error:
            if not is_busy(error):
                raise as_fault(error, self._path.name) from error
            rows = await self.fetch(sql, values)
        return rows[0] if rows else None

    async def fetch(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query, read in the reader thread."""
        self._check_open()
        try:
            return await self._loop.run_in_executor(self._readers, self._read, sql, values)
        except UnicodeEncodeError:
            return []
        except sqlite3.Error as error:
            raise as_fault(error, self._path.name) from error

    async def close(self) -> None:
        """Finish what was submitted, fold the log into the file and let go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        await asyncio.to_thread(self._shut)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFault(f"the database {self._path.name} is closed")

    def _may_be_near(self) -> bool:
        self._check_open()
        return not self._writer.waiting and time.monotonic() >= self._near_from

    def _begin_turn(self) -> None:
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._in_turn, self._written = False, 0
        if not self._turn:
            return
        if not self._may_be_near():
            self._hand_over()
            return
        jobs, self._turn = self._turn[:NEAR_BATCH], self._turn[NEAR_BATCH:]
        if self._turn:
            self._begin_turn()
        self._commit_near([job for job in jobs if not job.future.cancelled()])

    def _commit_near(self, jobs: Sequence[_Job]) -> None:
        started = time.perf_counter()
        try:
            done = _commit_together(self._near, [job.operation for job in jobs])
        except sqlite3.Error as error:
            self._refuse_or_hand_over(jobs, error)
            return
        self._count(len(jobs), started)
        _answer(list(zip(jobs, done, strict=True)), self._path.name)

    def _refuse_or_hand_over(self, jobs: Sequence[_Job], error: sqlite3.Error) -> None:
        if is_busy(error):
            for job in jobs:
                self._writer.put(job)
            self._hand_over()
        else:
            _answer([(job, _Done(error=error)) for job in jobs], self._path.name)

    def _hand_over(self) -> None:
        """Give this turn's writes to the writer thread, before anything that is queued later."""
        jobs, self._turn = self._turn, []
        for job in jobs:
            self._writer.put(job)

    def _rest(self) -> None:
        self._near_from = max(self._near_from, time.monotonic() + RESPITE_S)

    def _count(self, writes: int, started: float) -> None:
        if time.perf_counter() - started > SLOW_S:
            self._rest()
        self._since_checkpoint += writes
        if self._since_checkpoint >= CHECKPOINT_EVERY:
            self._since_checkpoint = 0
            self._loop.run_in_executor(self._readers, self._checkpoint)

    def _read(self, sql: str, values: Sequence[Any]) -> list[Row]:
        return self._connections.reader.execute(sql, values).fetchall()

    def _checkpoint(self) -> None:
        """Copies the log into the file beside running writers.

        A log that has grown long starts over.
        """
        try:
            pages = self._connections.reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
            if pages > RESTART_PAGES:
                self._connections.reader.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error as error:
            logger.warning("%s", _translated(error, self._path.name))

    def _shut(self) -> None:
        self._writer.stop()
        self._readers.shutdown()
        for connection in (self._connections.near, self._connections.reader, self._connections.far):
            connection.close()


def _connect_all(path: Path, durable: bool, busy_timeout_s: float) -> _Connections:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreFault(f"Python is linked to SQLite {sqlite3.sqlite_version}; 3.37 or newer is needed")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_to_owner(file, path.parent)  # SQLite gives its other files to the owner of this one
        os.close(file)
    except OSError as error:
        raise StoreFault(f"the database {path} cannot be opened: {error.strerror}") from error
    opened: list[sqlite3.Connection] = []
    try:
        far = _connect(path, opened, durable, busy_timeout_s)
        migrations.migrate(far, str(path), migrations.known())
        near = _connect(path, opened, durable, busy_timeout_s)
        near.execute("PRAGMA busy_timeout = 0")
        near.execute("PRAGMA wal_autocheckpoint = 0")
        reader = _connect(path, opened, durable, busy_timeout_s)
    except BaseException as error:
        for connection in opened:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise as_fault(error, str(path)) from error
        raise
    return _Connections(near=near, far=far, reader=reader)


def _connect(path: Path, opened: list[sqlite3.Connection], durable: bool, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    opened.append(connection)
    _write_ahead(connection, timeout_s)
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute(f"PRAGMA journal_size_limit = {RESTART_PAGES * 4096}")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _write_ahead(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Sets the WAL mode, and tries again while another process does.

    The change ignores SQLite's timeout, and two processes that open a new file meet here.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(_MODE_RETRY_S)
