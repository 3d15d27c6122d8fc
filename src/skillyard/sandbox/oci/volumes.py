"""Volumes of an engine that does not see this host's files: one for each content.

A volume bears the name of this data directory and of its bytes. A loader fills it once and tells what has arrived; a
server that finds one looks first whether it still has these bytes. Containers have volumes read-only. The engine
removes none that a container has. Of the others those that were used longest ago go where room is needed, and those
that nobody used for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import BackendAway, SandboxFault
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.sandbox.oci import container, loader
from skillyard.sandbox.oci.container import Seat, Shown
from skillyard.sandbox.oci.engine import Engine, EngineRefused
from skillyard.sandbox.oci.home import OURS, Home, loader_text
from skillyard.sandbox.turns import Turns
from skillyard.threads import answered, to_its_end

MOST_VOLUMES = 1024
IDLE_S = 24 * 3600.0
"""How long a volume stays that no container has."""
SERVER, BYTES, LOADER, FILLS, TENANT = (
    f"{OURS}.{name}" for name in ("content-of", "bytes", "loader-of", "fills", "tenant")
)
_ENTRY_BYTES = 4096
"""Room for an entry beside its bytes."""
_MOST_SEALS = 4096
_LOAD_S, _SLOWEST = 120.0, 1 << 20
"""The time of a loader: a part for its start, and bytes in each second."""
_STALLED_S = 120.0
_LOADERS, _EACH = 16, 4
"""Loaders that work at once, in all and for one sandbox, which may have hundreds of blobs."""
_HOP = 1 << 20
_MOST_TOLD = 4096
_BLOBS = "/blobs/"
_MEASURED = 2
"""Contents that are read at once, in all: others need threads, too."""
_TIMES_FREE = 3
"""How much a principal's sandboxes may have, as a multiple of what they leave free (:mod:`skillyard.engine.shares`)."""
_MISSING, _CONFLICT = 404, 409


