"""HTTP for the asynchronous client: the one file that knows httpx2."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio
import anyio.to_thread
import httpx2

from skillyard.client.discovery import START_ONE, ServerUrl
from skillyard.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from skillyard.client.transport import CONNECT_TIMEOUT_S, Request, Response

T = TypeVar("T")

_CHUNK = 256 * 1024


class HttpxTransport:
    """A pool of connections to one server. ``client`` brings settings of one's own (certificates, a proxy);
    it is closed with the transport."""

    def __init__(self, url: ServerUrl, client: httpx2.AsyncClient | None = None) -> None:
        self._url = url
        self._client = client or httpx2.AsyncClient(
            verify=url.scheme == "https", trust_env=False, follow_redirects=False
        )

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncGenerator[Response, None]:
        with _translated(self._url):
            response = await self._client.send(self._prepared(request), stream=True)
        try:
            yield _HttpxResponse(response, self._url)
        finally:
            await response.aclose()

    def _prepared(self, request: Request) -> httpx2.Request:
        headers = dict(request.headers)
        if request.length is not None:
            headers["content-length"] = str(request.length)
        return self._client.build_request(
            request.method,
            f"{self._url}{request.path}",
            headers=headers,
            content=request.body,
            timeout=httpx2.Timeout(request.timeout, connect=CONNECT_TIMEOUT_S),
        )

    async def offload(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    async def pause(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def close(self) -> None:
        await self._client.aclose()


class _HttpxResponse:
    def __init__(self, response: httpx2.Response, url: ServerUrl) -> None:
        self._response = response
        self._url = url

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        with _translated(self._url):
            async for chunk in self._response.aiter_raw(_CHUNK):
                yield chunk


@contextmanager
def _translated(url: ServerUrl) -> Iterator[None]:
    """httpx2's errors as ours."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol) as error:
        raise Unreachable(f"cannot connect to {url} ({error or 'timed out'}): {START_ONE}") from error
    except httpx2.TimeoutException as error:
        raise ResponseTimeout(f"{url} kept silent for too long; raise the client's timeout") from error
    except httpx2.TransportError as error:
        raise ConnectionLost(f"the connection to {url} broke: {error or type(error).__name__}") from error
