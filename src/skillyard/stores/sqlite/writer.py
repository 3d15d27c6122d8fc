"""Transactions, and the writer thread, which commits together what has queued up."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from skillyard.stores.sqlite.faults import as_fault

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]
"""Reads and writes inside a transaction that it neither begins nor ends. It may run a second time after
its first run was rolled back, so it changes nothing but the database."""


class Done(NamedTuple):
    """The result of an operation, or why it failed (then nothing of it was stored)."""

    value: Any = None
    error: Exception | None = None


def transact(connection: sqlite3.Connection, operation: Operation[T]) -> T:
    """Run one operation in an immediate transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        value = operation(connection)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    return value


def commit_together(connection: sqlite3.Connection, operations: Sequence[Operation[Any]]) -> list[Done]:
    """Run operations in one transaction; when one fails, each again in a transaction of its own.

    Raises sqlite3.Error when no transaction can be begun.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = [Done(operation(connection)) for operation in operations]
        connection.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - told to the caller that awaits the operation
        roll_back(connection)
        if len(operations) == 1:
            return [Done(error=error)]
    else:
        return done
    return [_alone(connection, operation) for operation in operations]


def roll_back(connection: sqlite3.Connection) -> None:
    """SQLite has already rolled back after some errors (a full disk is one)."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _alone(connection: sqlite3.Connection, operation: Operation[Any]) -> Done:
    try:
        return Done(transact(connection, operation))
    except Exception as error:  # noqa: BLE001 - told to the caller that awaits the operation
        return Done(error=error)


MAX_BATCH = 256


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """An operation and who waits for it. ``alone``: never in one transaction with another."""

    operation: Operation[Any]
    future: asyncio.Future[Any]
    alone: bool = False


class Writer:
    """Owns one connection. Jobs are committed in the order in which they came, in few transactions.

    All methods but the thread's own are called on the loop.
    """

    def __init__(self, connection: sqlite3.Connection, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._name = name
        self._loop = loop
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._held: Job | None = None
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name=f"skillyard-writer-{name}", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Returns whether every job has been answered."""
        return self._waiting == 0

    def put(self, job: Job) -> None:
        self._waiting += 1
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

    def _next_batch(self) -> list[Job] | None:
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

    def _ready(self) -> Job | None:
        try:
            job = self._queue.get_nowait()
        except Empty:
            return None
        if job is None:
            self._queue.put(None)  # nothing is put after the stop mark: it is found again next time
        return job

    def _commit(self, jobs: Sequence[Job]) -> list[tuple[Job, Done]]:
        try:
            done = commit_together(self._connection, [job.operation for job in jobs])
        except Exception as error:  # noqa: BLE001 - the thread goes on: everybody else's records depend on it
            done = [Done(error=error)] * len(jobs)
        return list(zip(jobs, done, strict=True))

    def _answer(self, count: int, done: Sequence[tuple[Job, Done]]) -> None:
        self._waiting -= count
        answer(done, self._name)


def answer(done: Sequence[tuple[Job, Done]], name: str) -> None:
    """Wake who waits. An error of SQLite becomes a StoreFault."""
    for job, (value, error) in done:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(translated(error, name))


def translated(error: Exception, name: str) -> Exception:
    """Returns an operation's error as a caller of the database sees it."""
    if isinstance(error, sqlite3.Error):
        fault = as_fault(error, name)
        fault.__cause__ = error
        return fault
    return error
