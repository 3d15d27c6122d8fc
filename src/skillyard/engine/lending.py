"""The life of a sandbox, for every use of one.

Its steps are: reserve a place, create or attach, join the network, check which guarantees are in force, use, destroy,
confirm. A sandbox that outlives its server is let go instead of destroyed when that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from skillyard.domain.errors import SandboxFault, SkillyardError
from skillyard.domain.sandbox.spec import SandboxSpec, Start
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending
from skillyard.engine.backends import Offer
from skillyard.engine.network.run_network import NetworkGrant, RunNetwork
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.shares import Admission, Budget, Place, Room
from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import Launched, Sandbox
from skillyard.values import dataclass

Queued = Callable[[int], None]
PATIENCE_S = 60.0
"""How long a backend may take to end a sandbox."""


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox that somebody needs. ``key`` makes creating it idempotent, ``tenant`` is whose share of places and
    memory it takes."""

    key: str
    tenant: str
    offer: Offer
    spec: SandboxSpec
    network: NetworkGrant | RunNetwork | None = None
    """The grant, or the network of an earlier server's sandbox."""
    trimmed: bool = False
    """Whether it takes all the memory that there is where its limits are above that, instead of being refused."""
    accepted: bool = False
    """Whether it waits in a full queue too, since its caller has gone with the promise that it runs."""
    handle: str | None = None
    """The sandbox that an earlier server made for it, to be attached. :meth:`Lender.retake` has its place."""


