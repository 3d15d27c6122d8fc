"""The gate's own process: it does what its server asks, and ends with its server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
from functools import lru_cache, partial
from typing import Any

from skillyard.gate.addresses import OwnAddresses
from skillyard.gate.dial import Dialer
from skillyard.gate.listener import Capacity, Listeners, raise_descriptors
from skillyard.gate.session import Session
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.trust import upstream_context
from skillyard.gate.wire import MAX_MESSAGE, plan_in, policy_in
from skillyard.ipc.channel import Channel, Header
from skillyard.sandbox.native.linux import jail
from skillyard.watches import new_event_loop

_MOST_REASON = 500
_TELL_S = 1.0


def main(config: dict[str, Any]) -> None:
    """Runs the gate.

    ``config`` has ``channel``, the descriptor of one end of a connected Unix socket; ``uid``, the user that a process
    of root becomes; ``read``, Python's directories."""
    channel = socket.socket(fileno=config["channel"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for the server, which drains first
    descriptors = raise_descriptors()
    own = OwnAddresses()
    _load_lazily_imported()
    facts = jail.enter(config["uid"], (*config["read"], *jail.for_the_network()))
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(channel, own, descriptors, facts | {"descriptors": descriptors}))


def _load_lazily_imported() -> None:
    """Imports modules that lookups, certificates and tracebacks would import later.

    Our files may be out of reach then."""
    import encodings.idna
    import encodings.latin_1  # noqa: F401

    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", None)


async def _serve(channel: socket.socket, own: OwnAddresses, descriptors: int, facts: dict[str, Any]) -> None:
    service = Service(channel, Dialer(own), Capacity(descriptors))

    def fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), BaseException):
            service.report_fault(error)

    asyncio.get_running_loop().set_exception_handler(fault)
    service.tell({"op": "ready", **facts})
    await service.ended.wait()
    os._exit(0)  # everything of a session is in this process; a lookup that hangs must not keep it


class Service:
    """Opens, plugs, changes, logs and closes sessions; ``ended`` is set when the server is gone."""

    def __init__(self, sock: socket.socket, dialer: Dialer, capacity: Capacity) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._dialer = dialer
        self._capacity = capacity
        self._sessions: dict[str, _Open] = {}
        self._channel = Channel(self._loop, sock, self._message, self.ended.set, MAX_MESSAGE)
        self._loop.call_later(_TELL_S, self._report_logs)

    def tell(self, message: Header) -> None:
        self._channel.send(message)

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
        for id, opened in () if self._channel.behind else self._sessions.items():
            if opened.session.log.changed:
                opened.session.log.changed = False
                try:
                    self.tell({"op": "log", "session": id, "log": opened.session.report().as_dict()})
                except Exception as fault:  # noqa: BLE001 - one session's fault is not another's
                    self.report_fault(fault)

    def _message(self, message: Header, _: bytes, fds: list[int]) -> None:
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
        self._channel.send(answer)

    def _do(self, message: Header, sockets: list[socket.socket]) -> Any:
        if "open" in message:
            self._open(message["open"])
        match message["op"]:
            case "open":
                return self._open(message)
            case "plug":
                return self._found(message).listeners.add(sockets)
            case "change":
                return self._found(message).session.change(policy_in(message["policy"]))
            case "log":
                return self._found(message).session.report().as_dict()
            case "close":
                return self._close(message)
            case other:
                raise LookupError(f"the gate knows no {other}")

    def _open(self, message: Header) -> Any:
        """Opens a session, by itself or with its first request."""
        plan = plan_in(message["plan"])
        interception = None
        if plan.secrets:
            verify = partial(_verifying, message["trusted"])
            interception = Interception(plan.secrets, verify)
            if not _verifying.cache_info().currsize:  # before the first connection has to wait for it
                self._loop.run_in_executor(None, verify)
        session = Session(message["session"], plan, self._dialer, interception)
        self._sessions[session.id] = _Open(session, Listeners(session, self._capacity, self.report_fault))
        self._capacity.sessions += 1
        return {"trust": interception.trust.decode("ascii") if interception is not None else ""}

    def _close(self, message: Header) -> Any:
        opened = self._found(message)
        del self._sessions[message["session"]]
        self._capacity.sessions -= 1
        told = opened.session.close().as_dict()
        self._loop.call_soon(opened.listeners.close)  # after the answer: the kernel takes its time with sockets
        return told

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
    def __init__(self, session: Session, listeners: Listeners) -> None:
        self.session = session
        self.listeners = listeners