class Volumes:
    """The volumes of this data directory at an engine. Those that no container has for ``idle_s`` go."""

    def __init__(self, engine: Engine, home: Home, settings: OciSettings, idle_s: float = IDLE_S) -> None:
        self._engine, self._home, self._settings = engine, home, settings
        self._most_bytes, self._idle_s = settings.content_mb << 20, idle_s
        self._sees = False
        self._swept = False
        self._sure: set[str] = set()
        """Volumes whose bytes were looked at."""
        self._held: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._loading: set[str] = set()
        self._seals: dict[tuple[str, int, int, int], tuple[str, int]] = {}
        self._turns, self._room = Turns(), asyncio.Lock()
        self._loaders, self._measuring = asyncio.Semaphore(_LOADERS), asyncio.Semaphore(_MEASURED)
        self._placing: dict[object, tuple[str, Mapping[str, int]]] = {}
        """The principals of sandboxes to be, and the bytes of their volumes."""

    async def look(self) -> str:
        """Returns how content reaches the engine: ``bound``, or ``uploaded``. Raises SandboxFault.

        The engine sees our files where a container is shown a file that has just been made, under a name that nobody
        could know.
        """
        self.forget()
        file = await asyncio.to_thread(self._home.fresh)
        try:
            seen = await self._load(["look"], container.bind(file, container.PLACE), _LOAD_S)
            self._sees = seen == (await self._seal_of(file, fixed=False))[0]
        except BackendAway:
            raise
        except SandboxFault:
            self._sees = False  # another fault is met again by the first upload
        return "bound" if self._sees else "uploaded"

    def forget(self, seats: Iterable[Seat] | None = None) -> None:
        """Has the volumes of ``seats``, or all, looked at before they are used again.

        The engine was away, or refused a container. Podman makes an empty volume in the place of one that somebody
        removed a moment before.
        """
        self._sure -= self._sure if seats is None else {seat.volume for seat in seats}

    @asynccontextmanager
    async def placed(self, shown: Sequence[Shown], tenant: str = "") -> AsyncIterator[dict[str, Seat]]:
        """Gives the seat of each source, which stays while the block runs. There are none where all are bound.

        Raises SandboxFault, also where the principal, whose label is ``tenant``, would have more than its share.
        """
        sources = {one.source: one.fixed for one in shown}
        if self._sees:
            yield {}
            return
        held: list[str] = []
        this = object()
        try:
            if not self._swept:  # what a dead server was loading would be taken for whole, or be in the way
                await self.sweep()
                self._swept = True
            seals = {source: await self._seal_of(source, fixed=fixed) for source, fixed in sources.items()}
            if tenant and any(one.target.startswith(_BLOBS) for one in shown):
                self._placing[this] = tenant, {self._named(seal): size for seal, size in seals.values()}
                await self._check_share(this)
            few = asyncio.Semaphore(_EACH)
            ways = [self._ensured(source, *seal, held, few) for source, seal in seals.items()]
            seats = await asyncio.gather(*ways, return_exceptions=True)
            for seat in seats:
                if isinstance(seat, BaseException):
                    raise seat
            yield {source: seat for source, seat in zip(sources, seats, strict=True) if isinstance(seat, Seat)}
        finally:
            self._placing.pop(this, None)
            self._held -= Counter(held)
            self._used.update(dict.fromkeys(held, time.monotonic()))

    def _named(self, seal: str) -> str:
        return f"{OURS}-{self._home.server[:12]}-{seal[:40]}"

    async def _check_share(self, this: object) -> None:
        """Raises SandboxFault for a principal that leaves others too little.

        Volumes in use go for nobody.
        """
        placing = list(self._placing.values())[: list(self._placing).index(this) + 1]  # those that came before it
        tenant, _ = placing[-1]
        told = await self._engine.call("GET", "/containers/json", all=1, filters=json.dumps({"label": [TENANT]}))
        sizes = {str(one["Name"]): _bytes(one) for one in await self._list()}
        sizes |= {name: size for _, volumes in placing for name, size in volumes.items()}
        used = [(one["Labels"][TENANT], _volumes_of(one)) for one in told] + [(who, set(had)) for who, had in placing]
        every = {name for _, names in used for name in names} & sizes.keys()
        own = {name for who, names in used if who == tenant for name in names} & sizes.keys()
        free = self._most_bytes - sum(sizes[name] for name in every), MOST_VOLUMES - len(every)
        if sum(sizes[name] for name in own) > _TIMES_FREE * free[0] or len(own) > _TIMES_FREE * free[1]:
            raise SandboxFault(
                f"content: the sandboxes of one principal have at most {_TIMES_FREE} times as much as they leave free "
                f"of {self._most_bytes >> 20} MiB in {MOST_VOLUMES} volumes; raise oci.content_mb, or run fewer of them"
            )

    async def _ensured(self, source: str, seal: str, size: int, held: list[str], few: asyncio.Semaphore) -> Seat:
        name = self._named(seal)
        held.append(name)
        self._held[name] += 1
        async with self._turns.of(name), few:
            told = await self._inspect(name)
            if told is not None and name not in self._sure:
                mount = container.volume(name, str(Path(container.PLACE).parent), read_only=True)
                with suppress(_Damaged):
                    if await self._load(["look"], mount, _LOAD_S + size / _SLOWEST) == seal:
                        self._sure.add(name)
                if name not in self._sure:
                    await self._remove(name)
                    told = None
            if told is None:
                told = await self._filled(name, source, seal, size)
                self._sure.add(name)
        return Seat(name, f"{told['Mountpoint']}/{Path(container.PLACE).name}")

    async def _filled(self, name: str, source: str, seal: str, size: int) -> Mapping[str, Any]:
        """Makes a volume and has it filled. Raises SandboxFault where other bytes arrive."""
        self._sure.discard(name)
        async with self._room:
            await self._make_room(size)
            labels = {SERVER: self._home.server, BYTES: str(size)}
            order = {"Name": name, "Driver": "local", "Labels": labels}
            told: Mapping[str, Any] = await answered(self._engine.call("POST", "/volumes/create", order))
        try:
            mount = container.volume(name, str(Path(container.PLACE).parent), read_only=False)
            found = await self._load(["take"], mount, _LOAD_S + size / _SLOWEST, source, fills=name)
            if found != seal:
                raise SandboxFault(f"content: other bytes than those of {source} arrived at the engine")
        except BaseException:
            await self._engine.finished(self._removed(name, held=True))
            raise
        return told

    async def _load(
        self, words: list[str], mount: Mapping[str, Any], bound_s: float, source: str = "", fills: str = ""
    ) -> str:
        """Runs a loader; returns the seal that it tells. Raises SandboxFault."""
        async with self._loaders:
            return await self._loaded(words, mount, bound_s, source, fills)

    async def _loaded(self, words: list[str], mount: Mapping[str, Any], bound_s: float, source: str, fills: str) -> str:
        name = f"{OURS}-loader-{secrets.token_hex(8)}"
        self._loading.add(name)
        try:
            # The image is the operator's, whatever image the sandbox has.
            image = await self._engine.call("GET", f"/images/{quote(self._settings.image)}/json")
            order = container.loader(
                container.image(image),
                self._settings.runtime,
                ("python3", "-I", "-S", "-c", loader_text(), *words, container.PLACE),
                mount,
                {LOADER: self._home.server, FILLS: fills},
            )
            async with asyncio.timeout(bound_s):
                await answered(self._engine.call("POST", "/containers/create", order, name=name))
                return await self._told(name, source)
        except TimeoutError:
            raise SandboxFault(f"content: the engine did not take it within {bound_s:.0f} seconds") from None
        finally:
            await self._engine.finished(self._ended(name))

    async def _told(self, name: str, source: str) -> str:
        reader, writer = await self._engine.hijack(f"/containers/{name}/attach?stream=1&stdin=1&stdout=1")
        said = b""
        try:
            await self._engine.call("POST", f"/containers/{name}/start")
            with suppress(ConnectionError):  # a loader that refuses says why
                if source:
                    await _sent(source, writer)
            while b"\n" not in said and len(said) < _MOST_TOLD and (piece := await reader.read(_MOST_TOLD)):
                said += piece
        finally:
            writer.close()
        match _parsed(said):
            case {"seal": str(seal)}:
                return seal
            case {"error": str(error)}:
                raise _Damaged(f"content: it cannot be kept at the engine: {error}")
        raise SandboxFault("content: the loader at the engine told nothing that we understand")

    async def _ended(self, name: str) -> None:
        try:
            await self._engine.remove(name)
        finally:
            self._loading.discard(name)

    async def _make_room(self, size: int) -> None:
        """Removes what was used longest ago and no container has, until ``size`` more fit. Raises SandboxFault."""
        there = {str(one["Name"]): _bytes(one) for one in await self._list()}
        excess = sum(there.values()) + size - self._most_bytes
        many = len(there) + 1 - MOST_VOLUMES
        for name in sorted(there, key=lambda name: self._used.get(name, 0.0)):
            if excess <= 0 and many <= 0:
                return
            if await self._removed(name):
                excess, many = excess - there[name], many - 1
        if excess > 0 or many > 0:
            raise SandboxFault(
                f"content: {size >> 20} MiB do not fit beside the content in use at the engine, "
                f"{self._most_bytes >> 20} MiB in {MOST_VOLUMES} volumes; raise oci.content_mb, or run fewer sandboxes"
            )

    async def sweep(self) -> None:
        """Removes volumes that nobody used for long, and those that a dead server was filling."""
        filters = json.dumps({"label": [f"{LOADER}={self._home.server}"]})
        for one in await self._engine.call("GET", "/containers/json", all=1, filters=filters):
            name, fills = str(one["Names"][0]).strip("/"), str(one["Labels"].get(FILLS) or "")
            if name not in self._loading:
                await self._ended(name)
                if fills:
                    await self._removed(fills)
        now = time.monotonic()
        there = [str(one["Name"]) for one in await self._list()]
        self._seen = {name: self._seen.get(name, now) for name in there}
        self._used = {name: at for name, at in self._used.items() if name in self._seen}
        for name in there:
            if now - max(self._seen[name], self._used.get(name, 0.0)) >= self._idle_s:
                await self._removed(name)

    async def _removed(self, name: str, *, held: bool = False) -> bool:
        """Returns whether a volume of ours is gone; it stays where somebody uses it.

        One that is ``held`` by a sandbox to be goes as well then, unless a container has it.
        """
        if self._held[name] > 0 and not held:
            return False
        try:
            await self._remove(name)
        except EngineRefused as refused:
            if refused.status == _CONFLICT:
                return False
            raise
        return True

    async def _remove(self, name: str) -> None:
        self._sure.discard(name)
        self._used.pop(name, None)
        with suppress(_Gone):
            await self._asked("DELETE", name)

    async def _inspect(self, name: str) -> Mapping[str, Any] | None:
        with suppress(_Gone):
            told: Mapping[str, Any] = await self._asked("GET", name)
            return told
        return None

    async def _asked(self, method: str, name: str) -> Any:
        try:
            return await self._engine.call(method, f"/volumes/{name}")
        except EngineRefused as refused:
            if refused.status == _MISSING:
                raise _Gone from None
            if "being used" in refused.message:  # Podman calls that its own fault
                refused.status = _CONFLICT
            raise

    async def _list(self) -> list[Mapping[str, Any]]:
        filters = json.dumps({"label": [f"{SERVER}={self._home.server}"]})
        return (await self._engine.call("GET", "/volumes", filters=filters))["Volumes"] or []

    async def _seal_of(self, source: str, *, fixed: bool) -> tuple[str, int]:
        """Returns the seal of what is there, and the room that it takes. Raises SandboxFault."""
        try:
            told = Path(source).stat()
            identity = source, told.st_dev, told.st_ino, told.st_ctime_ns
            if not fixed or identity not in self._seals:
                async with self._measuring:
                    found = await to_its_end(_measured, source)
                if len(self._seals) >= _MOST_SEALS:
                    self._seals.clear()
                self._seals[identity] = found
            return self._seals[identity]
        except OSError as error:
            raise SandboxFault(f"the source {source} cannot be read: {error.strerror}") from None


