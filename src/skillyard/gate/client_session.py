"""Sessions of the gate, as its server holds them.

A kept session is sealed before its sandbox is made and after each change. When its gate dies it goes on in the next
one, from its sealed state: under the same id, with the same authority, placeholders, rules, names and log.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import GateFault, StoreFault
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import (
    PROXY_PORT,
    Connection,
    EgressPlan,
    Endpoint,
    EndpointKind,
    NetworkLog,
    proxy_env,
)
from skillyard.domain.sandbox.spec import Mount
from skillyard.gate.endpoints import Endpoints
from skillyard.gate.link import Link
from skillyard.gate.trust import TRUST_ENV, TrustFiles
from skillyard.gate.wire import AHEAD, PROTOCOL, log_in, plan_in, plan_out, policy_out
from skillyard.ipc.channel import Header
from skillyard.ports.gate import Answer, SessionStore
from skillyard.values import dataclass

PROXY_ENV: Mapping[str, str] = proxy_env(f"http://127.0.0.1:{PROXY_PORT}")
_SERVES_AGAIN = "another one serves the run now, and what the lost one saw last may be missing"
_KEPT = ("began", "names", "next", "usage", "log", "plan", "authority", "endpoints")
"""The parts of a session's state that are sealed."""


@dataclass(frozen=True, slots=True)
class Home:
    """Everything that sessions need of their gate's client.

    ``linked`` returns a living link, in which kept sessions go on; ``trusted`` the certificates by which a plan's
    servers are verified."""

    trust: TrustFiles
    endpoints: Endpoints
    store: SessionStore | None
    linked: Callable[[], Awaitable[Link]]
    trusted: Callable[[EgressPlan], str]
    forget: Callable[[ProcessSession], None]
    failed: Callable[[str], None]


