"""Containers that are made ahead. Each is used once, for a sandbox of its very shape.

A ready container has an agent that waits, an open channel, and everything of its sandbox that is known before the run:
the image, the limits, skills and packages. Blobs are a run's own, so that a run with blobs gets a container on demand.
Until it is lent its agent has a lease, that of a task or session too: it ends with a server that is killed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import EnvironmentRef, Owner, SandboxSpec
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.values import dataclass

SHAPES = 4
"""Shapes that are kept ready: those that were used last."""
YOUNG_S = 2.0
_BLOBS = "/blobs/"


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties by which two ready containers are interchangeable.

    ``shown`` are its mounts and packages: a target, and the very file or directory that it shows.
    """

    image: str
    memory_mb: int
    cpus: float
    pids: int
    disk_mb: int
    single: bool
    owner: Owner
    shown: tuple[tuple[str, ...], ...]


def shape_of(spec: SandboxSpec, image: str) -> Shape | None:
    """Returns the shape of a spec's container; None for one that cannot be made ahead."""
    shown = []
    if (packages := spec.environment.packages) is not None:
        if packages.path is None or not (identity := _identity(packages.path)):
            return None
        shown.append(("", *identity))
    for mount in spec.mounts:
        source = mount.source
        if not isinstance(source, Content) or source.path is None or mount.target.startswith(_BLOBS):
            return None
        if not (identity := _identity(source.path)):
            return None
        shown.append((mount.target, *mount.aliases, *identity))
    limits = spec.limits
    return Shape(
        image, limits.memory_mb, limits.cpus, limits.pids, limits.disk_mb, spec.single, spec.owner, tuple(shown)
    )


def _identity(path: Path) -> tuple[str, ...]:
    """Returns the place and the very inode. One that was removed and made again is another; empty for none."""
    try:
        told = path.stat()
    except OSError:
        return ()
    return (str(path), f"{told.st_dev}:{told.st_ino}:{told.st_ctime_ns}")


def bare_spec(spec: SandboxSpec) -> SandboxSpec:
    """Returns a spec of the same shape without the parts that belong to one principal."""
    own = spec.environment
    environment = EnvironmentRef(packages=own.packages, digest=own.digest, platform=own.platform)
    return replace(spec, environment=environment, group="", tenant="", egress=None, forwarding=False)


class Pool:
    """At most ``size`` ready containers of each of the shapes used last.

    ``make`` makes one, ``drop`` removes one. They are made one after another while nothing is created or destroyed, and
    no run is younger than ``young_s``.
    """

    def __init__(
        self,
        size: int,
        make: Callable[[SandboxSpec, str], Awaitable[AgentSandbox]],
        drop: Callable[[AgentSandbox], Awaitable[None]],
        young_s: float = YOUNG_S,
    ) -> None:
        self._size, self._make, self._drop, self._young_s = size, make, drop, young_s
        self._wanted: OrderedDict[Shape, SandboxSpec] = OrderedDict()
        self._ready: dict[Shape, deque[AgentSandbox]] = {}
        self._busy = 0
        self._young: dict[str, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._filling: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self._making: Shape | None = None
        self._awaited: asyncio.Future[AgentSandbox | None] | None = None
        """The container that is made at this time, for the sandbox that waits for it."""
        self._closed = False

    @property
    def count(self) -> int:
        return sum(map(len, self._ready.values()))

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Puts off the making of further ones meanwhile."""
        self._busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    def lent(self, handle: str) -> None:
        """Puts it off while the run of this container is young: most are over soon."""
        self._busy += 1
        self._idle.clear()
        self._young[handle] = asyncio.get_running_loop().call_later(self._young_s, self.aged, handle)

    def aged(self, handle: str) -> None:
        """The run of this container is over, or not young any more. Idempotent."""
        if (timer := self._young.pop(handle, None)) is not None:
            timer.cancel()
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    def take(self, shape: Shape) -> AgentSandbox | None:
        """Returns a container that nobody else gets; None where none of that shape is ready."""
        ready = self._ready.get(shape)
        while ready:
            sandbox = ready.popleft()
            if not sandbox.cut_off:
                return sandbox
            self._remove(sandbox)
        return None

    async def soon(self, shape: Shape) -> AgentSandbox | None:
        """Returns a container as :meth:`take` does, or that which is just being made.

        To make another beside it would take longer for both.
        """
        if (found := self.take(shape)) is not None or self._making != shape or self._awaited is not None:
            return found
        awaited: asyncio.Future[AgentSandbox | None] = asyncio.get_running_loop().create_future()
        self._awaited = awaited
        try:
            return await awaited
        except asyncio.CancelledError:
            if awaited.done() and not awaited.cancelled() and (late := awaited.result()) is not None:
                self._keep(shape, late)
            raise

    def want(self, shape: Shape, spec: SandboxSpec) -> None:
        """Notes that a shape is used, and has it ready soon. Those that were used longest ago are given up."""
        if not self._size or self._closed:
            return
        self._wanted[shape] = bare_spec(spec)
        self._wanted.move_to_end(shape)
        if len(self._wanted) > SHAPES:
            self._give_up(next(iter(self._wanted)))
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill())

    def drain(self, current: Callable[[Shape], bool]) -> None:
        """Gives up the shapes that are not ``current`` any more."""
        for shape in [shape for shape in self._wanted if not current(shape)]:
            self._give_up(shape)

    async def close(self) -> None:
        """Removes all that are ready."""
        self._closed = True
        for handle in tuple(self._young):
            self.aged(handle)
        self._idle.set()
        self.drain(lambda _: False)
        if self._filling is not None:
            await asyncio.gather(self._filling, return_exceptions=True)
        await asyncio.gather(*self._dropping, return_exceptions=True)

    async def _fill(self) -> None:
        while (shape := self._lacking()) is not None:
            await self._idle.wait()
            if (spec := self._wanted.get(shape)) is None:
                continue
            self._making, sandbox = shape, None
            try:
                sandbox = await self._make(spec, shape.image)
            except (SkillyardError, OSError, TimeoutError):
                self._give_up(shape)  # the next run of it tells why
            finally:
                awaited, self._making, self._awaited = self._awaited, None, None
                if awaited is not None and not awaited.done():
                    awaited.set_result(None if self._closed else sandbox)
                    sandbox = sandbox if self._closed else None
            if sandbox is not None:
                self._keep(shape, sandbox)

    def _keep(self, shape: Shape, sandbox: AgentSandbox) -> None:
        if shape in self._wanted and len(self._ready.get(shape, ())) < self._size:
            self._ready.setdefault(shape, deque()).append(sandbox)
        else:
            self._remove(sandbox)

    def _lacking(self) -> Shape | None:
        """Returns the shape that was used last of those that lack containers."""
        return next((one for one in reversed(self._wanted) if len(self._ready.get(one, ())) < self._size), None)

    def _give_up(self, shape: Shape) -> None:
        self._wanted.pop(shape, None)
        for sandbox in self._ready.pop(shape, ()):
            self._remove(sandbox)

    def _remove(self, sandbox: AgentSandbox) -> None:
        task = asyncio.create_task(self._dropped(sandbox))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _dropped(self, sandbox: AgentSandbox) -> None:
        # An engine that is away has it removed later: its agent ends without a lease.
        with suppress(SkillyardError, TimeoutError):
            await self._drop(sandbox)
