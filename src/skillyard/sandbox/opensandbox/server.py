"""Calls to an OpenSandbox server through its SDK, and the meaning of their failures.

Nothing is taken from the SDK's variables, and nothing is told beyond the calls: no metrics, and no address of ours.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from skillyard.config.backends import OpenSandboxSettings
from skillyard.domain.errors import BackendAway, SandboxFault, SandboxGone
from skillyard.sandbox.opensandbox.http_entry import PORT
from skillyard.values import dataclass

FILLER, FROM = "skillyard.filler", "skillyard.from"
"""Metadata: the data directory that fills a sandbox for a snapshot, and the snapshot that one was made of."""
NOTHING = "none"
"""Metadata of a snapshot's sandbox pass on to those that are made of it, unless they have their own."""
_PAGE = 100
_SNAPSHOT_S, _LOOK_S = 300.0, 0.1
_MOST_PAGES = 100
_MOST_SAID = 300
_PART = 60
_RUNNING, _ENDED = frozenset({"running", "pending", "creating"}), 404
_MEND = "pip install 'skillyard[opensandbox]'"


@dataclass(frozen=True, slots=True)
class Remote:
    """A sandbox as the server tells of it. ``started`` is by the server's clock."""

    id: str
    metadata: Mapping[str, str]
    started: float
    running: bool


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox to be made. It lives for ``ttl_s``."""

    image: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    metadata: Mapping[str, str]
    cpus: float
    memory: int
    """Bytes."""
    ttl_s: int
    snapshot: str = ""
    """It is made of that one in the place of the image."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as the server tells of it. ``state`` is in small letters, and ``made`` by the server's clock."""

    id: str
    name: str
    state: str
    made: float