class ProcessSession:
    """A :class:`~skillyard.ports.gate.GateSession` that ends with its server."""

    key = ""

    def __init__(
        self, id: str, link: Link, home: Home, policy: Policy, mount: Mount | None, unopened: Header | None = None
    ) -> None:
        self._id = id
        self._link = link
        self._home = home
        self._policy = policy
        self._mount = mount
        self._unopened = unopened
        """The request that opens the session, until it is sent."""
        self._known = NetworkLog()
        self._untaken = ""
        """Why the gate did not take sockets of the sandbox."""
        self._endpoints: list[Endpoint] = []
        self._finding_way = asyncio.Lock()
        self._closing: asyncio.Task[NetworkLog] | None = None
        self.ports: set[int] = set()
        """The ports of streams that the gate got."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def env(self) -> Mapping[str, str]:
        return {**PROXY_ENV, **(TRUST_ENV if self._mount is not None else {})}

    @property
    def mounts(self) -> Sequence[Mount]:
        return () if self._mount is None else (self._mount,)

    @property
    def policy(self) -> Policy:
        return self._policy

    def attend(self, plug: Callable[[], Awaitable[None]]) -> None:
        """Does nothing: this session is never opened again."""

    def answer_calls(self, answer: Answer) -> None:
        link, id = self._link, self._id
        link.calls[id] = lambda number, request: answer(request, lambda told: link.called(id, number, told))

    async def lost(self) -> str:
        return await asyncio.shield(self._link.lost)

    async def plug(self, sockets: Sequence[socket.socket]) -> None:
        """Gives ``sockets`` to the gate, without waiting until it has them: they listen already.

        The gate closes sockets that it does not take, which refuses connections, and the log says why. Raises
        GateFault."""
        ports = _ports(sockets)
        posted = self._link.post(self._message("plug"), sockets)
        self.ports |= ports
        posted.add_done_callback(self._plugged)
        if self._link.behind:  # our copies may be closed when this returns
            await asyncio.wait([posted])

    def _plugged(self, posted: asyncio.Future[dict[str, Any]]) -> None:
        if not posted.cancelled() and posted.exception() is None and "error" in posted.result():
            self._untaken = posted.result()["error"]
            self.ports.clear()

    async def endpoint(self, kind: EndpointKind) -> Endpoint:
        """Opens an endpoint. Raises GateFault."""
        endpoint, sock = self._home.endpoints.new(kind, self.key)
        try:
            await self._link.ask({**self._message("endpoint"), "endpoint": _told(endpoint)}, [sock])
        except BaseException:
            self._home.endpoints.forget(endpoint)
            raise
        self._endpoints.append(endpoint)
        return endpoint

    async def way(self) -> Endpoint:
        """Returns the endpoint for the backend of the sandbox. Raises GateFault."""
        async with self._finding_way:
            found = [endpoint for endpoint in self._known_endpoints() if endpoint.kind is EndpointKind.UNIX]
            return found[0] if found else await self.endpoint(EndpointKind.UNIX)

    def _known_endpoints(self) -> Sequence[Endpoint]:
        return self._endpoints

    async def change(self, policy: Policy) -> None:
        await self._link.ask({**self._message("change"), "policy": policy_out(policy)})
        self._policy = policy

    def _message(self, operation: str) -> Header:
        message: Header = {"op": operation, "session": self._id}
        if self._unopened is not None:
            message["open"], self._unopened = self._unopened, None
        return message

    async def log(self) -> NetworkLog:
        if self._closing is not None:
            return await asyncio.shield(self._closing)
        return await self._asked("log")

    async def close(self) -> NetworkLog:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> NetworkLog:
        try:
            return await self._asked("close")
        finally:
            self._home.forget(self)
            self._link.told.pop(self._id, None)
            self._link.calls.pop(self._id, None)
            if self._mount is not None:
                self._home.trust.remove(self._mount)
            for endpoint in self._endpoints:
                self._home.endpoints.forget(endpoint)

    async def _asked(self, operation: str) -> NetworkLog:
        if self._unopened is not None:  # it never had a sandbox
            return self._known
        try:
            self._known = log_in(await self._link.ask(self._message(operation)))
        except GateFault:
            if self._link.alive:
                raise
            return _and(self._told_last(), f"the gate was lost: {self._link.why}")
        return (
            _and(self._known, f"the gate did not take its sockets: {self._untaken}") if self._untaken else self._known
        )

    def _told_last(self) -> NetworkLog:
        """Returns the log as the gate reported it last."""
        told = self._link.told.get(self._id)
        return self._known if told is None else log_in(told)


class KeptSession(ProcessSession):
    """A :class:`~skillyard.ports.gate.GateSession` that outlives its server and its gate."""

    def __init__(self, key: str, id: str, link: Link, home: Home, store: SessionStore, state: Header) -> None:
        """``state`` is what was sealed. It is empty for a new session, and for one that the gate has still."""
        super().__init__(id, link, home, Policy(), home.trust.kept(key))
        self.key = key
        self._store = store
        self._state: Header = {name: state[name] for name in _KEPT if name in state}
        self._plug: Callable[[], Awaitable[None]] | None = None
        self._turn = asyncio.Lock()
        """Held while the session is opened, moved or closed."""
        self._writing = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._changed = False
        self._faulty = False
        self._over = False
        self._served_by: Link | None = None

    def attend(self, plug: Callable[[], Awaitable[None]]) -> None:
        self._plug = plug

    async def open(self, plan: EgressPlan) -> None:
        """Opens it, or has it go on under a new plan. Placeholders of before stay good. Raises GateFault."""
        if self._state:
            new = {secret.placeholder for secret in plan.secrets}
            old = plan_in(self._state["plan"]).secrets
            plan = replace(plan, secrets=(*plan.secrets, *(each for each in old if each.placeholder not in new)))
        async with self._turn:
            self._take(await self._link.ask(self._opening(plan_out(plan), self._home.trusted(plan))))
            self._link.hears[self._id] = self._hear
            self._served_by = self._link
            await self.seal()

    async def go_on(self, link: Link, why: str) -> bool:
        """Goes on in the gate of ``link``; returns whether that had to open it again. Raises GateFault.

        ``why`` says how its gate was lost."""
        async with self._turn:
            if self._over or self._served_by is link:
                return False
            lost = link.held.get(self.key) != self._id
            self._link.hears.pop(self._id, None)
            if lost:
                log = _and(log_in(self._state["log"]), f"the gate was lost: {why}; {_SERVES_AGAIN}")
                # Sealed first, else a further gate could give the same addresses for other names.
                await self._sealed_with({"log": log.as_dict(), "next": self._state["next"] + AHEAD})
                opening = self._opening(self._state["plan"], self._home.trusted(plan_in(self._state["plan"])))
                endpoints = self._state["endpoints"]
                self._take({**await link.ask({**opening, "before": self._state}), "endpoints": endpoints})
            else:
                self._take(await link.ask({"op": "attach", "session": self._id}))
            self._link = self._served_by = link
            link.hears[self._id] = self._hear
            for told in self._state["endpoints"] if lost else ():
                await self._again(told)
            if not lost:
                self._seal_soon()
            return lost

    async def log(self) -> NetworkLog:
        """Returns the log, of a session that could not go on before once it can."""
        if self._closing is None and not self._link.alive:
            link, why = await self._home.linked(), self._link.why
            if await self.go_on(link, why):
                await self.plug_again()
        return await super().log()

    async def lost(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def plug_again(self) -> None:
        """Has the sandbox plugged in again, where somebody attends."""
        if self._plug is not None and not self._over:
            await self._plug()

    async def plug(self, sockets: Sequence[socket.socket]) -> None:
        """Gives ``sockets`` to the gate. When that has just ended, the next one has the sandbox plugged in again."""
        if not self._link.alive:
            await self._home.linked()
        try:
            await super().plug(sockets)
        except GateFault:
            if self._link.alive:
                raise

    async def endpoint(self, kind: EndpointKind) -> Endpoint:
        if not self._link.alive:
            await self._home.linked()
        endpoint = await super().endpoint(kind)
        self._state["endpoints"] = [*self._state["endpoints"], _told(endpoint)]
        await self.seal()
        return endpoint

    def _known_endpoints(self) -> Sequence[Endpoint]:
        told = self._state["endpoints"]
        return [Endpoint(EndpointKind(one["kind"]), one["address"], one["credential"]) for one in told]

    async def change(self, policy: Policy) -> None:
        await self._sealed_with({"plan": {**self._state["plan"], "policy": policy_out(policy)}})
        try:
            await super().change(policy)
        except GateFault:
            if self._link.alive:
                raise
            await self._home.linked()  # it goes on from what was sealed
            await super().change(policy)

    async def leave(self) -> None:
        """Leaves the session to the next server, sealed as it is now. Raises GateFault."""
        if self._link.alive and not self._over:
            self._take(await self._link.ask({"op": "attach", "session": self._id}))
        if self._keeping is not None:
            await self._keeping
        await self.seal()

    async def seal(self) -> None:
        """Seals the state. Raises GateFault."""
        async with self._writing:
            if self._over:
                return
            upto = self._state["next"]
            try:
                await self._store.put(self.key, state_out(self._id, self._state, PROTOCOL))
            except StoreFault as error:
                raise GateFault(f"the network of a detached run cannot be kept: {error.message}") from error
        self._link.tell({"op": "sealed", "session": self._id, "next": upto})

    async def _sealed_with(self, changes: Header) -> None:
        """Changes the state when that could be sealed. Raises GateFault."""
        before = {name: self._state[name] for name in changes}
        self._state |= changes
        try:
            await self.seal()
        except GateFault:
            self._state |= before
            raise

    async def _close(self) -> NetworkLog:
        async with self._turn:
            try:
                return await super()._close()
            finally:
                async with self._writing:
                    self._over = True
                    self._link.hears.pop(self._id, None)
                    self._link.held.pop(self.key, None)
                    self._home.trust.forget(self.key)
                    self._home.endpoints.forget_kept(self.key)
                    await self._erase()

    async def _erase(self) -> None:
        try:
            await self._store.erase(self.key)
        except StoreFault as error:  # the sweep tries again
            self._home.failed(f"a session that has ended stays sealed: {error.message}")

    def _opening(self, plan: Header, trusted: str) -> Header:
        return {"op": "open", "session": self._id, "key": self.key, "plan": plan, "trusted": trusted}

    def _take(self, told: Header) -> None:
        """Takes what the gate says of the session. Raises GateFault when its certificates cannot be written."""
        new = told["authority"] and told["authority"] != self._state.get("authority")
        self._state |= {name: told[name] for name in _KEPT}
        self.ports = set(told["ports"])
        self._policy = plan_in(told["plan"]).policy
        if told.get("trust") and (new or self._mount is None):
            try:
                self._mount = self._home.trust.write(told["trust"].encode("ascii"), self.key)
            except OSError as error:
                raise GateFault(f"the certificates for a sandbox cannot be written: {error.strerror}") from error

    async def _again(self, told: Header) -> None:
        """Opens an endpoint again. One whose address was taken is missing, and the log says so."""
        try:
            sock = self._home.endpoints.again(told)
            await self._link.ask({"op": "endpoint", "session": self._id, "endpoint": told}, [sock])
        except GateFault as error:
            self._untaken = f"{told['kind']} {told['address']}: {error.message}"

    def _hear(self, message: Header) -> None:
        """Takes a report of the gate, and seals it soon."""
        self._state |= {name: message[name] for name in _KEPT if name in message}
        self._seal_soon()

    def _seal_soon(self) -> None:
        self._changed = True
        if self._keeping is None and not self._over:
            self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        while self._changed:
            self._changed = False
            try:
                await self.seal()
                self._faulty = False
            except GateFault as error:
                if not self._faulty:
                    self._home.failed(error.message)
                self._faulty = True
        self._keeping = None

    def _told_last(self) -> NetworkLog:
        return log_in(self._state["log"]) if self._state else self._known


def state_out(id: str, state: Header, version: int) -> bytes:
    """Returns the state of a kept session as it is sealed. ``version`` is that of the gate that told it."""
    return json.dumps({**state, "session": id, "version": version}).encode()


def _told(endpoint: Endpoint) -> Header:
    return {"kind": endpoint.kind.value, "address": endpoint.address, "credential": endpoint.credential}


def _ports(sockets: Sequence[socket.socket]) -> set[int]:
    """Returns the ports of the streams among them."""
    internet = (socket.AF_INET, socket.AF_INET6)
    return {s.getsockname()[1] for s in sockets if s.family in internet and s.type == socket.SOCK_STREAM}


def _and(log: NetworkLog, befell: str) -> NetworkLog:
    """Returns ``log`` with an event of the gate itself."""
    return NetworkLog((*log.connections, Connection("gate", "", 0, False, "gate", "", befell, 1)), log.dropped)
