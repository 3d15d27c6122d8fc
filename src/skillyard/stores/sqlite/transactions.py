"""Several operations in one SQLite transaction, each with an outcome of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]
"""Reads and writes inside a transaction that it neither begins nor ends. It may run a second time after
its first run was rolled back, so it changes nothing but the database."""


class Done(NamedTuple):
    """What an operation returned, or why it failed (then nothing of it was stored)."""

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
    except Exception as error:  # noqa: BLE001 - told to whoever awaits the operation
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
    except Exception as error:  # noqa: BLE001 - told to whoever awaits the operation
        return Done(error=error)