class Server:
    """The server that ``settings`` name. Nothing is opened before the first call."""

    def __init__(self, settings: OpenSandboxSettings) -> None:
        self._settings = settings
        self._transport: Any = None
        self._calls: Any = None

    async def create(self, order: Order) -> str:
        """Returns the id of a new sandbox that nothing can leave. Raises SandboxFault."""
        with self._told():
            from opensandbox.models.sandboxes import NetworkPolicy, SandboxImageSpec

            made = await self._sdk().create_sandbox(
                spec=None if order.snapshot else SandboxImageSpec(image=order.image),
                snapshot_id=order.snapshot or None,
                entrypoint=list(order.command),
                env=dict(order.variables),
                metadata={FILLER: NOTHING, FROM: order.snapshot or NOTHING, **order.metadata},
                timeout=timedelta(seconds=order.ttl_s),
                resource={"cpu": f"{round(order.cpus * 1000)}m", "memory": f"{order.memory >> 20}Mi"},
                # Without a policy, and with an empty one, everything is allowed.
                network_policy=NetworkPolicy(defaultAction="deny", egress=[]),
                extensions={},
                volumes=None,
            )
            return str(made.id)

    async def endpoint(self, id: str) -> tuple[str, Mapping[str, str]]:
        """Returns the address of the door, and headers for each request. Raises SandboxGone, SandboxFault."""
        with self._told():
            given = await self._sdk().get_sandbox_endpoint(id, PORT, self._settings.use_server_proxy)
            address = str(given.endpoint)
            headers = {str(name): str(value) for name, value in (given.headers or {}).items()}
        if self._settings.use_server_proxy and (key := self._settings.key()):
            headers["OPEN-SANDBOX-API-KEY"] = key
        return address if "://" in address else f"{self._settings.protocol}://{address}", headers

    async def renew(self, id: str, ttl_s: int) -> None:
        """Has a sandbox end in ``ttl_s``. Raises SandboxGone, SandboxFault."""
        with self._told():
            await self._sdk().renew_sandbox_expiration(id, datetime.now(UTC) + timedelta(seconds=ttl_s))

    async def kill(self, id: str) -> None:
        """Ends a sandbox. It does nothing where the sandbox is gone. Raises SandboxFault."""
        try:
            with self._told():
                await self._sdk().kill_sandbox(id)
        except SandboxGone:
            return

    async def find(self, id: str) -> Remote | None:
        """Returns a sandbox by its id; None for one that the server does not have. Raises SandboxFault."""
        try:
            with self._told():
                return _remote(await self._sdk().get_sandbox_info(id))
        except SandboxGone:
            return None

    async def list(self, metadata: Mapping[str, str]) -> AsyncIterator[Remote]:
        """Yields the sandboxes with all of that metadata. Raises SandboxFault."""
        for page in range(1, _MOST_PAGES + 1):
            with self._told():
                from opensandbox.models.sandboxes import SandboxFilter

                asked = SandboxFilter(metadata=dict(metadata), page=page, page_size=_PAGE)
                found = await self._sdk().list_sandboxes(asked)
                ours = [_remote(one) for one in found.sandbox_infos]
                more = bool(found.pagination.has_next_page)
            for one in ours:
                # The filter is the server's word; a sandbox of somebody else is never taken for ours.
                if all(one.metadata.get(name) == value for name, value in metadata.items()):
                    yield one
            if not more:
                return

    async def snapshot(self, id: str, name: str) -> str:
        """Makes a snapshot of a sandbox; returns its id when it is ready. Raises SandboxFault."""
        with self._told():
            from opensandbox.models.sandboxes import CreateSnapshotRequest

            made = _snapshot(await self._sdk().create_snapshot(id, CreateSnapshotRequest(name=name)))
        async with asyncio.timeout(_SNAPSHOT_S):
            while made.state == "creating":
                await asyncio.sleep(_LOOK_S)
                with self._told():
                    made = _snapshot(await self._sdk().get_snapshot(made.id))
        if made.state != "ready":
            raise SandboxFault("the server made no snapshot of a sandbox")
        return made.id

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yields all snapshots that the server shows us. Raises SandboxFault."""
        for page in range(1, _MOST_PAGES + 1):
            with self._told():
                from opensandbox.models.sandboxes import SnapshotFilter

                found = await self._sdk().list_snapshots(SnapshotFilter(page=page, page_size=_PAGE))
                ours = [_snapshot(one) for one in found.snapshot_infos]
                more = bool(found.pagination.has_next_page)
            for one in ours:
                yield one
            if not more:
                return

    async def forget(self, snapshot: str) -> None:
        """Removes a snapshot. It does nothing where the snapshot is gone. Raises SandboxFault."""
        with suppress(SandboxGone), self._told():
            await self._sdk().delete_snapshot(snapshot)

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = self._calls = None

    def _sdk(self) -> Any:
        """Returns the SDK's calls. Raises SandboxFault where it is not installed."""
        if self._calls is None:
            try:
                from opensandbox.adapters.sandboxes_adapter import SandboxesAdapter
                from opensandbox.config import ConnectionConfig

                from skillyard.sandbox.opensandbox.transport import BoundedTransport
            except ImportError as error:
                raise SandboxFault(f"OpenSandbox's SDK is not installed ({error}); {_MEND}") from None
            for name in ("httpx", "opensandbox"):  # only the SDK uses them; it tells of each request
                logging.getLogger(name).setLevel(logging.ERROR)
            ours = self._settings

            class Connection(ConnectionConfig):
                def get_api_key(self) -> str:
                    """Asks no variable for a key that the settings do not have."""
                    return ours.key()

            given = Connection(
                domain=ours.domain,
                protocol=ours.protocol,
                request_timeout=timedelta(seconds=ours.request_timeout_seconds),
                use_server_proxy=ours.use_server_proxy,
                disable_metrics=True,
                endpoint_cache_disabled=True,
            )
            given.headers.clear()  # the SDK puts an address of this host in
            self._transport = BoundedTransport(given.new_owned_transport(), ours.request_timeout_seconds)
            self._calls = SandboxesAdapter(given.model_copy(update={"transport": self._transport}))
        return self._calls

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Gives the SDK's failures their meaning. The key is in none of them."""
        if self._calls is None:
            self._sdk()
        from opensandbox.exceptions import (
            SandboxApiException,
            SandboxConnectionException,
            SandboxException,
            SandboxTimeoutException,
        )

        key = self._settings.key()
        try:
            yield
        except SandboxApiException as error:
            raise self._refused(error.status_code, _said(error, key)) from None
        except (SandboxException, AttributeError, KeyError, TypeError, ValueError) as error:
            away = isinstance(error, SandboxConnectionException | SandboxTimeoutException)
            if away or isinstance(error.__cause__, OSError):
                raise BackendAway(f"the server {self._settings.domain} does not answer: {_said(error, key)}") from None
            told = "is not an OpenSandbox server, or answers in another form; see opensandbox.domain"
            raise SandboxFault(f"the server {self._settings.domain} {told}: {_said(error, key)}") from None

    def _refused(self, status: int | None, said: str) -> SandboxFault:
        if status is None or status in (408, 502, 503, 504):
            return BackendAway(f"the server {self._settings.domain} does not answer: {said}")
        if status == _ENDED:
            return SandboxGone(f"the server has no such sandbox: {said}")
        if status in (401, 403):
            return SandboxFault(f"the server refuses the API key: {said}; set opensandbox.api_key to the server's")
        if status == 429:
            return SandboxFault(f"the server's rate limit is reached: {said}; run fewer sandboxes at a time")
        return SandboxFault(f"the server refuses ({status}): {said}")


def packed(name: str, text: str) -> dict[str, str]:
    """Returns metadata that holds any text: values have at most 63 characters of few kinds."""
    coded = base64.b32encode(text.encode()).decode().rstrip("=").lower()
    parts = [coded[at : at + _PART] for at in range(0, len(coded), _PART)] or [""]
    return {f"{name}.{number}": part for number, part in enumerate(parts)}


def unpacked(name: str, metadata: Mapping[str, str]) -> str:
    """Returns the text of :func:`packed`. Raises ValueError."""
    coded, number = "", 0
    while (part := metadata.get(f"{name}.{number}")) is not None:
        coded, number = coded + part.upper(), number + 1
    return base64.b32decode(coded + "=" * (-len(coded) % 8)).decode()


def _remote(info: Any) -> Remote:
    metadata = {str(name): str(value) for name, value in (info.metadata or {}).items()}
    return Remote(str(info.id), metadata, info.created_at.timestamp(), str(info.status.state).lower() in _RUNNING)


def _snapshot(info: Any) -> Snapshot:
    return Snapshot(str(info.id), str(info.name or ""), str(info.status.state).lower(), info.created_at.timestamp())


def _said(error: BaseException, key: str) -> str:
    """Returns a server's message, printable, bounded and without the key."""
    text = str(error) or type(error).__name__
    if key:
        text = text.replace(key, "…")
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_SAID]).strip()
