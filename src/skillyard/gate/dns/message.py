"""Questions to a name server and their answers (RFC 1035 §4, RFC 6891), read strictly."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from skillyard.domain.network.rule import canonical_name

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
