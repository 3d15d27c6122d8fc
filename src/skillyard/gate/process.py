"""The gate's own process: it does what its server asks.

It ends with its server, unless it has kept sessions: then it goes on, and the next server connects to its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import ssl
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from skillyard.domain.network.session import EgressPlan
from skillyard.gate.addresses import OwnAddresses
from skillyard.gate.dial import Dialer
from skillyard.gate.listener import Capacity, Listeners, raise_descriptors
from skillyard.gate.session import Session
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.tools import ToolDesk
from skillyard.gate.trust import upstream_context
from skillyard.gate.wire import MAX_MESSAGE, PROTOCOL, plan_in, plan_out, policy_in
from skillyard.ipc.channel import Channel, Header, encode
from skillyard.ipc.peers import peer
from skillyard.sandbox.native.linux import jail
from skillyard.watches import new_event_loop

_MOST_REASON = 500
_TELL_S = 1.0
_ALONE_S = 4.0
"""How long a gate waits for its first server."""
_BACKLOG = 8
_MOST_LOG = 1 << 20
"""Bytes that a gate may write to its log, which is its standard error: nothing else is open for writing."""


def main(config: dict[str, Any]) -> None:
    """Runs the gate in the background, and says ``ready`` on standard output.

    ``config`` has ``listener``, the descriptor of a listening Unix socket; ``lock``, one that is held until the gate
    has ended; ``uid``, the user that a process of root becomes; ``read``, Python's directories."""
    if os.fork():  # the gate is nobody's child: it may outlive its server
        os._exit(0)
    listener = socket.socket(fileno=config["listener"])
    owner = os.geteuid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for the server, which drains first
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_LOG, _MOST_LOG))
    descriptors = raise_descriptors()
    own = OwnAddresses()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    _load_lazily_imported()
    facts = jail.enter(config["uid"], (*config["read"], *jail.for_the_network()))
    gc.collect()
    gc.freeze()
    listener.listen(_BACKLOG)  # once more: from here on the server sees our pid and user (unix(7), SO_PEERCRED)
    os.write(1, b"ready")
    os.dup2(null, 1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(listener, owner, own, facts | {"descriptors": descriptors}))


def _load_lazily_imported() -> None:
    """Imports modules that lookups, certificates and tracebacks would import later.

    Our files may be out of reach then."""
    import encodings.idna
    import encodings.latin_1  # noqa: F401

    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", None)


async def _serve(listener: socket.socket, owner: int, own: OwnAddresses, facts: dict[str, Any]) -> None:
    service = Service(Dialer(own), Capacity(facts["descriptors"]), facts)

    def fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), BaseException):
            service.report_fault(error)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(fault)
    loop.add_reader(listener.fileno(), _accept, listener, owner, service)
    await service.ended.wait()
    os._exit(0)  # everything of a session is in this process; a lookup that hangs must not keep it


def _accept(listener: socket.socket, owner: int, service: Service) -> None:
    """Takes the connection of a server, which is a process of the user that started this one."""
    try:
        sock, _ = listener.accept()
    except OSError:
        return
    if (uid := peer(sock)[1]) == owner:
        service.connect(sock)
    else:
        service.report_fault(PermissionError(f"the user {uid} asked for a connection"))
        sock.close()


