"""The client for callers without an event loop: the same calls over a blocking transport."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from skillyard.client.blocking import BlockingTransport, drive
from skillyard.client.calling import blocking
from skillyard.client.client import Client
from skillyard.client.discovery import Server, ServerUrl
from skillyard.client.exchange import Transport
from skillyard.client.methods import SyncProtocolMethods

T = TypeVar("T")


class SyncClient(SyncProtocolMethods):
    """:class:`Client` without ``await``. Starts no loop and no thread; may be shared between threads."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        retries: int = 2,
        transport: Callable[[ServerUrl], Transport] = BlockingTransport,
    ) -> None:
        self._inner: Client = Client(
            url, token, data_dir=data_dir, timeout=timeout, retries=retries, transport=transport
        )

    @property
    def server(self) -> Server:
        return self._inner.server

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return drive(coroutine)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = blocking(Client.close)
    put_blob = blocking(Client.put_blob)
    get_blob = blocking(Client.get_blob)
    publish_skill = blocking(Client.publish_skill)
    export_skill = blocking(Client.export_skill)

    def stream_blob(self, blob_id: str, *, offset: int = 0, length: int | None = None) -> Generator[bytes, None, None]:
        """The bytes of a blob as they come."""
        chunks = self._inner.stream_blob(blob_id, offset=offset, length=length)
        try:
            while True:
                try:
                    yield drive(anext(chunks))
                except StopAsyncIteration:
                    return
        finally:
            drive(chunks.aclose())
