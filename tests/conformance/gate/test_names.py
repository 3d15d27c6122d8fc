"""The name server: what is allowed has an address, all else is not, and no question goes anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.network.session import EgressPlan
from skillyard.gate.client import ProcessGate
from skillyard.gate.dns_server import (
    AAAA,
    ANY,
    FORMERR,
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    A,
    Names,
    read_question,
    write_answer,
)
from skillyard.gate.session import Session
from tests.conformance.gate.gates import Plugged, plugged, policy
from tests.conformance.gate.rooms import Rooms

PLAN = EgressPlan(policy("a.test", "*.wild.test:8443", "!no.wild.test"))
EDNS = b"\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00"
NULL, SOA, PTR, TXT, HTTPS, AXFR = 10, 6, 12, 16, 65, 252


def wire(name: str) -> bytes:
    labels = [label.encode("latin-1") for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def query(
    name: bytes | str = "a.test",
    kind: int = A,
    *,
    class_: int = 1,
    flags: int = 0x0100,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    more: bytes = b"",
) -> bytes:
    text = name if isinstance(name, bytes) else wire(name)
    return struct.pack("!6H", 0x1234, flags, *counts) + text + struct.pack("!2H", kind, class_) + more


class Answer:
    def __init__(self, message: bytes) -> None:
        self.id, self.flags, questions, self.answers, self.authorities, additional = struct.unpack_from("!6H", message)
        self.code = self.flags & 15
        self.edns = additional == 1
        self.question = b""
        if questions:
            end = message.index(b"\0", 12) + 5
            self.question, message = message[12:end], message[:12] + message[end:]
        record = message[12 : 12 + 16] if self.answers else b""
        self.address = str(ipaddress.IPv4Address(record[12:])) if record else ""
        self.extended = message[-6] << 4 | self.code if self.edns else self.code


def answered(names: Names, message: bytes) -> Answer:
    said = names.answer(message)
    assert said is not None
    assert len(said) <= 512
    found = Answer(said)
    assert found.id == 0x1234
    assert found.flags & 0x8000
    return found


@pytest.fixture
def session() -> Session:
    return Session("s", PLAN, None)  # type: ignore[arg-type]  # it must dial nobody


@pytest.fixture
def names(session: Session) -> Names:
    return Names(session)


def test_an_allowed_name_has_one_address(names: Names, session: Session) -> None:
    first = answered(names, query("a.test"))
    assert (first.code, first.answers, first.question) == (NOERROR, 1, query("a.test")[12:])
    assert ipaddress.ip_address(first.address) in ipaddress.ip_network("198.18.0.0/15")
    assert session.name_of(ipaddress.ip_address(first.address)) == "a.test"
    again = answered(names, query("A.tEsT"))
    assert again.address == first.address
    assert again.question == query("A.tEsT")[12:]
    other = answered(names, query("x.wild.test"))
    assert other.address not in ("", first.address)
    assert answered(names, query("a.test", ANY)).address == first.address
    assert session.report().connections == ()


@pytest.mark.parametrize("kind", [AAAA, TXT, NULL, SOA, PTR, HTTPS, AXFR, 0, 65535])
def test_an_allowed_name_has_nothing_else(names: Names, kind: int) -> None:
    found = answered(names, query("a.test", kind))
    assert (found.code, found.answers, found.authorities) == (NOERROR, 0, 0)


@pytest.mark.parametrize(
    "name",
    [
        "b.test", "test", "x.a.test", "wild.test", "no.wild.test", "a.test.evil.com", "", "a_.test", "aa.test",
        "1.0.0.127.in-addr.arpa", "a.test\xe4", "127.0.0.1", "0x7f.1", "xn--a-0ga.test",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [A, AAAA, TXT])
def test_another_name_is_not(names: Names, name: str, kind: int) -> None:
    found = answered(names, query(name, kind))
    assert (found.code, found.answers) == (NXDOMAIN, 0)


def test_a_dot_inside_a_label_is_no_dot(names: Names) -> None:
    assert answered(names, query(b"\x06a.test\0")).code == NXDOMAIN
    assert answered(names, query(b"\x08x.wild\0t\0")).code == NXDOMAIN


def test_a_change_is_in_force_at_once(names: Names, session: Session) -> None:
    assert answered(names, query("a.test")).answers == 1
    assert answered(names, query("b.test")).code == NXDOMAIN
    session.policy = policy("b.test")
    assert answered(names, query("a.test")).code == NXDOMAIN
    assert answered(names, query("b.test")).answers == 1


def test_edns_is_tolerated(names: Names) -> None:
    cookie = b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x0c\x00\x0a\x00\x08abcdefgh"
    for record in (EDNS, cookie):
        found = answered(names, query("a.test", counts=(1, 0, 0, 1), more=record))
        assert (found.code, found.answers, found.edns) == (NOERROR, 1, True)
    version = EDNS[:6] + b"\x01" + EDNS[7:]
    found = answered(names, query("a.test", counts=(1, 0, 0, 1), more=version))
    assert (found.extended, found.answers) == (16, 0)


ODD: dict[str, tuple[bytes, int]] = {
    "no question": (query(b"", counts=(0, 0, 0, 0))[:12], FORMERR),
    "two questions": (query(counts=(2, 0, 0, 0), more=query()[12:]), FORMERR),
    "more questions than there are": (query(counts=(2, 0, 0, 0)), FORMERR),
    "an answer in it": (query(counts=(1, 1, 0, 0), more=b"\xc0\x0c" + bytes(14)), FORMERR),
    "an authority in it": (query(counts=(1, 0, 1, 0), more=b"\xc0\x0c" + bytes(14)), FORMERR),
    "two additional records": (query(counts=(1, 0, 0, 2), more=EDNS * 2), FORMERR),
    "an additional record that is no option": (query(counts=(1, 0, 0, 1), more=EDNS[:2] + b"\1" + EDNS[3:]), FORMERR),
    "an option that is cut off": (query(counts=(1, 0, 0, 1), more=EDNS[:-1]), FORMERR),
    "an option that is longer than it says": (query(counts=(1, 0, 0, 1), more=EDNS + b"x"), FORMERR),
    "bytes after the question": (query(more=b"x"), FORMERR),
    "a name without end": (query(b"\x01a" * 10)[:-4], FORMERR),
    "a label that is cut off": (query(b"\x3fabc")[:-4], FORMERR),
    "a pointer to itself": (query(b"\xc0\x0c"), FORMERR),
    "a pointer forward": (query(b"\xc0\x20"), FORMERR),
    "a pointer after a label": (query(b"\x01a\xc0\x0c"), FORMERR),
    "a label of an unknown type": (query(b"\x41" + b"a" * 65 + b"\0"), FORMERR),
    "a name that is too long": (query((b"\x3f" + b"a" * 63) * 5 + b"\0"), FORMERR),
    "a truncated one": (query(flags=0x0300), FORMERR),
    "half a question": (query()[:-2], FORMERR),
    "an update": (query(flags=0x2800), NOTIMP),
    "a notification": (query(flags=0x2000), NOTIMP),
    "an inverse one": (query(flags=0x0800), NOTIMP),
    "of the CHAOS class": (query("version.bind", TXT, class_=3), REFUSED),
    "of no class": (query(class_=254), REFUSED),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
def test_odd_questions(names: Names, session: Session, what: str) -> None:
    message, code = ODD[what]
    found = answered(names, message)
    assert (found.code, found.answers) == (code, 0)
    assert not session.names.name_of(ipaddress.ip_address("198.18.0.2"))


def test_answers_are_not_answered(names: Names) -> None:
    assert names.answer(query(flags=0x8180)) is None
    assert names.answer(query()[:11]) is None
    assert names.answer(b"") is None


@given(st.one_of(st.binary(max_size=100), st.binary(max_size=60).map(lambda data: query()[:12] + data)))
def test_anything_at_all(message: bytes) -> None:
    question = read_question(message)
    if question is not None:
        said = write_answer(question, question.error)
        assert said[:2] == message[:2]
        assert said[2] & 0x80
        assert len(said) <= len(message) + 11


def test_a_tunnel_leaves_few_traces_and_reaches_nobody(names: Names, session: Session) -> None:
    """The session's dialler is None: whatever looked something up would fail."""
    for at in range(2000):
        label = f"{at:x}".rjust(60, "x")
        assert answered(names, query(f"{label}.{label}.{label}.tunnel.test", TXT)).code == NXDOMAIN
    rows = session.report().connections
    assert len(rows) <= 60
    assert sum(row.count for row in rows) == 2000
    assert all(not row.allowed and row.reason and row.via == "dns" for row in rows)


