"""Builds: each set of requirements is built once at a time, and few are at work at once.

Resolving and installing happen each in a fresh sandbox that can reach only the package index. Their output is a stream
of bytes that somebody hostile may have written. A lock is parsed and written anew; the store reads an installation
(:meth:`skillyard.ports.environments.EnvironmentStore.add`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from skillyard.config.packages import PackagesSettings
from skillyard.domain.errors import Busy, SkillyardError
from skillyard.domain.package.environment import (
    MAX_TEXT,
    SHOWN,
    BuildState,
    BuiltEnvironment,
    Lock,
    Pin,
    Wanted,
    held_to,
    lock_text,
    parse_lock,
)
from skillyard.domain.package.names import normalized
from skillyard.domain.package.platforms import Platform
from skillyard.engine.observer import (
    EnvironmentFailed,
    EnvironmentInstalled,
    EnvironmentInstalling,
    Fault,
    Observer,
)
from skillyard.engine.packages.build import Build, BuildLog
from skillyard.engine.packages.environment import BuildFailed, platform_name
from skillyard.engine.packages.steps import Steps
from skillyard.engine.shares import Room
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock
from skillyard.ports.environments import Arrival, EnvironmentStore, Origin, TooLarge

MIB = 1024 * 1024


class Builder(Protocol):
    """``log`` gets what is said meanwhile. All raise BuildFailed."""

    async def resolve(self, wanted: Wanted, log: BuildLog) -> Lock: ...

    def install(self, lock: Lock, platform: Platform | None, log: BuildLog) -> AsyncGenerator[bytes, None]:
        """A tar archive of the packages, installed for ``platform``. It has to be closed."""
        ...

    def fetch(self, lock: Lock, tags: Mapping[str, Sequence[str]], log: BuildLog) -> AsyncGenerator[bytes, None]:
        """A tar archive of the wheels that ``lock`` names; ``tags`` say which of each package. It has to be closed."""
        ...

    @property
    def at_work(self) -> frozenset[str]:
        """The keys of its sandboxes."""
        ...


class SandboxBuilder:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    @property
    def at_work(self) -> frozenset[str]:
        return frozenset(self._steps.at_work)

    async def resolve(self, wanted: Wanted, log: BuildLog) -> Lock:
        held = [f"{pin.name}=={pin.version}" for pin in wanted.held]
        asked = {"step": "resolve", "requirements": list(wanted.requirements), "held": held}
        async with aclosing(self._steps.output(asked, wanted.platform, log, 2 * MAX_TEXT)) as output:
            text = await _whole(output)
        pins = parse_lock(text)
        return Lock(lock_text(pins), _platform(pins, self._steps.source, wanted.platform))

    async def install(self, lock: Lock, platform: Platform | None, log: BuildLog) -> AsyncGenerator[bytes, None]:
        asked = {"step": "install", "lock": lock.text}
        async with aclosing(self._steps.output(asked, platform, log, self._steps.most_bytes)) as output:
            async for chunk in output:
                yield chunk

    async def fetch(self, lock: Lock, tags: Mapping[str, Sequence[str]], log: BuildLog) -> AsyncGenerator[bytes, None]:
        wheels: dict[str, Any] = {
            pin.name: {"version": pin.version, "hashes": list(pin.hashes), "tags": list(tags.get(pin.name, ()))}
            for pin in parse_lock(lock.text)
        }
        asked = {"step": "fetch", "wheels": wheels}
        async with aclosing(self._steps.output(asked, None, log, self._steps.most_bytes)) as output:
            async for chunk in output:
                yield chunk


def _platform(pins: Sequence[Pin], source: Sequence[str], platform: Platform | None) -> str:
    """Returns the platform in words. A package from source is another thing than its wheel."""
    if platform is not None:
        return platform.name
    built = {normalized(name) for name in source} & {pin.name for pin in pins}
    return " ".join([platform_name(), *(f"source:{name}" for name in sorted(built))])


async def _whole(output: AsyncIterator[bytes]) -> str:
    pieces = [piece async for piece in output]
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError:
        raise BuildFailed("the resolved lock is not text") from None


MakeRoom = Callable[[int], Awaitable[int]]
"""Removes environments that may go; False when those that stay are too large for another one."""
KeepLog = Callable[[str, bytes], Awaitable[str]]
"""Keeps a log for its owner; the blob's id, empty when it cannot be kept."""

