"""The server's gate: a process that starts at the first need, and again when it died.

The gate of an earlier server, which holds kept sessions, is found instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from skillyard.domain.errors import GateFault, StoreFault
from skillyard.domain.network.session import EgressPlan, Endpoint, EndpointKind
from skillyard.gate.client_session import Home, KeptSession, ProcessSession, state_out
from skillyard.gate.endpoints import Endpoints
from skillyard.gate.link import Link, linked
from skillyard.gate.trust import TrustFiles, operators
from skillyard.gate.wire import PROTOCOL, plan_out, state_in
from skillyard.ports.gate import SessionStore

T = TypeVar("T")

_LOG = logging.getLogger("skillyard.gate")
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_PATIENCE_S = 10.0
"""How long the gate may take for one session."""
_TRIES = 3
"""How often a kept session is asked for while gates end."""
_UNSEEN = "its process ended while no server was there to see it"


class ProcessGate:
    """Implements :class:`~skillyard.ports.gate.Gate` with a process.

    ``directory`` (made, 0700) holds files that are shown to sandboxes, and the socket by which the process is found;
    ``uid`` is the user that the gate of a server of root becomes; ``ca_file`` has further certificates to trust real
    servers by; ``sessions`` seals the state of kept sessions, of which there are none without it."""

    def __init__(
        self, directory: Path, *, uid: int, ca_file: Path | None = None, sessions: SessionStore | None = None
    ) -> None:
        trust, endpoints = TrustFiles(directory, ca_file), Endpoints(directory / "endpoints")
        self._home = Home(trust, endpoints, sessions, self._linked, self._trusted, self._forget, self._failed)
        self._directory = directory
        self._ca_file = ca_file
        self._uid = uid
        self._link: Link | None = None
        self._starting = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._sessions: dict[str, ProcessSession] = {}
        self._kept: dict[str, KeptSession] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._on_end: Callable[[str], None] = lambda _: None
        self._on_fault: Callable[[str], None] = _told_in_the_log
        self._on_version: Callable[[str], None] = _told_in_the_log
        self._why_gone = _UNSEEN
        """How the gate was lost that an earlier server had."""

    @property
    def part(self) -> str:
        return "gate"

    @property
    def older(self) -> str:
        """Returns nothing: a gate of an earlier version is ended when it is found."""
        return ""

    def attend(self, ended: Callable[[str], None], failed: Callable[[str], None], told: Callable[[str], None]) -> None:
        self._on_end, self._on_fault, self._on_version = ended, failed, told

    async def restart(self) -> None:
        await self._linked()

    async def start(self) -> Mapping[str, Any]:
        """Starts the process ahead of the first session; returns facts about its walls.

        Raises GateFault. The facts are ``uid``, ``landlock`` (version, 0 without), ``descriptors`` and ``missing``
        (texts)."""
        return (await self._linked()).facts

    async def open(self, key: str, plan: EgressPlan, kept: bool = False) -> ProcessSession:
        link = await self._linked()
        if kept:
            return await self._open_kept(key, plan)
        id = f"{key}.{token_hex(8)}"
        request = {"op": "open", "session": id, "plan": plan_out(plan), "trusted": self._trusted(plan)}
        if not plan.secrets:
            return self._opened_at_once(id, link, request, plan)
        try:
            answer = await link.ask(request)
        except asyncio.CancelledError:
            link.tell({"op": "close", "session": id})
            raise
        try:
            mount = self._home.trust.write(answer["trust"].encode("ascii")) if answer["trust"] else None
        except OSError as error:
            link.tell({"op": "close", "session": id})
            raise GateFault(f"the certificates for a sandbox cannot be written: {error.strerror}") from error
        session = self._sessions[id] = ProcessSession(id, link, self._home, plan.policy, mount)
        return session

    def _opened_at_once(self, id: str, link: Link, request: dict[str, Any], plan: EgressPlan) -> ProcessSession:
        """Opens a session with its first request, since each message wakes the gate.

        Nothing of the answer is needed. A gate that does not open the session refuses the sockets of its sandbox."""
        if not link.alive:
            raise GateFault(f"the gate is gone: {link.why}")
        session = self._sessions[id] = ProcessSession(id, link, self._home, plan.policy, None, request)
        return session

    async def _open_kept(self, key: str, plan: EgressPlan) -> KeptSession:
        if not _KEY.fullmatch(key):
            raise GateFault("the key of a kept session must be 1 to 128 letters, digits, '_' and '-'")
        return await self._whichever_gate(lambda: self._opened(key, plan))

    async def _opened(self, key: str, plan: EgressPlan) -> KeptSession:
        session = await self._found(key)
        if session is not None:
            await session.open(plan)
            return session
        id = f"{key}.{token_hex(8)}"
        session = KeptSession(key, id, await self._linked(), self._home, self._store, {})
        try:
            await session.open(plan)
        except BaseException:
            await asyncio.shield(self._drop(session))
            raise
        return self._holds(session)

    async def _whichever_gate(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of ``work``, which is done again when the gate ends meanwhile. Raises GateFault."""
        async with self._opening:
            for _ in range(_TRIES):
                link = await self._linked()
                try:
                    return await work()
                except GateFault as error:
                    fault = error
                    if link.alive:
                        break
            raise fault

    async def _drop(self, session: KeptSession) -> None:
        """Ends a session that could not be opened whole."""
        with suppress(GateFault):
            await session.close()

    async def attach(self, key: str) -> KeptSession:
        session = await self._whichever_gate(lambda: self._found(key))
        if session is None:
            raise GateFault(f"the gate keeps no session '{key}'")
        return session

    async def _found(self, key: str) -> KeptSession | None:
        """Returns the kept session that is open, that a gate still has, or that a gate lost."""
        if key in self._kept:
            return self._kept[key]
        store, link = self._store, await self._linked()
        if (id := link.held.get(key)) is not None:
            session = KeptSession(key, id, link, self._home, store, {})
        else:
            try:
                sealed = await store.get(key)
            except StoreFault as error:
                raise GateFault(f"the network of a detached run cannot be had again: {error.message}") from error
            if sealed is None:
                return None
            state = json.loads(sealed)
            if (version := state.get("version", 1)) > PROTOCOL:
                raise GateFault(
                    f"a newer release sealed the session of '{key}' (version {version}): start that release"
                )
            session = KeptSession(key, state["session"], link, self._home, store, state_in(state, version))
        await session.go_on(link, self._why_gone)
        return self._holds(session)

    def _holds(self, session: KeptSession) -> KeptSession:
        self._kept[session.key] = self._sessions[session.id] = session
        return session

    async def held(self) -> Collection[str]:
        if self._home.store is None:
            return frozenset(self._kept)
        link = self._link if self._link is not None and self._link.alive else await self._looked()
        try:
            return {*self._kept, *(link.held if link is not None else ()), *await self._home.store.keys()}
        except StoreFault as error:
            raise GateFault(error.message) from error

    async def discard(self, key: str) -> None:
        async with self._opening:
            link = self._link if self._link is not None and self._link.alive else await self._looked()
            if key in self._kept:
                await self._kept[key].close()
            elif link is not None:
                await link.ask({"op": "discard", "key": key})
                link.held.pop(key, None)
            self._home.trust.forget(key)
            self._home.endpoints.forget_kept(key)
            try:
                await self._store.erase(key)
            except StoreFault as error:
                raise GateFault(error.message) from error

    async def endpoint(self, key: str, kind: EndpointKind) -> Endpoint:
        found = [session for id, session in self._sessions.items() if id.rpartition(".")[0] == key]
        if not found:
            raise GateFault(f"there is no open session '{key}'")
        return await found[-1].endpoint(kind)

    async def way(self, session: str) -> Endpoint:
        opened = self._sessions.get(session)
        if opened is None:
            raise GateFault("the gate knows no such session")
        return await opened.way()

    async def plug(self, session: str, sockets: Sequence[socket.socket]) -> None:
        opened = self._sessions.get(session)
        if opened is None:
            for sock in sockets:
                sock.close()
            raise GateFault("the gate knows no such session")
        await opened.plug(sockets)

    def served(self, session: str) -> Collection[int]:
        opened = self._sessions.get(session)
        return () if opened is None else opened.ports

    async def close(self) -> None:
        """Ends sessions and process, but for kept sessions, which the gate goes on to serve."""
        self._closed = True
        async with self._starting:
            for session in list(self._sessions.values()):
                await self._end(session)
            link, self._link = self._link, None
            if link is not None:
                await link.close(keeps=bool(self._kept or link.held))
        for task in list(self._tasks):
            task.cancel()

    async def _end(self, session: ProcessSession) -> None:
        if not isinstance(session, KeptSession):
            await session.close()
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await session.leave()
        except GateFault as error:
            self._failed(error.message)
        except TimeoutError:
            self._failed("the gate does not answer")

    async def _linked(self) -> Link:
        """Returns a living link. In a new one, kept sessions go on."""
        if self._link is not None and self._link.alive and not self._starting.locked() and not self._closed:
            return self._link
        link = await asyncio.shield(self._spawned(self._joined(start=True)))
        assert link is not None
        return link

    async def _looked(self) -> Link | None:
        """Returns a link to a gate that is there already."""
        return await asyncio.shield(self._spawned(self._joined(start=False)))

    async def _joined(self, *, start: bool) -> Link | None:
        """Finds or starts the gate, also when a caller goes away: the other sessions need it."""
        async with self._starting:
            if self._closed:
                raise GateFault("the gate is closed")
            if self._link is None or not self._link.alive:
                found = await linked(self._directory, self._uid, self._failed, self._end_older, start=start)
                if found is None:
                    return None
                await self._take(found)
            return self._link

    def _spawned(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be waiting

    async def _take(self, link: Link) -> None:
        why = self._why_gone if self._link is None else self._link.why
        self._link = link
        link.on_end = self._ended
        for missing in link.facts["missing"]:
            _LOG.warning("the gate runs without %s", missing)
        for session in list(self._kept.values()):
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    if await session.go_on(link, why):
                        self._plug_again(session)
            except GateFault as error:  # it is tried again when its log is looked at
                self._failed(f"a detached run is without a network: {error.message}")
            except TimeoutError:
                link.drop()
                raise GateFault("the gate does not answer") from None

    async def _end_older(self, older: Link) -> None:
        """Ends a gate of an earlier version. Its kept sessions are sealed before, and go on in the next gate.

        Raises GateFault, and then that gate serves them still."""
        held = dict(older.held)
        for key, id in held.items():
            try:
                state = await older.ask({"op": "attach", "session": id})
                await self._store.put(key, state_out(id, state, older.version))
            except StoreFault as error:
                raise GateFault(f"the gate of version {older.version} cannot be ended: {error.message}") from error
            await older.ask({"op": "discard", "key": key})
        self._why_gone = f"it was of version {older.version}, its server is of version {PROTOCOL}"
        await older.close(keeps=False)
        go = "a session of a detached run goes" if len(held) == 1 else f"{len(held)} sessions of detached runs go"
        self._on_version(f"a gate of version {older.version} was ended; {go} on in one of version {PROTOCOL}")

    def _plug_again(self, session: KeptSession) -> None:
        """Has a sandbox plugged in again, in a task: that needs the link which is being made."""

        async def plug() -> None:
            try:
                await session.plug_again()
            except Exception as error:  # noqa: BLE001 - told, and the other sessions are served all the same
                self._failed(f"a detached run is without a network: {error}")

        self._spawned(plug())

    @property
    def _store(self) -> SessionStore:
        if self._home.store is None:
            raise GateFault("this server has no store for the sessions of detached runs")
        return self._home.store

    def _trusted(self, plan: EgressPlan) -> str:
        if not plan.secrets:
            return ""
        try:
            return operators(self._ca_file).decode("ascii", "ignore")
        except OSError as error:
            raise GateFault(f"network.ca_file: {error.strerror}") from error

    def _ended(self, why: str) -> None:
        self._on_end(why)

    def _failed(self, text: str) -> None:
        self._on_fault(text)

    def _forget(self, session: ProcessSession) -> None:
        self._sessions.pop(session.id, None)
        if self._kept.get(session.key) is session:
            del self._kept[session.key]


def _told_in_the_log(text: str) -> None:
    _LOG.warning("the gate had a fault of its own: %s", text)
