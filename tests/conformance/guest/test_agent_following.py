"""A host speaks ahead of the agent's answer: it orders a guest behind a program, and greets with an agreed nonce."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.spec import Guest, Start, StreamLimits, clear_request
from skillyard.domain.work.record import Outcome
from skillyard.guest.agent import wire
from skillyard.sandbox.agent_channel import Agreed, Channel, Opener, Reader, Writer
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.agent_link import Reach
from tests.agents import BOUND_S, WAIT, AgentBox, collect, python, until

pytestmark = pytest.mark.anyio

NONCE = "0123456789abcdef" * 2


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AgentBox]:
    box = AgentBox(tmp_path, {"nonce": NONCE})
    (tmp_path / "tmp").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "shm").mkdir()
    box.listen()
    yield box
    await box.close()


def clears(box: AgentBox) -> Start:
    request = clear_request() | {"workspace": str(box.workspace)}
    return Start(Guest(request), "clears", 30_000, StreamLimits(64 * 1024, 64 * 1024))


def leaves(box: AgentBox, more: str = "") -> str:
    return f"open({str(box.root / 'tmp' / 'left')!r}, 'w').write('x')\n{more}"


async def test_a_clearing_follows_a_program_that_ended_by_itself(box: AgentBox) -> None:
    client = box.client()
    client.follow("one", clears(box))
    process = await client.start(python(leaves(box, "raise SystemExit(3)")), id="one")
    assert (await process.wait()).code == 3
    told = await client.followed()
    assert told is not None
    channel, ending = told
    assert (ending.outcome, ending.code, channel[:1]) == (Outcome.EXIT, 0, b"R")
    assert not [what for what in json.loads(channel[5:])["left"] if "process" not in what]  # it sees the host's
    assert list((box.root / "tmp").iterdir()) == []
    assert await client.followed() is None


async def test_it_takes_no_request_of_its_own(box: AgentBox) -> None:
    writes: list[bytes] = []
    client = box.client(await _recorded(box, writes))
    await client.connect()
    await (await client.start(python("pass"), id="zero")).wait()
    before = len(writes)
    client.follow("one", clears(box))
    process = await client.start(python("pass"), id="one")
    await process.wait()
    assert await client.followed() is not None
    turns = [json.loads(frame)["op"] for write in writes[before:] for frame in _orders(write)]
    assert turns == ["start", "wait", "follow"]


async def test_nothing_follows_a_program_that_was_ended(box: AgentBox) -> None:
    client = box.client()
    client.follow("one", clears(box))
    process = await client.start(python(leaves(box, WAIT)), id="one")
    await until(process, b"ready\n")
    await process.kill()
    assert (await process.wait()).outcome is Outcome.CANCELLED
    assert await client.followed() is None
    assert (box.root / "tmp" / "left").exists()


async def test_nothing_follows_while_another_program_is_at_work(box: AgentBox) -> None:
    client, other = box.client(), box.client()
    await until(await other.start(python(WAIT), id="other"), b"ready\n")
    client.follow("one", clears(box))
    await (await client.start(python(leaves(box)), id="one")).wait()
    assert await client.followed() is None
    assert (box.root / "tmp" / "left").exists()


async def _starts(box: AgentBox, client: AgentSandbox) -> None:
    await collect(await client.start(python(leaves(box)), id="two"))


async def _lists(box: AgentBox, client: AgentSandbox) -> None:
    await client.entries(str(box.workspace))


async def _follows_another(box: AgentBox, client: AgentSandbox) -> None:
    client.follow("another", clears(box))


@pytest.mark.parametrize("does", [_starts, _lists, _follows_another])
async def test_a_clearing_before_other_work_is_not_taken_for_one_behind_it(
    box: AgentBox, does: Callable[[AgentBox, AgentSandbox], Awaitable[None]]
) -> None:
    client = box.client()
    client.follow("one", clears(box))
    await (await client.start(python("pass"), id="one")).wait()
    await does(box, client)
    assert await client.followed() is None


async def test_one_whose_channel_is_lost_is_not_believed(box: AgentBox) -> None:
    client = box.client()
    client.follow("one", clears(box))
    process = await client.start(python(WAIT), id="one")
    await until(process, b"ready\n")
    await (await client._link.channel()).close()
    assert await client.followed() is None
    await process.kill()


async def test_a_host_that_agreed_on_a_nonce_says_all_before_the_agent_answers(box: AgentBox) -> None:
    writes: list[bytes] = []
    client = _agreed(box, await _recorded(box, writes))
    process = await client.start(python("print(1)"), id="one")
    assert await collect(process) == b"1\n"
    assert [frame[:1] for write in writes[:2] for frame in _frames(write)][:3] == [b"H", b"H", b"O"]
    await client.close()


async def test_an_agreed_nonce_is_for_one_channel_alone(box: AgentBox) -> None:
    writes: list[bytes] = []
    client = _agreed(box, await _recorded(box, writes))
    await collect(await client.start(python("open('ran', 'a').write('x')"), id="one"))
    replayed = b"".join(writes).replace(b'"one"', b'"two"')
    reader, writer = await box.opener()()
    writer.write(replayed)
    async with asyncio.timeout(BOUND_S):
        said = await reader.read()  # it greets, finds the proof of another channel, and closes
    assert [frame[:1] for frame in _frames(said)] == [b"H"]
    writer.close()
    assert (box.workspace / "ran").read_text() == "x"
    await client.close()


async def test_a_second_channel_is_opened_without_what_was_agreed(box: AgentBox) -> None:
    client = _agreed(box, box.opener())
    first = await client.start(python("print(1)"), id="one")
    assert await collect(first) == b"1\n"
    await (await client._link.channel()).close()
    assert await collect(await client.start(python("print(2)"), id="two")) == b"2\n"
    await client.close()


@pytest.mark.parametrize(("key", "nonce"), [(b"o" * 32, NONCE), (None, "f" * 32)])
async def test_who_knows_only_one_of_both_starts_nothing(box: AgentBox, key: bytes | None, nonce: str) -> None:
    channel = await Channel.open(box.opener(), key or box.key, agreed=Agreed(nonce, _ready))
    with pytest.raises(SkillyardError):
        await channel.call(
            "start",
            {"id": "one", "args": python("open('ran', 'w')").args, "log_bytes": 1, "channel_bytes": 1},
        )
    client = box.client()  # who knows the key finds nothing started
    with pytest.raises(SkillyardError):
        await client.process("one")
    assert not (box.workspace / "ran").exists()


def _agreed(box: AgentBox, opener: Opener) -> AgentSandbox:
    reach = Reach(opener, box.key, agreed=Agreed(NONCE, _ready))
    return AgentSandbox(reach, "box", {}, timeout_ms=60_000)


async def _ready() -> None:
    return


async def _recorded(box: AgentBox, writes: list[bytes]) -> Opener:
    """Returns an opener of channels that notes each piece which is written."""

    async def opened() -> tuple[Reader, Writer]:
        reader, writer = await box.opener()()
        real = writer.write

        def write(data: bytes) -> None:
            writes.append(bytes(data))
            real(data)

        writer.write = write  # type: ignore[method-assign]
        return reader, writer

    return opened


def _frames(data: bytes) -> list[bytes]:
    """Returns the kind and the text of each frame."""
    largest = {**wire.TO_AGENT, **wire.FROM_AGENT}
    return [bytes([kind]) + payload for kind, _, payload in wire.Parser(largest).feed(data)]


def _orders(data: bytes) -> list[bytes]:
    return [frame[1:] for frame in _frames(data) if frame[:1] == b"O"]
