"""The stores that the command line changes itself, beside a server that may be running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from skillyard.client.discovery import default_data_dir
from skillyard.data_dir import DataDir
from skillyard.stores.clock import SystemClock
from skillyard.stores.secrets import KEY_VARIABLE, SealedSecrets
from skillyard.stores.tokens import FileTokens

T = TypeVar("T")


class Wait(Protocol):
    """Runs a store's coroutine to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@contextmanager
def tokens(data_dir: Path | None) -> Iterator[tuple[FileTokens, Wait]]:
    with asyncio.Runner() as runner:
        yield FileTokens(_places(data_dir).tokens, SystemClock()), runner.run


@contextmanager
def secrets(data_dir: Path | None) -> Iterator[tuple[SealedSecrets, Wait]]:
    import os

    with asyncio.Runner() as runner:
        yield SealedSecrets(_places(data_dir).home, key=os.environ.get(KEY_VARIABLE)), runner.run


def _places(data_dir: Path | None) -> DataDir:
    return DataDir(data_dir or default_data_dir())
