"""The stores that the command line changes itself, beside a server that may be running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skillyard.client.discovery import default_data_dir
from skillyard.data_dir import DataDir
from skillyard.domain.principal import LOCAL
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.tokens import FileTokens

if TYPE_CHECKING:
    from skillyard.engine.secrets.book import SecretBook

T = TypeVar("T")


class Wait(Protocol):
    """Runs a store's coroutine to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@contextmanager
def tokens(data_dir: Path | None) -> Iterator[tuple[FileTokens, Wait]]:
    with asyncio.Runner() as runner:
        yield FileTokens(_places(data_dir).tokens, SystemClock()), runner.run


class LocalSecrets:
    """The methods for secrets, over the files of a data directory."""

    def __init__(self, book: SecretBook, wait: Wait) -> None:
        self._book = book
        self._wait = wait

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        from skillyard.engine.secrets.methods import call

        return self._wait(call(self._book, LOCAL, method, params or {}))

    def rotate(self) -> int:
        """Seal everything anew; how many values."""
        from skillyard.engine.secrets.methods import rotate

        return self._wait(rotate(self._book, LOCAL))


@contextmanager
def secrets(data_dir: Path | None) -> Iterator[LocalSecrets]:
    """Of the data directory and as its settings say. Raises InvalidInput, StoreFault."""
    from skillyard.config.settings import load_settings
    from skillyard.engine.secrets.book import SecretBook
    from skillyard.secret_sources import make_secret_store
    from skillyard.stores.sqlite.database import Database
    from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit

    places = _places(data_dir)
    settings = load_settings(data_dir=places.home)
    store = make_secret_store(settings.secrets, places.home)
    with asyncio.Runner() as runner:
        database = runner.run(Database.open(places.database, durable=settings.records.durable))
        try:
            yield LocalSecrets(SecretBook(store, SqliteSecretAudit(database), SystemClock()), runner.run)
        finally:
            runner.run(database.close())


def _places(data_dir: Path | None) -> DataDir:
    return DataDir(data_dir or default_data_dir())
