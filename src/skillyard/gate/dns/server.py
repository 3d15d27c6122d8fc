"""The name server of a sandbox, over UDP and TCP (RFC 1035 §4.2, RFC 7766), at any address.

It gives each name that the policy allows a synthetic address and asks nobody: no question leaves the gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct

from skillyard.domain.network.policy import Decision
from skillyard.domain.network.session import DNS_PORT
from skillyard.gate.dns.message import ANY, NOERROR, NXDOMAIN, REFUSED, SERVFAIL, A, read_question, write_answer
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session

VIA = "dns"
_MOST_LOGGED = 50
"""Refused names that a session's log has one by one, so that questions leave room for connections."""
_OTHERS = "other names"
_MOST_REMEMBERED = 1024

_IPV6_PKTINFO, _IP_PKTINFO = 50, 8  # linux/in6.h, linux/in.h
_IN6_PKTINFO = struct.Struct("16si")
_IN_PKTINFO = struct.Struct("i4s4s")
_MOST_MESSAGE = 4096
_AT_ONCE = 16
"""Questions answered before others have their turn."""
_WINDOW_S = 0.1
_MOST_IN_WINDOW = 200
"""Questions of one session in each window; the kernel drops what does not fit its buffer meanwhile."""
_MOST_ON_STREAM = 100


class Names:
    """Answers questions of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policy = session.policy
        self._known: dict[str, bool] = {}
        self._refused: set[str] = set()

    def answer(self, message: bytes) -> bytes | None:
        """Returns the answer to a question, None for anything else."""
        question = read_question(message)
        if question is None:
            return None
        if question.error:
            return write_answer(question, question.error)
        if not question.ours:
            return write_answer(question, REFUSED)
        if question.name is None or not self._allowed(question.name):
            self._refuse(question.name)
            return write_answer(question, NXDOMAIN)
        if question.kind not in (A, ANY):
            return write_answer(question, NOERROR)
        address = self._session.address_of(question.name)
        if not isinstance(address, ipaddress.IPv4Address):
            return write_answer(question, SERVFAIL)
        return write_answer(question, NOERROR, address)

    def _allowed(self, name: str) -> bool:
        """Asks the policy once for each name: questions come in floods and policies have many rules."""
        if self._policy is not self._session.policy or len(self._known) >= _MOST_REMEMBERED:
            self._policy = self._session.policy
            self._known.clear()
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._policy.answers(name)
        return known

    def _refuse(self, name: str | None) -> None:
        shown, reason = name or _OTHERS, "this is not a valid host name"
        if name is not None:
            if name not in self._refused and len(self._refused) >= _MOST_LOGGED:
                shown, reason = _OTHERS, "no rule allows them"  # without the policy: questions come in floods
            else:
                self._refused.add(name)
                reason = self._policy.ask(name, None, 443).reason
        self._session.note(VIA, shown, DNS_PORT, Decision(False, "names", "", reason))


class Datagrams:
    """Serves one UDP socket until :meth:`close`.

    The socket tells which address was asked (IPV6_RECVPKTINFO, IP_PKTINFO) and may answer from it (IPV6_FREEBIND)."""

    def __init__(self, session: Session, sock: socket.socket) -> None:
        self._names = Names(session)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._window = 0.0
        self._in_window = 0
        self._loop.add_reader(sock, self._readable)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        if self._later is not None:
            self._later.cancel()
        self._sock.close()

    def _readable(self) -> None:
        now = self._loop.time()
        if now - self._window >= _WINDOW_S:
            self._window, self._in_window = now, 0
        for _ in range(_AT_ONCE):
            if self._in_window >= _MOST_IN_WINDOW:
                self._loop.remove_reader(self._sock)
                self._later = self._loop.call_later(_WINDOW_S, self._go_on)
                return
            self._in_window += 1
            try:
                message, ancillary, flags, sender = self._sock.recvmsg(_MOST_MESSAGE, 256)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error for an answer that nobody waited for
            if not flags & socket.MSG_TRUNC:
                self._answer(message, ancillary, sender)

    def _go_on(self) -> None:
        self._later = None
        self._loop.add_reader(self._sock, self._readable)

    def _answer(self, message: bytes, ancillary: list[tuple[int, int, bytes]], sender: object) -> None:
        answer = self._names.answer(message)
        if answer is not None:
            with contextlib.suppress(OSError):  # a program that asks too fast misses answers
                self._sock.sendmsg([answer], _from_there(ancillary), 0, sender)  # type: ignore[arg-type]


def _from_there(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Returns the control message that makes the asked address the answer's source."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO) and len(data) >= _IN6_PKTINFO.size:
            address, index = _IN6_PKTINFO.unpack_from(data)
            link_local = ipaddress.IPv6Address(address).is_link_local
            return [(level, kind, _IN6_PKTINFO.pack(address, index if link_local else 0))]
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(data) >= _IN_PKTINFO.size:
            _, _, address = _IN_PKTINFO.unpack_from(data)
            return [(level, kind, _IN_PKTINFO.pack(0, address, bytes(4)))]
    return []


async def serve(session: Session, client: Stream) -> None:
    """Serves TCP: one question after the other, until the client ends or sends something else."""
    names = Names(session)
    async with asyncio.timeout(session.limits.header_s):
        for _ in range(_MOST_ON_STREAM):
            length = int.from_bytes(await _exactly(client, 2))
            if length > _MOST_MESSAGE:
                break  # another protocol's first words, say
            message = await _exactly(client, length)
            answer = names.answer(message) if message else None
            if answer is None:
                break
            await client.write(len(answer).to_bytes(2) + answer)
    client.close()


async def _exactly(client: Stream, count: int) -> bytes:
    """Reads ``count`` bytes; returns none when the client ends before."""
    data = b""
    while len(data) < count:
        piece = await client.read(count - len(data))
        if not piece:
            return b""
        data += piece
    return data
