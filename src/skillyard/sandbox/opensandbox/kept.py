"""Skills and packages that the server keeps in snapshots of sandboxes.

Nothing foreign has run in such a sandbox. A snapshot bears the name of this data directory, of its image and of the
content in it. It is made when the same content is wanted for the second time. A server of ours that finds one has its
first sandbox look at the bytes. Those that no sandbox is made of go: longest unused first where room is needed, and
those that nobody used for long. One that is old serves no more, since the name of its image may mean another by then.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from skillyard.domain.errors import BackendAway, SandboxFault, SkillyardError
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, SandboxSpec
from skillyard.sandbox.content import bound
from skillyard.sandbox.e2b.order import name_of
from skillyard.sandbox.e2b.remote import SERVER
from skillyard.sandbox.oci import loader
from skillyard.sandbox.opensandbox.server import FILLER, FROM, Server, Snapshot
from skillyard.threads import to_its_end
from skillyard.values import dataclass

MOST_SNAPSHOTS = 256
IDLE_S = OLDEST_S = 24 * 3600.0
_MOST_WANTED = 256
_ENTRY_BYTES = 4096
_BLOBS = "/blobs/"
_READY, _CREATING = "ready", "creating"
_NAME = re.compile(r"skillyard-([0-9a-f]{32})-([0-9a-f]{40})-([0-9]{1,15})")


@dataclass(slots=True)
class Kept:
    """A snapshot that sandboxes can be made of. ``sure`` says that its bytes were looked at."""

    id: str
    bytes: int
    sure: bool = False


class KeptContent:
    """The snapshots of the data directory ``home`` at a server.

    They have at most ``most_bytes`` in all. ``fill`` makes one of a spec with nothing but kept content, and an image,
    under a name; it returns its id.
    """

    def __init__(
        self,
        server: Server,
        home: Callable[[], str],
        most_bytes: int,
        fill: Callable[[SandboxSpec, str, str], Awaitable[str]],
        idle_s: float = IDLE_S,
    ) -> None:
        self._server, self._home, self._most_bytes, self._fill = server, home, most_bytes, fill
        self._idle_s = idle_s
        self._allowed = True
        self._failed: set[str] = set()
        self._known: dict[str, Kept] | None = None
        """By the key of their content."""
        self._used: dict[str, float] = {}
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._making: dict[str, asyncio.Task[None]] = {}
        self.filling: set[str] = set()
        """Sandboxes that are being filled."""

    async def find(self, spec: SandboxSpec, image: str) -> Kept | None:
        """Returns the snapshot for a spec; None where there is none. Those of the second time are made meanwhile."""
        key = _key_of(spec, image)
        if not self._allowed or key is None:
            return None
        if self._known is None:
            await self.sweep()
        found = (self._known or {}).get(key)
        if found is not None:
            self._used[found.id] = time.monotonic()
            return found
        # One at a time: each takes a sandbox that is counted nowhere, and callers choose contents without end.
        if key in self._wanted and not self._making and key not in self._failed:
            task = self._making[key] = asyncio.create_task(self._make(key, kept_of(spec), image))
            task.add_done_callback(lambda _: self._making.pop(key, None))
        self._wanted[key] = None
        if len(self._wanted) > _MOST_WANTED:
            self._wanted.popitem(last=False)
        return None

    async def forget(self, kept: Kept) -> None:
        """Removes one whose bytes are others, or that the server does not have any more."""
        self._known = {key: one for key, one in (self._known or {}).items() if one is not kept}
        with suppress(SandboxFault):
            await self._server.forget(kept.id)

    async def forget_all(self) -> None:
        """Removes all of them. They are made anew for what is used again."""
        for one in [*(self._known or {}).values()]:
            await self.forget(one)

    async def sweep(self) -> None:
        """Removes snapshots that nobody used for long, and sandboxes that a dead server was filling.

        Raises BackendAway.
        """
        try:
            async for one in self._server.list({FILLER: self._home()}):
                if one.id not in self.filling:
                    await self._server.kill(one.id)
            found: dict[str, Kept] = {}
            used, now, listed = await self._in_use(), time.monotonic(), await self._listed()
            self._used = {one.id: self._used.get(one.id, now) for _, one in listed}
            for key, snapshot in listed:
                told = self._known.get(key) if self._known is not None else None
                is_young = time.time() - snapshot.made < OLDEST_S
                is_wanted = snapshot.id in used or now - self._used[snapshot.id] < self._idle_s
                if snapshot.state == _READY and is_young and is_wanted:
                    found[key] = told if told is not None and told.id == snapshot.id else _kept(snapshot)
                elif snapshot.state != _CREATING and snapshot.id not in used:
                    with suppress(SandboxFault):
                        await self._server.forget(snapshot.id)
            self._known, self._allowed = found, True
        except BackendAway:
            raise
        except SandboxFault:  # a server, or its runtime, that has no snapshots
            self._allowed = False

    async def close(self) -> None:
        """Gives up those that are being made."""
        for task in tuple(self._making.values()):
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    async def _make(self, key: str, spec: SandboxSpec, image: str) -> None:
        try:
            size = await to_its_end(_size_of, spec)
            if not await self._has_room(size):
                return
            id = await self._fill(spec, image, f"skillyard-{self._home()}-{key}-{size}")
            self._used[id] = time.monotonic()
            assert self._known is not None
            self._known[key] = Kept(id, size, sure=True)
        except BackendAway:
            pass
        except (SkillyardError, OSError, TimeoutError):  # its runs go on as before
            if len(self._failed) >= _MOST_WANTED:
                self._failed.clear()
            self._failed.add(key)

    async def _has_room(self, size: int) -> bool:
        """Removes what was used longest ago until ``size`` more fit; returns whether they do."""
        used, there = await self._in_use(), dict(self._known or {})
        excess = sum(one.bytes for one in there.values()) + size - self._most_bytes
        many = len(there) + 1 - MOST_SNAPSHOTS
        for one in sorted(there.values(), key=lambda one: self._used.get(one.id, 0.0)):
            if (excess > 0 or many > 0) and one.id not in used:
                await self.forget(one)
                excess, many = excess - one.bytes, many - 1
        return excess <= 0 and many <= 0

    async def _in_use(self) -> set[str]:
        return {one.metadata.get(FROM, "") async for one in self._server.list({SERVER: self._home()})}

    async def _listed(self) -> list[tuple[str, Snapshot]]:
        found = []
        async for snapshot in self._server.snapshots():
            told = _NAME.fullmatch(snapshot.name)
            if told is not None and told[1] == self._home():
                found.append((told[2], snapshot))
        return found


def is_kept(mount: Mount) -> bool:
    """Returns whether a mount's content is kept.

    Blobs are a run's own, and directories of the operator's change.
    """
    return isinstance(mount.source, Content) and not mount.target.startswith(_BLOBS)


def kept_of(spec: SandboxSpec) -> SandboxSpec:
    """Returns a spec with that content alone which is kept."""
    environment = EnvironmentRef(packages=spec.environment.packages)
    return SandboxSpec(mounts=tuple(filter(is_kept, spec.mounts)), environment=environment)


def rest_of(spec: SandboxSpec) -> SandboxSpec:
    """Returns a spec with that content alone which is not kept. All else is as it was."""
    mounts = tuple(mount for mount in spec.mounts if not is_kept(mount))
    return replace(spec, mounts=mounts, environment=replace(spec.environment, packages=None))


def seals_of(spec: SandboxSpec) -> list[tuple[str, str]]:
    """Returns where each kept content lies, and its seal; packages lie where the image has them. Raises OSError."""
    return [(target, loader.seal(source)) for target, source in _sources(spec)]


def _sources(spec: SandboxSpec) -> Iterator[tuple[str, str]]:
    for mount in spec.mounts:
        yield mount.target, os.path.realpath(bound(mount.source))
    if spec.environment.packages is not None:
        yield "", os.path.realpath(bound(spec.environment.packages))


def _size_of(spec: SandboxSpec) -> int:
    sizes = (value for _, source in _sources(spec) for _, _, value in loader.entries(source))
    return sum(_ENTRY_BYTES + (value if isinstance(value, int) else 0) for value in sizes)


def _key_of(spec: SandboxSpec, image: str) -> str | None:
    """Returns a name for an image with content in it; None where no content is kept."""
    packages = spec.environment.packages
    shown = sorted([name_of(mount.source), mount.target, *mount.aliases] for mount in spec.mounts if is_kept(mount))
    if not shown and packages is None:
        return None
    told = json.dumps([image, shown, "" if packages is None else name_of(packages)])
    return hashlib.sha256(told.encode()).hexdigest()[:40]


def _kept(snapshot: Snapshot) -> Kept:
    told = _NAME.fullmatch(snapshot.name)
    return Kept(snapshot.id, int(told[3]) if told is not None else 0)