class _Gone(Exception):
    """The engine has no such volume."""


class _Damaged(SandboxFault):
    """A loader found what it cannot keep, or tell of."""


def _measured(source: str) -> tuple[str, int]:
    root = os.path.realpath(source)
    sizes = (value if isinstance(value, int) else 0 for _, _, value in loader.entries(root))
    return loader.seal(root), sum(size + _ENTRY_BYTES for size in sizes)


async def _sent(source: str, writer: asyncio.StreamWriter) -> None:
    """Sends what a loader takes. Raises ConnectionError, SandboxFault."""
    pieces = _pieces(os.path.realpath(source))
    try:
        while piece := await to_its_end(_next, pieces):
            writer.write(piece)
            async with asyncio.timeout(_STALLED_S):
                await writer.drain()
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        raise SandboxFault(f"the source {source} cannot be read: {error.strerror}") from None


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")


def _pieces(root: str) -> Iterator[bytes]:
    listed = list(loader.entries(root))
    head = json.dumps([_told(root, *entry) for entry in listed]).encode()
    yield f"{len(head):0{loader.HEAD}x}".encode() + head
    for name, kind, size in listed:
        if kind not in (loader.FILE, loader.PROGRAM):
            continue
        left = int(size)
        with Path(root, name).open("rb") as file:
            while left:
                if not (piece := file.read(min(left, _HOP))):
                    raise OSError(0, "it became shorter", root)
                left -= len(piece)
                yield piece


def _told(root: str, name: str, kind: str, value: int | str) -> list[int | str]:
    """Returns an entry as a loader takes it."""
    if kind == loader.DIRECTORY:
        return [name, kind]
    changed = [] if kind == loader.LINK else [int(Path(root, name).stat().st_mtime)]
    return [name, kind, value, *changed]


def _bytes(told: Mapping[str, Any]) -> int:
    size = str((told.get("Labels") or {}).get(BYTES) or "0")
    return int(size) if size.isdecimal() else 0


def _volumes_of(container: Mapping[str, Any]) -> set[str]:
    return {str(one.get("Name")) for one in container.get("Mounts") or () if one.get("Type") == "volume"}


def _parsed(said: bytes) -> Any:
    try:
        return parse_json(said)
    except BadJson:
        return None