def test_a_refused_name_is_logged_once(names: Names, session: Session) -> None:
    for _ in range(3):
        answered(names, query("b.test"))
        answered(names, query("B.TEST", AAAA))
    [row] = session.report().connections
    assert (row.host, row.port, row.count) == ("b.test", 53, 6)
    assert row.reason == "no operator rule allows b.test"


def test_addresses_end_and_are_never_given_twice() -> None:
    session = Session("s", EgressPlan(policy("*")), None)  # type: ignore[arg-type]
    names = Names(session)
    given = {answered(names, query(f"n{at}.test")).address for at in range(1000)}
    assert len(given) == 1000
    session.names._names = dict.fromkeys(range(65_536), "x")
    assert answered(names, query("another.test")).code == SERVFAIL
    assert answered(names, query("n1.test")).answers == 1


async def _udp(box: Plugged, server: str, message: bytes) -> tuple[bytes, str]:
    """The answer and who it came from."""

    def exchange() -> tuple[bytes, str]:
        with box.room.program(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(message, (server, 53))
            data, sender = sock.recvfrom(4096)
            return data, sender[0]

    return await asyncio.to_thread(exchange)


@pytest.mark.anyio
@pytest.mark.parametrize("server", ["127.0.0.1", "8.8.8.8", "198.18.0.1", "10.9.8.7", "::1", "2001:4860:4860::8888"])
async def test_answers_come_from_the_address_that_was_asked(
    shared_gate: ProcessGate, rooms: Rooms, server: str
) -> None:
    box = await plugged(shared_gate, rooms.room(), PLAN)
    said, sender = await _udp(box, server, query("a.test"))
    assert sender == server
    assert Answer(said).answers == 1
    said, sender = await _udp(box, server, query("b.test"))
    assert sender == server
    assert Answer(said).code == NXDOMAIN
    await box.session.close()


@pytest.mark.anyio
async def test_a_flood_is_answered_late_and_harms_nobody(shared_gate: ProcessGate, rooms: Rooms) -> None:
    flooder = await plugged(shared_gate, rooms.room(), PLAN, key="flooder")
    quiet = await plugged(shared_gate, rooms.room(), PLAN, key="quiet")
    with flooder.room.program(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        for at in range(20_000):
            with contextlib.suppress(BlockingIOError):
                sock.sendto(query(f"x{at}.test"), ("127.0.0.1", 53))
        said, _ = await _udp(quiet, "127.0.0.1", query("a.test"))
        assert Answer(said).answers == 1
    for box in (flooder, quiet):
        await box.session.close()


@pytest.mark.anyio
async def test_over_tcp(shared_gate: ProcessGate, rooms: Rooms) -> None:
    box = await plugged(shared_gate, rooms.room(), PLAN)
    reader, writer = await box.connect("9.9.9.9", 53)

    def framed(message: bytes) -> bytes:
        return len(message).to_bytes(2) + message

    both = framed(query("a.test")) + framed(query("b.test", counts=(1, 0, 0, 1), more=EDNS))
    for at in range(len(both)):
        writer.write(both[at : at + 1])
    codes: list[Any] = []
    async with asyncio.timeout(20):
        for _ in range(2):
            length = int.from_bytes(await reader.readexactly(2))
            codes.append(Answer(await reader.readexactly(length)).code)
        assert codes == [NOERROR, NXDOMAIN]
        writer.write(framed(query(flags=0x8000)))
        assert await reader.read() == b""
    writer.close()
    await box.session.close()