class Loan:
    """One sandbox while it is lent.

    Within ``async with`` the order is :meth:`begin`, :meth:`open`, any use, :meth:`end`; for the sandbox of an earlier
    server, :meth:`attach`, any use, :meth:`end`. The block begins when there is a place. When the block is left, also
    because its caller went away, nothing of the sandbox is left unless it was :meth:`let_go`, and only then the place
    is free. ``enforced``, ``guarantees`` and ``image`` are set when the sandbox stands.
    """

    def __init__(self, order: Order, admission: Admission, tasks: Tasks, emit: Observer, queued: Queued | None) -> None:
        granted = order.network
        self.network = RunNetwork(order.key, granted) if isinstance(granted, NetworkGrant) else granted
        self.sandbox: Sandbox | None = None
        self.session: str | None = None
        """The id of the session whose sandbox it is."""
        self.keeps = False
        """Whether its program goes on while others use the sandbox."""
        self.launched: Start | None = None
        """The program that was started with the sandbox."""
        self.launched_over = False
        """Whether it had ended when the sandbox stood for the engine."""
        self.launched_ago_s = 0.0
        """How long before the sandbox stood for the engine its program was started."""
        self.interpreter: dict[str, str] | None = None
        """The part of a cell's record about its interpreter."""
        self.enforced: dict[str, str] = {}
        self.guarantees: dict[str, Any] = {}
        self.image = ""
        """The digest of the image that the sandbox was made of; empty where there is none, or nobody knows it."""
        self._order = order
        self._spec = order.spec
        self._admission = admission
        self._tasks = tasks
        self._emit = emit
        self._queued = queued
        self._place: Place | None = None
        self._launching: tuple[Start, Coroutine[Any, Any, Launched]] | None = None
        self._creating = False
        self._over = False
        self._seen: Mapping[str, Any] | None = None

    async def __aenter__(self) -> Loan:
        """Raises Busy, InvalidInput for a sandbox that could never fit."""
        admission, tenant, memory_mb = self._admission, self._order.tenant, self._memory_mb
        if self._order.handle is not None:
            return self
        if self._order.trimmed:
            memory_mb = admission.most(memory_mb)
        if self._queued is not None and admission.would_wait(tenant, memory_mb):
            self._queued(admission.waiting + 1)
        self._place = await admission.enter(tenant, memory_mb, accepted=self._order.accepted)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._launching is not None:
                self._launching[1].close()
            if not self._over:
                await self._tasks.shielded(self._abandon(), f"end of {self._order.key}")
        finally:
            if self._place is not None:
                self._admission.leave(self._place)

    @property
    def _memory_mb(self) -> int:
        """Returns the memory that is reserved: files are memory, too."""
        return self._spec.limits.memory_mb + self._spec.limits.disk_mb

    @property
    def spec(self) -> SandboxSpec:
        """Returns what the sandbox is made from, with its way out once it has one."""
        return self._spec

    async def begin(self) -> dict[str, Any] | None:
        """Asks for the network, while other work goes on. Returns the record's first view of it."""
        if self.network is None:
            return None
        self.network.begin(self._tasks)
        return await self.network.so_far()

    def launch(self, first: Start) -> None:
        """Asks for the sandbox with its first program, where nothing is left to be done between.

        Where the backend can, it is started before this returns; :meth:`open` returns what was asked for. It does
        nothing when it was called before. Raises ProtectionMissing.
        """
        if self._launching is None and self.network is None and (launcher := self._order.offer.launcher()) is not None:
            self._creating = True
            self._launching = first, launcher.launch(self._spec, self._order.key, first)

    @property
    def is_launching(self) -> bool:
        """Returns whether the program may have begun."""
        return self._launching is not None

    async def open(self, guest: Mapping[str, Any]) -> tuple[Sandbox, Mapping[str, Any]]:
        """Returns the sandbox and the guest's request.

        Policy's demands are in force then, and the sandbox has its network. The request has the variables by which
        programs find the way out.

        Raises GateFault, SandboxFault, SandboxGone, ProtectionMissing, Busy.
        """
        network = self.network
        if network is not None:
            self._spec = await network.join(self._spec)
        self._creating = True
        try:
            self.sandbox = sandbox = await self._launch(self._order.key)
        except Exception:
            self._creating = False  # nothing is left of it
            raise
        self.enforced = dict(sandbox.enforced)
        self.guarantees = self._order.offer.check_walls(sandbox)
        self.image = str(getattr(sandbox, "image", ""))
        return sandbox, guest if network is None else await network.enter(sandbox, guest)

    async def _create(self, key: str) -> Sandbox:
        return await make_sandbox(self._order.offer, self._spec, key)

    async def _launch(self, key: str) -> Sandbox:
        """Creates the sandbox, with the first program where that can be."""
        if self._launching is None:
            return await self._create(key)
        first, launching = self._launching
        sandbox, self.launched_ago_s, self.launched_over = await launching
        self.launched = first
        return sandbox

    async def hand_back(self) -> None:
        """Learns that the program was started. Where it is kept, others may use the sandbox from now on."""

    async def attach(self) -> Sandbox:
        """Returns the sandbox that the order names, with its network. Raises SandboxGone when it ended, SandboxFault.

        Without the session of its network its connections fail, and it goes on.
        """
        assert self._order.handle is not None, "the order names it"
        self.sandbox = sandbox = await self._order.offer.backend.attach(self._order.handle)
        if self.network is not None:
            try:
                await self.network.resume(sandbox)
            except SkillyardError as error:
                self._emit(Fault("gate", error, self._order.key))
        return sandbox

    def own(self, ending: Ending) -> Ending:
        """Returns the ending of the run's program with the usage of this run alone."""
        return ending

    async def is_gone(self) -> bool:
        """Returns whether the backend holds the sandbox no more. Raises SandboxFault."""
        handle = self._order.handle if self.sandbox is None else self.sandbox.handle
        return all(held.handle != handle for held in await self._order.offer.backend.survey())

    async def may_repeat(self) -> bool:
        """Returns whether the run may be started anew behind :meth:`end`.

        Nothing of this attempt is left then.

        Raises SandboxFault where that is not sure yet.
        """
        if await self.is_gone():
            return True
        raise SandboxFault("the sandbox of the last attempt is not gone yet")

    def let_go(self) -> None:
        """Leaves the sandbox and its network to the next server."""
        self._over = True

    async def finish_creating(self) -> None:
        """Gets hold of a sandbox whose creation was interrupted: creating again gives the same one."""
        if self._creating and self.sandbox is None:
            self.sandbox = await self._create(self._order.key)

    async def end(self) -> Mapping[str, Any] | None:
        """Returns what the network saw when no process, mount or file of the sandbox is left. Can be repeated."""
        if self._over:
            return self._seen
        # One that ended by itself may have left something to remove, as a container that has exited.
        handle = self._order.handle if self.sandbox is None else self.sandbox.handle
        if handle is not None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._order.offer.backend.destroy(handle)
            except (SkillyardError, TimeoutError) as error:  # the sweep will find it
                self._emit(Fault("destroy", error, self._order.key))
        if self.network is not None:
            self._seen = await self._end_network(self.network)
        self._over = True
        return self._seen

    @property
    def may_part(self) -> bool:
        """Returns whether nothing but the sandbox is to be ended after its program."""
        return self.network is None and self.session is None and self.sandbox is not None

    def part(self, gone: Callable[[], Awaitable[None]]) -> None:
        """Leaves the end of a parting sandbox to a task of its own, which then calls ``gone``.

        The place is free when nothing of the sandbox is left. Where that fails, it is never free again: nobody knows
        what is left.
        """
        place, self._place, self._over = self._place, None, True
        self._tasks.spawn(self._parted(place, gone), f"end of {self._order.key}")

    async def _parted(self, place: Place | None, gone: Callable[[], Awaitable[None]]) -> None:
        assert self.sandbox is not None, "it was made"
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._order.offer.backend.destroy(self.sandbox.handle)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody must hear of it
            self._emit(Fault("destroy", error, self._order.key))
            return
        if place is not None:
            self._admission.leave(place)
        try:
            await gone()
        except SkillyardError as error:
            self._emit(Fault("record", error, self._order.key))

    async def _end_network(self, network: RunNetwork) -> dict[str, Any] | None:
        """Nothing of the sandbox is left that could use it. None for one that could not be resumed."""
        resumed = self._order.handle is None or network.resumed
        try:
            if resumed:
                return await network.close()
            await network.discard()
        except SkillyardError as error:
            self._emit(Fault("gate", error, self._order.key))
        return await network.so_far() if resumed else None

    async def _abandon(self) -> None:
        with suppress(SkillyardError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.finish_creating()
        await self.end()


async def make_sandbox(offer: Offer, spec: SandboxSpec, key: str) -> Sandbox:
    """Returns a sandbox, the same for the same key. Raises SandboxFault."""
    return await offer.backend.create(spec, key)


class Lender:
    """Lends sandboxes to callers that got a place for one."""

    def __init__(
        self,
        admission: Admission,
        tasks: Tasks,
        emit: Observer,
        commands: Room,
        promised: Budget,
        services: Budget,
    ) -> None:
        """``commands`` has the turns of detached commands; ``promised`` bounds their number.

        ``services`` bounds that of services. They take no turns: one that waited for another's end might wait for ever.
        """
        self.admission = admission
        self.tasks = tasks
        self._emit = emit
        self.commands = commands
        self.promised = promised
        self.services = services

    def check(self, tenant: str, limits: Limits, *, accepted: bool = False) -> None:
        """Raises InvalidInput for a sandbox that could never fit, Busy for one that may not wait.

        One that is ``accepted`` waits in a full queue too.
        """
        self.admission.check(tenant, limits.memory_mb + limits.disk_mb, accepted=accepted)

    def retake(self, tenant: str, limits: Limits, *, in_session: bool) -> Place:
        """Returns the place of a sandbox that an earlier server made, however full the host is.

        The space of a session's files is counted for as long as that lives, and not for its runs.
        """
        return self.admission.retake(tenant, limits.memory_mb + (0 if in_session else limits.disk_mb))

    def give_back(self, place: Place) -> None:
        """Frees a place that was retaken."""
        self.admission.leave(place)

    def lend(self, order: Order, queued: Queued | None = None) -> Loan:
        """Returns the loan, to be entered.

        ``queued`` is called with the number of those that wait when the loan has to wait for its place.
        """
        return Loan(order, self.admission, self.tasks, self._emit, queued)
