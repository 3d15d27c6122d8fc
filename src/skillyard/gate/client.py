"""The server's gate: a process that starts at the first need, and again when it died."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from skillyard.domain.errors import GateFault
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import PROXY_PORT, Connection, EgressPlan, NetworkLog
from skillyard.domain.sandbox.spec import Mount
from skillyard.gate.link import Link, start
from skillyard.gate.trust import TRUST_ENV, TrustFiles, operators
from skillyard.gate.wire import log_in, plan_out, policy_out
from skillyard.ipc.channel import Header

_LOG = logging.getLogger("skillyard.gate")
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_LOCAL = "localhost,127.0.0.1,::1"
PROXY_ENV: Mapping[str, str] = MappingProxyType(
    {name: _PROXY for word in ("http_proxy", "https_proxy") for name in (word, word.upper())}
    | dict.fromkeys(("no_proxy", "NO_PROXY"), _LOCAL)
)
"""Not ALL_PROXY: httpx fails on it without a SOCKS library. ftp clients and others take the transparent path."""


class ProcessGate:
    """Implements :class:`~skillyard.ports.gate.Gate` with a process.

    ``directory`` (made, 0700) holds files that are shown to sandboxes; ``uid`` is the user that the gate of a server
    of root becomes; ``ca_file`` has further certificates to trust real servers by."""

    def __init__(self, directory: Path, *, uid: int, ca_file: Path | None = None) -> None:
        self._trust = TrustFiles(directory, ca_file)
        self._ca_file = ca_file
        self._uid = uid
        self._link: Link | None = None
        self._starting = asyncio.Lock()
        self._sessions: dict[str, ProcessSession] = {}
        self._closed = False
        self._on_end: Callable[[str], None] = lambda _: None
        self._on_fault: Callable[[str], None] = _told_in_the_log

    @property
    def part(self) -> str:
        return "gate"

    def attend(self, ended: Callable[[str], None], failed: Callable[[str], None]) -> None:
        self._on_end, self._on_fault = ended, failed

    async def restart(self) -> None:
        await self._linked()

    async def start(self) -> Mapping[str, Any]:
        """Starts the process ahead of the first session; returns facts about its walls.

        Raises GateFault. The facts are ``uid``, ``landlock`` (version, 0 without), ``descriptors`` and ``missing``
        (texts)."""
        return (await self._linked()).facts

    async def open(self, key: str, plan: EgressPlan) -> ProcessSession:
        link = await self._linked()
        id = f"{key}.{token_hex(8)}"
        request = {"op": "open", "session": id, "plan": plan_out(plan), "trusted": self._trusted(plan)}
        if not plan.secrets:
            return self._opened_at_once(id, link, request)
        try:
            answer = await link.ask(request)
        except asyncio.CancelledError:
            link.tell({"op": "close", "session": id})
            raise
        try:
            mount = self._trust.write(answer["trust"].encode("ascii")) if answer["trust"] else None
        except OSError as error:
            link.tell({"op": "close", "session": id})
            raise GateFault(f"the certificates for a sandbox cannot be written: {error.strerror}") from error
        session = ProcessSession(id, link, mount, self._trust, self._forget)
        self._sessions[id] = session
        return session

    def _opened_at_once(self, id: str, link: Link, request: Mapping[str, Any]) -> ProcessSession:
        """Opens a session with its first request, since each message wakes the gate.

        Nothing of the answer is needed. A gate that does not open the session refuses the sockets of its sandbox."""
        if not link.alive:
            raise GateFault(f"the gate is gone: {link.why}")
        session = self._sessions[id] = ProcessSession(id, link, None, self._trust, self._forget, request)
        return session

    async def plug(self, session: str, sockets: Sequence[socket.socket]) -> None:
        opened = self._sessions.get(session)
        if opened is None:
            for sock in sockets:
                sock.close()
            raise GateFault("the gate knows no such session")
        await opened.plug(sockets)

    async def close(self) -> None:
        self._closed = True
        async with self._starting:
            for session in list(self._sessions.values()):
                await session.close()
            link, self._link = self._link, None
            if link is not None:
                await link.close()

    async def _linked(self) -> Link:
        async with self._starting:
            if self._closed:
                raise GateFault("the gate is closed")
            if self._link is None or not self._link.alive:
                self._link = await start(self._uid, self._on_fault)
                self._link.on_end = self._on_end
                for missing in self._link.facts["missing"]:
                    _LOG.warning("the gate runs without %s", missing)
            return self._link

    def _trusted(self, plan: EgressPlan) -> str:
        if not plan.secrets:
            return ""
        try:
            return operators(self._ca_file).decode("ascii", "ignore")
        except OSError as error:
            raise GateFault(f"network.ca_file: {error.strerror}") from error

    def _forget(self, session: ProcessSession) -> None:
        self._sessions.pop(session.id, None)


class ProcessSession:
    """Implements :class:`~skillyard.ports.gate.GateSession`."""

    def __init__(
        self,
        id: str,
        link: Link,
        mount: Mount | None,
        trust: TrustFiles,
        forget: Any,
        unopened: Mapping[str, Any] | None = None,
    ) -> None:
        self._id = id
        self._link = link
        self._unopened = unopened
        """The request that opens the session, until it is sent."""
        self._mount = mount
        self._trust = trust
        self._forget = forget
        self._known = NetworkLog()
        self._untaken = ""
        """Why the gate did not take sockets of the sandbox."""
        self._closing: asyncio.Task[NetworkLog] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def env(self) -> Mapping[str, str]:
        return {**PROXY_ENV, **(TRUST_ENV if self._mount is not None else {})}

    @property
    def mounts(self) -> Sequence[Mount]:
        return () if self._mount is None else (self._mount,)

    async def plug(self, sockets: Sequence[socket.socket]) -> None:
        """Gives ``sockets`` to the gate, without waiting until it has them: they listen already.

        The gate closes sockets that it does not take, which refuses connections, and the log says why. Raises
        GateFault."""
        posted = self._link.post(self._message("plug"), sockets)
        posted.add_done_callback(self._plugged)
        if self._link.behind:  # our copies may be closed when this returns
            await asyncio.wait([posted])

    def _plugged(self, posted: asyncio.Future[dict[str, Any]]) -> None:
        if not posted.cancelled() and posted.exception() is None and "error" in posted.result():
            self._untaken = posted.result()["error"]

    async def change(self, policy: Policy) -> None:
        await self._link.ask({**self._message("change"), "policy": policy_out(policy)})

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
            self._forget(self)
            self._link.told.pop(self._id, None)
            if self._mount is not None:
                self._trust.remove(self._mount)

    async def _asked(self, operation: str) -> NetworkLog:
        if self._unopened is not None:  # it never had a sandbox
            return self._known
        try:
            self._known = log_in(await self._link.ask(self._message(operation)))
        except GateFault:
            if self._link.alive:
                raise
            told = self._link.told.get(self._id)
            known = self._known if told is None else log_in(told)
            return _and(known, f"the gate was lost: {self._link.why}")
        return (
            _and(self._known, f"the gate did not take its sockets: {self._untaken}") if self._untaken else self._known
        )


def _told_in_the_log(text: str) -> None:
    _LOG.warning("the gate had a fault of its own: %s", text)


def _and(log: NetworkLog, befell: str) -> NetworkLog:
    """Returns ``log`` with an event of the gate itself."""
    return NetworkLog((*log.connections, Connection("gate", "", 0, False, "gate", "", befell, 1)), log.dropped)