class Service:
    """Opens, plugs, changes, logs and closes sessions for one server at a time.

    ``ended`` is set when the server is gone and no session is kept."""

    def __init__(self, dialer: Dialer, capacity: Capacity, facts: Mapping[str, Any]) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._dialer = dialer
        self._capacity = capacity
        self._facts = facts
        self._sessions: dict[str, _Open] = {}
        self._channel: Channel | None = None
        self._loop.call_later(_TELL_S, self._report_logs)
        self._loop.call_later(_ALONE_S, self._leave)

    def connect(self, sock: socket.socket) -> None:
        """Serves the server at the other end of ``sock``; turns it away while there is another."""
        if self.ended.is_set():
            sock.close()
            return
        if self._channel is not None:
            with contextlib.suppress(OSError):
                sock.send(encode({"op": "refused", "why": "it serves another server"}))
            sock.close()
            return
        self._channel = Channel(self._loop, sock, self._message, self._lost, MAX_MESSAGE)
        held = {opened.key: id for id, opened in self._sessions.items() if opened.key}
        self.tell({"op": "ready", "protocol": PROTOCOL, "held": held, **self._facts})

    def _lost(self) -> None:
        self._channel = None
        for id in [id for id, opened in self._sessions.items() if not opened.key]:
            self._close({"session": id})
        self._leave()

    def _leave(self) -> None:
        if self._channel is None and not self._sessions:
            self.ended.set()

    def tell(self, message: Header, body: bytes = b"") -> None:
        if self._channel is not None:
            self._channel.send(message, body)

    def _ask(self, session: str, number: int, request: bytes) -> bool:
        """Passes a call of a tool on; returns whether there is a server."""
        self.tell({"op": "call", "session": session, "call": number}, request)
        return self._channel is not None

    def report_fault(self, fault: BaseException) -> None:
        """Reports an unforeseen fault for the server's log.

        Nothing that a connection carried is in it."""
        trace, where = fault.__traceback__, ""
        while trace is not None:
            where = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119
            trace = trace.tb_next
        self.tell({"op": "trouble", "text": f"{type(fault).__name__} at {where}"})

    def _report_logs(self) -> None:
        """Sends logs that changed, so that a record has them should this process be lost."""
        self._loop.call_later(_TELL_S, self._report_logs)
        if self._channel is None or self._channel.behind:
            return
        for id, opened in self._sessions.items():
            if opened.session.log.changed:
                opened.session.log.changed = False
                try:
                    told = opened.session.state if opened.key else {"log": opened.session.report().as_dict()}
                    self.tell({"op": "log", "session": id, **told})
                except Exception as fault:  # noqa: BLE001 - one session's fault is not another's
                    self.report_fault(fault)

    def _message(self, message: Header, body: bytes, fds: list[int]) -> None:
        if message.get("op") == "called":
            self._called(message, body)
            return
        sockets: list[socket.socket] = []
        answer: Header = {"id": message.get("id")}
        try:
            while fds:
                sockets.append(socket.socket(fileno=fds[0]))
                del fds[0]
            answer["ok"] = self._do(message, sockets)
        except Exception as error:  # noqa: BLE001 - an answer must come
            answer["error"] = str(error)[:_MOST_REASON] or type(error).__name__
            for sock in sockets:
                sock.close()
            for fd in fds:
                os.close(fd)
        self.tell(answer)

    def _called(self, message: Header, answer: bytes) -> None:
        """Passes an answer on. One of a session that is over is dropped."""
        opened = self._sessions.get(message["session"])
        if opened is not None and opened.session.tools is not None:
            opened.session.tools.answered(message["call"], answer)

    def _do(self, message: Header, sockets: list[socket.socket]) -> Any:
        if "open" in message:
            self._open(message["open"])
        match message["op"]:
            case "open":
                return self._open(message)
            case "attach":
                return self._found(message).state
            case "sealed":
                return self._sealed(message)
            case "plug":
                return self._found(message).listeners.add(sockets)
            case "endpoint":
                return self._endpoint(message, sockets)
            case "change":
                return self._change(message)
            case "log":
                return self._found(message).session.report().as_dict()
            case "close":
                return self._close(message)
            case "discard":
                return self._discard(message["key"])
            case "held":
                return len([opened for opened in self._sessions.values() if opened.key])
            case other:
                raise LookupError(f"the gate knows no {other}")

    def _open(self, message: Header) -> Any:
        """Opens a session, by itself or with its first request.

        A kept one has a ``key``. One that is open goes on under a new plan; one that another gate had goes on from
        ``before``, its state."""
        plan = plan_in(message["plan"])
        known = self._sessions.get(message["session"])
        before = message.get("before")
        authority = known.authority if known is not None else before["authority"] if before else ""
        interception = self._interception(plan, message["trusted"], authority)
        if known is None:
            session = Session(message["session"], plan, self._dialer, interception, before)
            if plan.tools is not None:
                session.tools = ToolDesk(plan.tools, partial(self._ask, session.id))
            listeners = Listeners(session, self._capacity, self.report_fault)
            known = self._sessions[session.id] = _Open(session, listeners, plan, message.get("key", ""))
            if known.key and before is None:
                session.names.sealed = 0
            self._capacity.sessions += 1
        else:
            known.session.renew(plan, interception)
            known.plan = plan
        trust = interception.trust.decode("ascii") if interception is not None else ""
        return {"trust": trust, **known.state} if known.key else {"trust": trust}

    def _interception(self, plan: EgressPlan, trusted: str, before: str) -> Interception | None:
        """Returns the end of TLS where there are secrets. Its authority is that of ``before`` for the same hosts."""
        if not plan.secrets:
            return None
        verify = partial(_verifying, trusted)
        if not _verifying.cache_info().currsize:  # before the first connection has to wait for it
            self._loop.run_in_executor(None, verify)
        return Interception(plan.secrets, verify, before)

    def _sealed(self, message: Header) -> None:
        self._found(message).session.names.sealed = int(message["next"])

    def _endpoint(self, message: Header, sockets: list[socket.socket]) -> None:
        found, (sock,) = self._found(message), sockets
        found.listeners.add_endpoint(sock, message["endpoint"]["credential"])
        found.endpoints.append(message["endpoint"])

    def _change(self, message: Header) -> None:
        found, policy = self._found(message), policy_in(message["policy"])
        found.plan = replace(found.plan, policy=policy)
        found.session.change(policy)

    def _close(self, message: Header) -> Any:
        opened = self._found(message)
        del self._sessions[message["session"]]
        self._capacity.sessions -= 1
        told = opened.session.close().as_dict()
        self._loop.call_soon(opened.listeners.close)  # after the answer: the kernel takes its time with sockets
        return told

    def _discard(self, key: str) -> None:
        """Ends the kept session ``key``, if there is one."""
        for id in [id for id, opened in self._sessions.items() if key and opened.key == key]:
            self._close({"session": id})

    def _found(self, message: Header) -> _Open:
        if (found := self._sessions.get(message["session"])) is None:
            raise LookupError("the gate knows no such session")
        return found


@lru_cache(2)
def _verifying(trusted: str) -> ssl.SSLContext:
    """Returns the context that verifies servers.

    Reading the system's certificates takes tens of milliseconds."""
    return upstream_context(trusted)


class _Open:
    """A session with its sockets. A kept one has a ``key``."""

    def __init__(self, session: Session, listeners: Listeners, plan: EgressPlan, key: str) -> None:
        self.session = session
        self.listeners = listeners
        self.plan = plan
        self.key = key
        self.endpoints: list[Header] = []

    @property
    def authority(self) -> str:
        interception = self.session.interception
        return "" if interception is None else interception.kept

    @property
    def state(self) -> Header:
        """Returns all that the next server needs, secrets and keys included."""
        return {
            **self.session.state,
            "plan": plan_out(self.plan),
            "authority": self.authority,
            "endpoints": self.endpoints,
            "ports": self.listeners.ports,
        }
