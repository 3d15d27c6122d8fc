"""What the gate's process does for its server: opens, plugs, changes, logs and closes sessions."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from functools import lru_cache, partial
from typing import Any

from skillyard.gate.channel import Channel, Message
from skillyard.gate.descriptors import Room
from skillyard.gate.dial import Dialer
from skillyard.gate.listening import Listening
from skillyard.gate.session import Session
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.trust import upstream_context
from skillyard.gate.wire import plan_in, policy_in

_MOST_TROUBLE = 500
_TELL_S = 1.0


class Service:
    """``ended`` is set when the server is gone."""

    def __init__(self, sock: socket.socket, dialer: Dialer, room: Room) -> None:
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._dialer = dialer
        self._room = room
        self._sessions: dict[str, _Open] = {}
        self._channel = Channel(sock, self._message, self.ended.set)
        self._loop.call_later(_TELL_S, self._tell_logs)

    def tell(self, message: Message) -> None:
        self._channel.send(message)

    def trouble(self, fault: BaseException) -> None:
        """What went wrong in a way that nobody foresaw, for the server's log. Nothing of what was said is in it."""
        trace, where = fault.__traceback__, ""
        while trace is not None:
            where = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119
            trace = trace.tb_next
        self.tell({"op": "trouble", "text": f"{type(fault).__name__} at {where}"})

    def _tell_logs(self) -> None:
        """What changed, so that a record knows of it should this process be lost."""
        self._loop.call_later(_TELL_S, self._tell_logs)
        for id, opened in () if self._channel.behind else self._sessions.items():
            if opened.session.log.changed:
                opened.session.log.changed = False
                try:
                    self.tell({"op": "log", "session": id, "log": opened.session.report().as_dict()})
                except Exception as fault:  # noqa: BLE001 - one session's fault is not another's
                    self.trouble(fault)

    def _message(self, message: Message, fds: list[int]) -> None:
        sockets: list[socket.socket] = []
        answer: Message = {"id": message.get("id")}
        try:
            while fds:
                sockets.append(socket.socket(fileno=fds[0]))
                del fds[0]
            answer["ok"] = self._do(message, sockets)
        except Exception as error:  # noqa: BLE001 - an answer must come
            answer["error"] = str(error)[:_MOST_TROUBLE] or type(error).__name__
            for sock in sockets:
                sock.close()
            for fd in fds:
                os.close(fd)
        self._channel.send(answer)

    def _do(self, message: Message, sockets: list[socket.socket]) -> Any:
        if "open" in message:
            self._open(message["open"])
        match message["op"]:
            case "open":
                return self._open(message)
            case "plug":
                return self._found(message).listening.add(sockets)
            case "change":
                return self._found(message).session.change(policy_in(message["policy"]))
            case "log":
                return self._found(message).session.report().as_dict()
            case "close":
                return self._close(message)
            case other:
                raise LookupError(f"the gate knows no {other}")

    def _open(self, message: Message) -> Any:
        """By itself, or with the first thing that the session needs."""
        plan = plan_in(message["plan"])
        interception = None
        if plan.secrets:
            verify = partial(_verifying, message["trusted"])
            interception = Interception(plan.secrets, verify)
            if not _verifying.cache_info().currsize:  # before the first connection has to wait for it
                self._loop.run_in_executor(None, verify)
        session = Session(message["session"], plan, self._dialer, interception)
        self._sessions[session.id] = _Open(session, Listening(session, self._room, self.trouble))
        self._room.sessions += 1
        return {"trust": interception.trust.decode("ascii") if interception is not None else ""}

    def _close(self, message: Message) -> Any:
        opened = self._found(message)
        del self._sessions[message["session"]]
        self._room.sessions -= 1
        told = opened.session.close().as_dict()
        self._loop.call_soon(opened.listening.close)  # after the answer: the kernel takes its time with sockets
        return told

    def _found(self, message: Message) -> _Open:
        if (found := self._sessions.get(message["session"])) is None:
            raise LookupError("the gate knows no such session")
        return found


@lru_cache(2)
def _verifying(trusted: str) -> ssl.SSLContext:
    """Reading the system's certificates takes tens of milliseconds."""
    return upstream_context(trusted)


class _Open:
    def __init__(self, session: Session, listening: Listening) -> None:
        self.session = session
        self.listening = listening
