"""The client of agents against agents that lie: they harm nothing but the answer of their own sandbox."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.sandbox.spec import Argv, Start, Stream, StreamLimits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.guest.agent import wire
from skillyard.sandbox import agent_channel
from skillyard.sandbox.agent_channel import HELLO_S, Agreed, Channel, ChannelLost
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.agent_link import Reach

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
BOUND_S = 20.0
NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**300, 10**301), st.floats(), st.text(max_size=5)
)
VALUES = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
ENDINGS = st.fixed_dictionaries(
    {},
    optional={
        "outcome": st.one_of(st.sampled_from([*Outcome, "none", 1]), VALUES),
        "code": VALUES,
        "signal": VALUES,
        "reason": st.one_of(st.text(max_size=2000), VALUES),
        "hits": VALUES,
        "cpu_ms": VALUES,
        "rss": VALUES,
        "wall_ms": VALUES,
    },
)
ABOUTS = st.fixed_dictionaries({}, optional={"caps": VALUES, "ring": VALUES, "left_ms": VALUES, "ended": VALUES})

Answer = Callable[[int, Mapping[str, Any]], bytes]


class LyingAgent:
    """The host's end of a channel to an agent that says hello truly, and then ``answer`` to each operation."""

    def __init__(self, answer: Answer, *, close: bool = True, key: bytes = KEY, version: int = 1) -> None:
        self._answer, self._close, self._key, self._version = answer, close, key, version
        self._reader = asyncio.StreamReader()
        self._parser = wire.Parser(wire.TO_AGENT)
        self._ended = False
        self.written = 0

    async def open(self) -> tuple[asyncio.StreamReader, LyingAgent]:
        if self._ended:
            raise SandboxGone("the sandbox is gone")
        return self._reader, self

    def write(self, data: bytes) -> None:
        self.written += len(data)
        for kind, number, payload in self._parser.feed(data):
            if kind == wire.HELLO and b"versions" in payload:
                nonce = json.loads(payload)["nonce"]
                proof = wire.prove(self._key, "agent", nonce, "n", self._version)
                said = {"version": self._version, "instance": "0" * 32, "nonce": "n", "proof": proof}
                self._feed(wire.pack(wire.HELLO, 0, json.dumps(said).encode()))
            elif kind == wire.OPEN:
                self._feed(self._answer(number, json.loads(payload)))
                if self._close:
                    self.close()

    def _feed(self, data: bytes) -> None:
        if not self._ended:
            self._reader.feed_data(data)

    async def drain(self) -> None:
        return

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._reader.feed_eof()


def sandbox_of(agent: LyingAgent, key: bytes = KEY, first_s: float = HELLO_S) -> AgentSandbox:
    return AgentSandbox(Reach(agent.open, key, first_s=first_s), "lying", {}, timeout_ms=1000)


def reply(number: int, value: object) -> bytes:
    return wire.pack(wire.REPLY, number, json.dumps(value).encode())