RETRY_S = 30.0
"""How long a failed build is not tried again, unless somebody asks for just that."""
MOST_FAILURES = 256
MOST_BUILDS, MOST_EACH = 128, 16
"""Builds that work or wait, in all and for one owner."""
PATIENCE_S = 120.0
"""Seconds that the two steps of a build may take beyond their own limits, which their sandboxes keep."""
_MIB = 1024 * 1024
CLOSING = "the server is shutting down"
FULL = "the environments that are in use leave no room for another one: packages.max_bytes"


class Building:
    def __init__(
        self,
        store: EnvironmentStore,
        builder: Builder,
        config: PackagesSettings,
        clock: Clock,
        keep_log: KeepLog,
        emit: Observer,
        make_room: MakeRoom,
    ) -> None:
        self._store = store
        self._builder = builder
        self._config = config
        self._clock = clock
        self._keep_log = keep_log
        self._emit = emit
        self._make_room = make_room
        self._tasks = Tasks()
        self._room = Room(config.at_once)
        self._at_work: dict[str, Build] = {}
        self._installing: dict[str, Build] = {}
        self._fetching: Counter[str] = Counter()
        """Archives of wheels that are being made or wait, by owner."""
        self._failed: dict[str, tuple[float, Build]] = {}
        self._closed = False

    @property
    def sandboxes(self) -> frozenset[str]:
        """The keys of those that builds have."""
        return self._builder.at_work

    def origin(self, wanted: Wanted) -> Origin:
        if wanted.platform is not None:  # nothing is built from source for it
            return Origin(wanted.platform.name, self._config.index)
        return Origin(platform_name(), self._config.index, self._config.source)

    def at_work(self) -> Iterable[Build]:
        return self._at_work.values()

    def failures(self) -> Iterable[Build]:
        """Those that are not tried again yet."""
        return [build for wanted in list(self._failed) if (build := self._failure(wanted)) is not None]

    def find(self, wanted: Wanted) -> Build | None:
        """The one at work, or that failed a moment ago."""
        return self._at_work.get(wanted.digest) or self._failure(wanted.digest)

    def begin(self, wanted: Wanted, owner: str, *, refresh: bool = False, retry: bool = False) -> Build:
        """The build of these requirements that is at work, or one that begins. ``refresh`` resolves anew, ``retry``
        does not heed that it failed a moment ago; without them one that did is given again. Raises BuildFailed when
        the server is closing, Busy when too many wait."""
        build = self._at_work.get(wanted.digest)
        if build is not None:
            return build
        if self._closed:
            raise BuildFailed(CLOSING)
        failed = self._failure(wanted.digest)
        if failed is not None and not (refresh or retry):
            return failed
        self._check_room(owner)
        self._failed.pop(wanted.digest, None)
        build = self._at_work[wanted.digest] = Build(wanted, owner, self._clock.now())
        self._tasks.spawn(self._perform(build, refresh), f"environment {wanted.digest}")
        return build

    async def fetch(
        self, lock: Lock, tags: Mapping[str, Sequence[str]], log: BuildLog, owner: str
    ) -> AsyncGenerator[bytes, None]:
        """A tar archive of the wheels of ``lock``, made when it is the owner's turn, as a build is. It has to be
        closed. Raises BuildFailed, Busy when too many wait."""
        self._check_room(owner)
        self._fetching[owner] += 1
        try:
            async with self._room.place(owner), aclosing(self._builder.fetch(lock, tags, log)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._fetching -= Counter([owner])

    def stop(self) -> None:
        """Begins nothing more, and ends the builds at work; their callers are told."""
        self._closed = True
        self._tasks.cancel()

    async def close(self) -> None:
        """:meth:`stop`, and wait until nothing half-made is left."""
        self.stop()
        await self._tasks.drain()

    def _check_room(self, owner: str) -> None:
        mine = sum(build.owner == owner for build in self._at_work.values()) + self._fetching[owner]
        if len(self._at_work) + self._fetching.total() >= MOST_BUILDS or mine >= MOST_EACH:
            raise Busy("too many environments wait to be built; come again later", retry_after_ms=10_000)

    def _failure(self, wanted: str) -> Build | None:
        at, build = self._failed.get(wanted, (0.0, None))
        if build is not None and self._clock.monotonic() - at > RETRY_S:
            del self._failed[wanted]
            return None
        return build

    async def _perform(self, build: Build, refresh: bool) -> None:
        """The outcome is in ``build``, whatever happens."""
        wanted, began = build.wanted, self._clock.monotonic()
        try:
            async with self._room.place(build.owner), asyncio.timeout(2 * self._config.timeout_s + PATIENCE_S):
                self._emit(EnvironmentInstalling(wanted.digest, wanted.requirements))
                built, mine = await self._made(build, refresh)
            seconds = self._clock.monotonic() - began
            build.log.say(f"Ready after {seconds:.1f} s: {built.digest[:SHOWN]}, {built.size / _MIB:.1f} MiB")
            if mine:
                log = await self._keep_log(build.owner, build.log.whole())
                await self._store.annotate(built.digest, build_ms=seconds * 1000, log=log)
                built = await self._store.find(built.digest) or built
            self._emit(EnvironmentInstalled(wanted.digest, built.digest, seconds))
            build.succeed(built)
        except asyncio.CancelledError:
            build.fail(BuildFailed(CLOSING))
            raise
        except TimeoutError:
            await self._broke(build, BuildFailed("the build's sandbox no longer answers"))
        except Exception as error:  # noqa: BLE001 - the callers have to be told
            await self._broke(build, error)
        finally:
            self._at_work.pop(wanted.digest, None)
            if not build.state.over:
                build.fail(BuildFailed(CLOSING))

    async def _broke(self, build: Build, error: Exception) -> None:
        if not isinstance(error, SkillyardError):
            self._emit(Fault("environment", error))
        message = error.message if isinstance(error, SkillyardError) else "an internal fault ended the build"
        build.log.say(f"Failed: {message}")
        log = getattr(error, "log", "") or await self._keep_log(build.owner, build.log.whole())
        failure = BuildFailed(message, log)
        while len(self._failed) >= MOST_FAILURES:
            del self._failed[next(iter(self._failed))]
        self._failed[build.wanted.digest] = (self._clock.monotonic(), build)
        self._emit(EnvironmentFailed(build.wanted.digest, message))
        build.fail(failure)

    async def _made(self, build: Build, refresh: bool) -> tuple[BuiltEnvironment, bool]:
        """The environment, and whether this build installed it. The lock is kept when there is what it leads to: one
        that cannot be installed is not tried for ever."""
        wanted = build.wanted
        stored = None if refresh else await self._store.lock(wanted, self.origin(wanted))
        lock = stored.lock if stored is not None else await self._resolved(build)
        build.digest = lock.digest
        built, mine = await self._installed(build, lock)
        if stored is None:
            await self._store.keep_lock(wanted, self.origin(wanted), lock)
        return built, mine

    async def _resolved(self, build: Build) -> Lock:
        build.state = BuildState.RESOLVING
        build.log.say("Resolving " + ", ".join(build.wanted.requirements))
        lock = await self._builder.resolve(build.wanted, build.log)
        held = build.wanted.held
        return Lock(lock_text(held_to(parse_lock(lock.text), held)), lock.platform) if held else lock

    async def _installed(self, build: Build, lock: Lock) -> tuple[BuiltEnvironment, bool]:
        found = await self._store.find(lock.digest)
        if found is not None:
            return found, False
        build.state = BuildState.INSTALLING
        other = self._installing.get(lock.digest)
        if other is not None:
            build.log = other.log
            return await other.result(), False
        self._installing[lock.digest] = build
        try:
            return await self._install_where_there_is_room(build, lock), True
        finally:
            del self._installing[lock.digest]

    async def _install_where_there_is_room(self, build: Build, lock: Lock) -> BuiltEnvironment:
        """Installs an environment, a second time after an eviction when it needs more room. Its size is known only when
        it is there."""
        disk = self._config.disk_mb * _MIB
        room = await self._make_room(0)
        if room >= disk:
            return await self._install(build, lock, disk)
        try:
            return await self._install(build, lock, room)
        except TooLarge:
            more = await self._make_room(disk)
        try:
            return await self._install(build, lock, min(disk, more) if more > room else 0)
        except TooLarge:
            raise BuildFailed(FULL) from None

    async def _install(self, build: Build, lock: Lock, most_bytes: int) -> BuiltEnvironment:
        """Installs an environment. Raises BuildFailed without room, and the errors of builder and store."""
        if most_bytes <= 0:
            raise BuildFailed(FULL)
        build.log.say(f"Installing {lock.digest[:SHOWN]}")
        arrival = Arrival(lock, build.wanted.requirements, "", most_bytes)
        async with aclosing(self._builder.install(lock, build.wanted.platform, build.log)) as chunks:
            return await self._store.add(arrival, chunks)
