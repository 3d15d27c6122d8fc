"""The name server of a sandbox, over UDP and TCP (RFC 1035 §4.2, RFC 7766), at any address.

It gives each name that the policy allows a synthetic address and asks nobody: no question leaves the gate. Questions
are read strictly (RFC 1035 §4, RFC 6891).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct

from skillyard.domain.network.policy import Decision
from skillyard.domain.network.rule import canonical_name
from skillyard.domain.network.session import DNS_PORT
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session
from skillyard.values import dataclass

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
A, AAAA, ANY = 1, 28, 255
TTL_S = 60
_BADVERS = 16
_IN, _ANY_CLASS = 1, 255
_OPT = 41
_OUR_PAYLOAD = 1232
_HEADER = struct.Struct("!6H")
_QUERY, _TRUNCATED, _WANTED, _AVAILABLE = 0x8000, 0x0200, 0x0100, 0x0080
_MOST_NAME = 255

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


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    ``name`` is canonical, None for anything but a host name; ``ours`` says whether it is of the internet's class;
    ``error`` is the code of an answer without content; ``text`` is the question as it came."""

    id: int
    flags: int
    text: bytes = b""
    name: str | None = None
    kind: int = 0
    ours: bool = True
    edns: bool = False
    error: int = NOERROR


def read_question(message: bytes) -> Question | None:
    """Returns a question, None for a message that needs no answer.

    Such a message is too short, or an answer itself."""
    if len(message) < _HEADER.size:
        return None
    id_, flags, questions, answers, authorities, additional = _HEADER.unpack_from(message)
    if flags & _QUERY:
        return None
    if flags & 0x7800:
        return Question(id_, flags, error=NOTIMP)
    broken = Question(id_, flags, error=FORMERR)
    if flags & _TRUNCATED or questions != 1 or answers or authorities or additional > 1:
        return broken
    found = _name(message, _HEADER.size)
    if found is None or len(message) < found[1] + 4:
        return broken
    name, end = found
    kind, class_ = struct.unpack_from("!2H", message, end)
    end += 4
    edns = additional == 1
    error = _edns_error(message[end:]) if edns else (NOERROR if end == len(message) else FORMERR)
    return Question(id_, flags, message[12:end], name, kind, class_ in (_IN, _ANY_CLASS), edns, error)


def _name(message: bytes, start: int) -> tuple[str | None, int] | None:
    """Returns the name at ``start`` and where it ends.

    A question has no pointers: nothing precedes it."""
    labels, at = [], start
    while True:
        if at >= len(message) or at - start >= _MOST_NAME:
            return None
        length = message[at]
        if length > 63 or at + 1 + length > len(message):
            return None
        at += 1
        if not length:
            break
        labels.append(message[at : at + length])
        at += length
    dotted = any(b"." in label for label in labels)
    return (None if dotted else canonical_name(b".".join(labels).decode("latin-1"))), at


def _edns_error(record: bytes) -> int:
    """Returns the error of the one record that may follow a question (RFC 6891 §6.1.2)."""
    if len(record) < 11 or record[0] != 0:
        return FORMERR
    kind, _, _, version, _, length = struct.unpack_from("!HHBBHH", record, 1)
    if kind != _OPT or len(record) != 11 + length:
        return FORMERR
    return _BADVERS if version else NOERROR


def write_answer(question: Question, code: int, address: ipaddress.IPv4Address | None = None) -> bytes:
    """Returns an answer; ``address`` answers a question for A."""
    flags = _QUERY | (question.flags & (0x7800 | _WANTED)) | _AVAILABLE | (code & 15)
    answers = 0 if address is None else 1
    head = _HEADER.pack(question.id, flags, 1 if question.text else 0, answers, 0, int(question.edns))
    record = b"" if address is None else struct.pack("!HHHIH", 0xC00C, A, _IN, TTL_S, 4) + address.packed
    option = struct.pack("!BHHBBHH", 0, _OPT, _OUR_PAYLOAD, code >> 4, 0, 0, 0) if question.edns else b""
    return head + question.text + record + option


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