async def _use(sandbox: AgentSandbox) -> None:
    """Does one of everything; each gives what the port allows, or a fault."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"data"

    async def all_of(given: AsyncIterator[bytes]) -> None:
        async for piece in given:
            assert len(piece) <= 1 << 20

    started: list[Any] = []

    async def start() -> None:
        started.append(await sandbox.start(Argv(("x",), stdin=True), id="one"))

    uses: list[Callable[[], Any]] = [
        start,
        lambda: sandbox.process("other"),
        lambda: sandbox.entries("/workspace"),
        lambda: sandbox.stat("/workspace"),
        lambda: sandbox.write("/workspace/x", pieces()),
        lambda: sandbox.put("/workspace", pieces()),
        lambda: all_of(sandbox.read("/workspace/x")),
        lambda: all_of(sandbox.get("/workspace/x")),
        lambda: sandbox.remove("/workspace/x"),
        lambda: sandbox.forward(80),
    ]
    async with asyncio.timeout(BOUND_S):
        for use in uses:
            try:
                await use()
            except SkillyardError:
                continue
        for process in started:
            for use in (process.wait, process.kill, process.close_stdin, lambda p=process: p.send(b"x")):
                try:
                    told = await use()
                except SkillyardError:
                    continue
                assert told is None or isinstance(told, Ending)
        await sandbox.close()


@given(st.binary(max_size=600), st.booleans())
async def test_any_bytes_are_an_answer_or_a_fault(data: bytes, first: bool) -> None:
    def answer(number: int, order: Mapping[str, Any]) -> bytes:
        return reply(number, {}) + data if first and order["op"] == "start" else data

    await _use(sandbox_of(LyingAgent(answer)))


@given(st.lists(st.tuples(st.sampled_from([*wire.FROM_AGENT]), st.integers(0, 3), st.binary(max_size=80)), max_size=8))
async def test_any_frames_are_an_answer_or_a_fault(frames: list[tuple[int, int, bytes]]) -> None:
    data = b"".join(wire.pack(*frame) for frame in frames)
    await _use(sandbox_of(LyingAgent(lambda number, _: data)))


@given(ENDINGS)
async def test_an_ending_is_one_that_can_be_or_a_fault(told: dict[str, Any]) -> None:
    sandbox = sandbox_of(
        LyingAgent(lambda number, order: reply(number, told if order["op"] == "wait" else {}), close=False)
    )
    process = await sandbox.start(Argv(("x",)), id="one")
    try:
        ending = await process.wait()
    except SandboxFault:
        return
    finally:
        await sandbox.close()
    assert (ending.outcome is Outcome.EXIT) == (ending.code is not None)
    assert (ending.outcome is Outcome.SIGNAL) == (ending.signal is not None)
    assert ending.code in (None, *range(256))
    assert len(ending.reason) <= 500
    for used in (ending.usage.cpu_ms, ending.usage.peak_memory_bytes, ending.usage.wall_ms):
        assert used is None or 0 <= used <= 1 << 53


@given(ABOUTS)
async def test_what_is_told_of_a_program_is_bounded(told: dict[str, Any]) -> None:
    sandbox = sandbox_of(LyingAgent(lambda number, _: reply(number, told), close=False))
    try:
        await sandbox.process("one")
    except SandboxFault:
        return
    finally:
        await sandbox.close()


async def test_output_beyond_the_limit_is_not_passed_on() -> None:
    def answer(number: int, order: Mapping[str, Any]) -> bytes:
        return reply(number, {}) if order["op"] == "start" else wire.pack(wire.DATA, number, b"x" * 60_000)

    sandbox = sandbox_of(LyingAgent(answer, close=False))
    process = await sandbox.start(Argv(("x",)), id="one", streams=StreamLimits(log_bytes=1000))
    with pytest.raises(SandboxFault, match="more than 1000 bytes"):
        await anext(process.output(Stream.STDOUT))
    await sandbox.close()


@pytest.mark.parametrize(
    "flood",
    [
        lambda number: wire.pack(wire.DATA, number, b"x" * wire.PIECE) * 5,
        lambda number: wire.pack(wire.DATA, number) * 2,
        lambda number: wire.credit(number, 1) * 2,
        lambda number: wire.pack(wire.END, number) * 2,
        lambda number: wire.pack(wire.REPLY, number, b"{}") * 10_000,
        lambda number: wire.pack(wire.DATA, number + 1, b"x"),
        lambda number: wire.pack(wire.HELLO, 0, b"{}"),
    ],
)
async def test_a_flood_ends_the_channel(flood: Callable[[int], bytes]) -> None:
    agent = LyingAgent(lambda number, _: flood(number), close=False)
    channel = await agent_channel.Channel.open(agent.open, KEY)
    exchange = channel.begin("output")

    async def go_on() -> None:
        while True:
            exchange.over or await exchange.result()
            await channel.call("kill", {})

    async with asyncio.timeout(BOUND_S):
        with pytest.raises(ChannelLost):
            await go_on()
    assert channel.lost


async def test_an_agent_without_the_key_is_not_spoken_to() -> None:
    agent = LyingAgent(lambda number, _: reply(number, {}), key=b"o" * 32)
    with pytest.raises(ChannelLost, match="not the agent's"):
        await sandbox_of(agent).connect()


@pytest.mark.parametrize("first", [b"", reply(1, {}), wire.pack(wire.HELLO, 0, b"{}")])
async def test_no_word_is_taken_before_the_proof_of_an_agent_with_an_agreed_nonce(first: bytes) -> None:
    """The lying one knows the key, and answers with a nonce of its own, or begins otherwise."""

    class Hasty(LyingAgent):
        def write(self, data: bytes) -> None:
            if first:
                self._feed(first)
            super().write(data)

    agent = Hasty(lambda number, _: reply(number, {}), close=False, version=wire.VERSIONS[-1])
    channel = await Channel.open(agent.open, KEY, agreed=Agreed("another", _ready))
    with pytest.raises(ChannelLost, match="is lost"):
        await channel.call("list", {})


async def _ready() -> None:
    return


async def test_an_agent_of_an_earlier_release_is_not_asked_to_follow() -> None:
    asked: list[str] = []

    def answer(number: int, order: Mapping[str, Any]) -> bytes:
        asked.append(order["op"])
        return reply(number, {"outcome": "exit", "code": 0})

    sandbox = sandbox_of(LyingAgent(answer, close=False, version=wire.WITH_FOLLOWING - 1))
    sandbox.follow("one", Start(Argv(("y",)), "two", 1000))
    await (await sandbox.start(Argv(("x",)), id="one")).wait()
    assert (await sandbox.followed(), asked) == (None, ["start", "wait"])
    await sandbox.close()


@pytest.mark.parametrize("channel", [None, 1, "no digits", "0"])
async def test_an_answer_of_a_follower_that_cannot_be_is_a_fault(channel: object) -> None:
    agent = LyingAgent(
        lambda number, _: reply(number, {"outcome": "exit", "code": 0, "channel": channel}),
        close=False,
        version=wire.WITH_FOLLOWING,
    )
    sandbox = sandbox_of(agent)
    sandbox.follow("one", Start(Argv(("y",)), "two", 1000))
    await (await sandbox.start(Argv(("x",)), id="one")).wait()
    with pytest.raises(SandboxFault, match="no form"):
        await sandbox.followed()
    await sandbox.close()


async def test_an_agent_of_no_version_that_we_know_is_gone() -> None:
    class Older(LyingAgent):
        def write(self, data: bytes) -> None:
            self._feed(wire.pack(wire.HELLO, 0, b'{"versions": [99]}'))

    with pytest.raises(SandboxGone, match="99"):
        await sandbox_of(Older(lambda number, _: b"")).connect()


async def test_an_agent_that_says_nothing_is_not_waited_for() -> None:
    class Silent(LyingAgent):
        def write(self, data: bytes) -> None:
            self.written += len(data)

    with pytest.raises(ChannelLost, match="hello"):
        await sandbox_of(Silent(lambda number, _: b""), first_s=0.05).connect()


async def test_a_program_that_its_agent_does_not_end_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.sandbox.agent_client.OVERDUE_S", 0.05)
    answers: dict[str, dict[str, object]] = {"start": {}}
    agent = LyingAgent(lambda number, o: reply(number, answers[o["op"]]) if o["op"] in answers else b"", close=False)
    sandbox = sandbox_of(agent)
    process = await sandbox.start(Argv(("x",)), id="one", timeout_ms=1)
    async with asyncio.timeout(BOUND_S):
        assert (await process.wait()).outcome is Outcome.LOST
    await sandbox.close()


async def test_many_small_pieces_take_no_more_room_than_large_ones() -> None:
    size = 2
    data = b"".join(number.to_bytes(size, "big") for number in range(1 << 8 * size))

    def shred(number: int, _order: Mapping[str, Any]) -> bytes:
        return b"".join(wire.pack(wire.DATA, number, data[at : at + size]) for at in range(0, len(data), size))

    agent = LyingAgent(shred, close=False)
    channel = await Channel.open(agent.open, KEY)
    exchange = channel.begin("output")
    tracemalloc.start()
    try:
        async with asyncio.timeout(60):
            before = tracemalloc.get_traced_memory()[0]
            while exchange._allowed > wire.WINDOW - len(data):
                await asyncio.sleep(0)
            held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 4 * wire.WINDOW
    came = b""
    async for piece in exchange.pieces():
        came += piece
        if len(came) == len(data):
            break
    assert came == data
    await channel.close()
