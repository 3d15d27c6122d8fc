"""Environments: sets of packages that the operator named or somebody asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.errors import Busy, InvalidInput, StoreFault, shown
from skillyard.domain.package.environment import BuiltEnvironment, Wanted
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import EnvironmentRef
from skillyard.engine.backends import Offer
from skillyard.engine.packages.asked import Asked, missing, union
from skillyard.engine.packages.build import Build
from skillyard.engine.packages.building import Building
from skillyard.engine.packages.environment import BuildFailed, Environment, standard_library, wanted_on
from skillyard.ports.clock import Clock
from skillyard.ports.environments import EnvironmentStore, StoredLock

OPERATOR = "operator"
"""The owner of the logs of environments that the settings name."""
UNNAMED = "packages"
"""The name of an environment without a name."""
JUST_USED_S = 120.0
"""A run that was given an environment has a sandbox with it, or is counted, after this time."""


class Environments:
    def __init__(
        self,
        definitions: Mapping[str, EnvironmentSettings],
        store: EnvironmentStore,
        building: Building,
        config: PackagesSettings,
        clock: Clock,
    ) -> None:
        self.definitions = definitions
        self._own = {name: union(definition, ()) for name, definition in definitions.items()}
        self._bare = {name: Environment(standard_library(name)) for name, own in self._own.items() if not own}
        self.store = store
        self.building = building
        self._config = config
        self._clock = clock
        self._users: Counter[str] = Counter()
        self._removed: Counter[str] = Counter()
        self._locks: dict[str, str] = {}
        """Digests of requirement sets and of the locks that they were resolved to: what most runs need to know."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.definitions))

    def is_named(self, environment: Environment) -> bool:
        """Returns whether it is one of the operator's, without further packages."""
        return not environment.ref.name.startswith(UNNAMED) and environment.built is not None

    def definition(self, name: str) -> EnvironmentSettings:
        """Raises InvalidInput."""
        found = self.definitions.get(name)
        if found is None:
            known = ", ".join(self.names)
            raise InvalidInput("environment", f"unknown environment; known are {known}", shown(name))
        return found

    def wanted(self, name: str) -> Wanted:
        """Returns what the named environment shall have. Raises InvalidInput."""
        self.definition(name)
        return self._own[name]

    def bare(self, name: str) -> Environment | None:
        """Returns the named environment where it has no packages. Raises InvalidInput."""
        self.definition(name)
        return self._bare.get(name)

    async def get(self, name: str, offer: Offer | None = None) -> Environment:
        """The named environment for sandboxes of ``offer``, built first when it has to be.

        Raises InvalidInput, SandboxFault, BuildFailed.
        """
        wanted = self.wanted(name)
        return await self.of(wanted if offer is None else await wanted_on(wanted, offer, name), OPERATOR, name=name)

    async def of(self, wanted: Wanted, owner: str, *, name: str = UNNAMED) -> Environment:
        """The environment of these requirements, built first when it has to be. Raises BuildFailed."""
        if not wanted:
            return Environment(standard_library(name))
        built = await self.ready(wanted)
        if built is None:
            try:
                built = await self.building.begin(wanted, owner).result()
            except BuildFailed as failed:
                what = f"environment '{name}'" if name != UNNAMED else "the environment"
                raise BuildFailed(f"{what} could not be built: {failed.message}", failed.log) from failed
            self._locks[wanted.digest] = built.digest
        return await self._used(built, name, wanted.platform)

    async def meeting(self, name: str, wanted: Wanted, asked: Sequence[Asked]) -> Environment | None:
        """The named environment, of ``wanted``, when it is ready and has all that is asked for."""
        built = await self.ready(wanted) if wanted else None
        if built is None or any(missing(who.requirements, built.distributions) for who in asked):
            return None
        return await self._used(built, name, wanted.platform)

    async def ready(self, wanted: Wanted) -> BuiltEnvironment | None:
        """Returns what was built for these requirements. Raises StoreFault."""
        digest = self._locks.get(wanted.digest)
        if digest is None:
            stored = await self.lock(wanted)
            if stored is None:
                return None
            digest = self._locks[wanted.digest] = stored.lock.digest
        return await self.store.find(digest)

    async def lock(self, wanted: Wanted) -> StoredLock | None:
        """Raises StoreFault."""
        return await self.store.lock(wanted, self.building.origin(wanted))

    def begin(self, wanted: Wanted, owner: str, *, refresh: bool) -> Build:
        """A build that somebody asks for as such. Raises BuildFailed when the server is closing."""
        if refresh:
            self._locks.pop(wanted.digest, None)
        return self.building.begin(wanted, owner, refresh=refresh, retry=True)

    @contextmanager
    def using(self, digest: str) -> Iterator[None]:
        """While this lasts the environment is not removed."""
        self._users[digest] = self._users.get(digest, 0) + 1
        try:
            yield
        finally:
            self._users[digest] -= 1
            if not self._users[digest]:
                del self._users[digest]

    async def remove(self, digest: str, *, forget: bool) -> bool:
        """``forget`` removes its locks too, so that its requirements are resolved anew. Raises Busy while runs use it,
        StoreFault."""
        users = self._users[digest]
        if users:
            raise Busy(f"{users} run{'s' * (users > 1)} at work use{'s' * (users == 1)} it", retry_after_ms=1000)
        if any(build.digest == digest for build in self.building.at_work()):
            raise Busy("it is being built", retry_after_ms=1000)
        self._locks.clear()
        self._removed[digest] += 1
        if forget:
            await self.store.forget_lock(digest)
        return await self.store.remove(digest)

    async def evict(self, in_use: Collection[str] = (), spare: int = 0) -> int:
        """Removes unused environments by age, then until ``spare`` bytes fit; returns their number. ``in_use`` are
        further ones that stay. Raises StoreFault."""
        now, config = self._clock.now(), self._config
        held = {*self._users, *in_use, *(build.digest for build in self.building.at_work())}
        found = await self.store.list()
        size, removed = sum(built.size for built in found), 0
        for built in reversed(found):
            unused_s = now - built.used_at
            too_old = config.max_age_s is not None and unused_s > config.max_age_s
            if (too_old or size + spare > config.max_bytes) and built.digest not in held and unused_s > JUST_USED_S:
                removed += await self.remove(built.digest, forget=False)
                size -= built.size
        return removed

    async def room(self) -> int:
        """Returns the bytes that ``max_bytes`` leaves for another one, which may be negative. Raises StoreFault."""
        return self._config.max_bytes - sum(built.size for built in await self.store.list())

    async def clean(self) -> None:
        """Remove what a dead process left half-made. Before the first build. Raises StoreFault."""
        try:
            await self.store.sweep()
        except OSError as error:
            raise StoreFault(f"the environments cannot be swept: {error.strerror}") from error

    async def close(self) -> None:
        """Stop builds; nothing half-made is left."""
        await self.building.close()

    async def _used(self, built: BuiltEnvironment, name: str, platform: Platform | None) -> Environment:
        await self.store.touch(built.digest)
        # One that was removed and built again lies in another directory of the same name: no warm interpreter of the
        # first may serve for it.
        removed = self._removed[built.digest]
        told = f"{name}-{removed}" if removed else name
        packages = Content(built.digest, self.store.packages(built.digest))
        ref = EnvironmentRef(told, packages, digest=built.digest, platform=platform)
        return Environment(ref, built.distributions, built)
