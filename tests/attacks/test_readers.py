"""All that reads words of a process that foreign packages, programs or servers have been in: whatever is said, a reader
raises what it says that it raises, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import socket
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skillyard
from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.archive.tar_stream import TarStream
from skillyard.domain.errors import SandboxFault, SkillyardError
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import EgressLimits, EgressPlan
from skillyard.domain.sandbox.frames import FrameFault, FrameReader
from skillyard.domain.sandbox.spec import Stream as Output
from skillyard.domain.work.record import Ending, Outcome
from skillyard.gate import dns_server, listener, socks
from skillyard.gate.addresses import parse_host_port
from skillyard.gate.dial import Dialer
from skillyard.gate.dns_server import read_question
from skillyard.gate.http import proxy
from skillyard.gate.http.guard import HttpGuard
from skillyard.gate.http.head import Heads, check_written
from skillyard.gate.relay.first_bytes import FirstBytes, sniff
from skillyard.gate.relay.guard import Failure, Refused
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session
from skillyard.gate.tls.client_hello import HelloReader, Malformed
from skillyard.ipc import packets
from skillyard.ipc.channel import BadMessage, read_object
from skillyard.ipc.channel import FrameReader as Frames
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.sandbox.file_programs import Files, checked
from skillyard.sandbox.native.grounds.landlock.ports import port_of
from skillyard.sandbox.native.keeper import messages
from skillyard.sandbox.native.probe import look_inside
from skillyard.stores.skills.archives import read_archive
from tests.unit.gate.hellos import hello
from tests.unit.sandbox.test_agent_client import LyingAgent, _use, reply, sandbox_of
from tests.unit.stores.archives.sinks import Kept
from tests.unit.stores.archives.test_fuzz import SEEDS as ARCHIVES

DEEP = 100_000


@dataclass(frozen=True)
class Reader:
    """``raises`` is what its documentation says; ``module`` where it stands; ``like`` what it takes."""

    read: Callable[[bytes], object]
    raises: tuple[type[BaseException], ...]
    module: str
    like: tuple[bytes, ...] = ()


class Told:
    """A program in a sandbox that says this and ends."""

    id = "p"

    def __init__(self, said: bytes) -> None:
        self._said = said

    async def output(self, stream: Output, offset: int = 0) -> AsyncIterator[bytes]:
        yield self._said

    async def send(self, data: bytes) -> None:
        """Nobody reads it."""

    async def close_stdin(self) -> None:
        """Nor this."""

    async def kill(self, reason: str) -> None:
        """It ended."""

    async def wait(self) -> Ending:
        return Ending(Outcome.EXIT, code=0)

    async def start(self, program: object, **_: object) -> Told:
        """A sandbox whose every program is this one."""
        return self


async def _listing(data: bytes) -> None:
    async def start() -> Process:
        return cast(Process, Told(data))

    async def nothing() -> AsyncIterator[bytes]:
        for piece in (b"x",):
            yield piece

    asking: list[Callable[[Files], Awaitable[object]]] = [
        lambda files: files.entries("/workspace"),
        lambda files: files.stat("/workspace/x"),
        lambda files: files.remove("/workspace/x"),
        lambda files: files.write("/workspace/x", nothing()),
        lambda files: files.put("/workspace", nothing()),
    ]
    for ask in asking:
        files = Files(start)
        with contextlib.suppress(SkillyardError):
            await ask(files)
        files.lost()
    given = [piece async for piece in Files(start).read("/workspace/x")]
    assert len(b"".join(given)) < len(data)


async def _tree(data: bytes) -> None:
    async def given() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 700):
            yield data[at : at + 700]

    async for _ in checked(given()):
        pass


def _looked_at(data: bytes) -> None:
    asyncio.run(look_inside(cast(Sandbox, Told(data)), "", bound_ms=1))


def _served(serve: Callable[[Session, Stream], Any]) -> Callable[[bytes], None]:
    async def talk(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        session = Session("s", EgressPlan(Policy(), EgressLimits(header_s=0.2, idle_s=0.2)), Dialer(frozenset))
        stream = Stream(ours, 0.2)
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            theirs.send(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            await serve(session, stream)
        finally:
            stream.reset()
            theirs.close()

    return lambda data: asyncio.run(talk(data))


def _packet(hear: Callable[[socket.socket], object]) -> Callable[[bytes], None]:
    """With as many descriptors beside it as its length says; none is left open but those that are handed on."""

    def take(data: bytes) -> None:
        ours, theirs = packets.pair()
        with ours, theirs, open(os.devnull, "rb") as file:
            sent = array("i", [file.fileno()] * (len(data) % 40))
            before = len(os.listdir("/proc/self/fd"))
            theirs.sendmsg([data[: packets.MAX_PACKET]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)] if sent else [])
            said = None
            try:
                ours.setblocking(False)
                said = hear(ours)
            finally:
                if isinstance(said, messages.Said) and said.pidfd >= 0:
                    os.close(said.pidfd)
                assert len(os.listdir("/proc/self/fd")) == before

    return take


def _guarded(data: bytes) -> None:
    guard = HttpGuard("api.example.com", 80, default_port=80)
    guard.client_says(data)
    guard.client_says(b"")


def _first_words(data: bytes) -> None:
    words = FirstBytes("api.example.com", 80)
    words.client_says(data)
    words.client_says(b"")


def _frames(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    reader.finish()


def _ipc_frames(data: bytes) -> None:
    reader = Frames()
    reader.feed(data)
    while reader.next() is not None:
        pass


def _tar(data: bytes) -> None:
    TarStream(Kept()).feed(data)


def _heads(data: bytes) -> None:
    heads = Heads(strict=True)
    heads.feed(data)
    while (head := heads.cut()) is not None:
        check_written(head)


async def _used(data: bytes) -> None:
    """Uses a sandbox whose agent answers everything by ``data``; faults of ours are expected."""
    await _use(sandbox_of(LyingAgent(lambda number, order: data)))


REQUEST = b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
QUERY = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x03api\x07example\x03com\0\0\x01\0\x01"
ENDED = b'{"ended":"p","status":0,"cpu":0.1,"rss":1}'
CHANNEL = b"".join(kind + len(body).to_bytes(4) + body for kind, body in ((b"R", b'{"result":1}'), (b"Z", b"")))
GATE = (Failure, OSError)
ENTRY = b'{"name":"a","kind":"file","size":1,"mode":420,"modified":1.5}'

_ENTRY = b"".join((b"O", len(ENTRY).to_bytes(4), ENTRY))

READERS = {
    "the keeper of its sandboxes' inits": Reader(
        lambda data: messages.read(read_object(data, messages.MOST_BYTES)),
        (BadMessage,),
        "sandbox/native/keeper/messages.py",
        (ENDED, b'{"ready":true}'),
    ),
    "the keeper of packets of an init": Reader(_packet(messages.hear_init), (BadMessage,), "ipc/packets.py", (ENDED,)),
    "the keeper of packets of a zygote": Reader(
        _packet(messages.hear_zygote),
        (BadMessage,),
        "sandbox/native/keeper/messages.py",
        (b'{"pid":5}', b'{"fault":"x"}'),
    ),
    "the server, the keeper and the gate of frames": Reader(
        _ipc_frames, (BadMessage,), "ipc/channel.py", (b"\0\0\0\x02\0\0\0\0{}", b"\0\0\x40\0\0\0\0\0" + b"[" * 0x4000)
    ),
    "the server of a guest's channel": Reader(_frames, (FrameFault,), "domain/sandbox/frames.py", (CHANNEL,)),
    "the server of foreign JSON": Reader(parse_json, (BadJson,), "domain/foreign_json.py", (ENDED,)),
    "the server of the files program": Reader(
        lambda data: asyncio.run(_listing(data)),
        (SandboxFault,),
        "sandbox/file_programs.py",
        (_ENTRY, b"D\0\0\0\x01\n" + _ENTRY, b"F\0\0\0\x19" + b'{"status":3,"text":"gone"}'[:25], b"D\xff\xff\xff\xff"),
    ),
    "the server of a tree out of a sandbox": Reader(
        lambda data: asyncio.run(_tree(data)), (SandboxFault,), "sandbox/file_programs.py", (ARCHIVES["tar"],)
    ),
    "the server of an agent inside": Reader(
        lambda data: asyncio.run(_used(data)),
        (),
        "sandbox/agent_channel.py",
        (reply(1, {}), reply(2, {"name": "x", "kind": "file", "size": 1})),
    ),
    "a backend of a look from inside": Reader(_looked_at, (SkillyardError,), "sandbox/native/probe.py", (ENDED,)),
    "a build of what its sandbox streams": Reader(
        _tar, (ArchiveRefused,), "domain/archive/tar_stream.py", (ARCHIVES["tar"],)
    ),
    "the store of an archive": Reader(
        lambda data: read_archive(io.BytesIO(data)), (), "stores/skills/archives/reading.py", tuple(ARCHIVES.values())
    ),
    "the keeper of addresses to bind": Reader(
        lambda data: port_of(data, socket.AF_INET6),
        (OSError,),
        "sandbox/native/grounds/landlock/ports.py",
        (b"\x0a\0\x1f\x90" + bytes(24),),
    ),
    "the gate of SOCKS": Reader(
        _served(socks.serve), GATE, "gate/socks.py", (b"\x05\x01\x00\x05\x01\x00\x03\x01a\0\x50",)
    ),
    "the gate of HTTP proxy requests": Reader(_served(proxy.serve), GATE, "gate/http/proxy.py", (REQUEST,)),
    "the gate of what comes to the proxy": Reader(_served(listener.serve_proxy), GATE, "gate/listener.py", (REQUEST,)),
    "the gate of DNS over TCP": Reader(
        _served(dns_server.serve), GATE, "gate/dns_server.py", (len(QUERY).to_bytes(2) + QUERY,)
    ),
    "the gate of DNS": Reader(read_question, (), "gate/dns_server.py", (QUERY,)),
    "the gate of TLS": Reader(
        lambda data: HelloReader().feed(data), (Malformed,), "gate/tls/client_hello.py", (hello(b"api.example.com"),)
    ),
    "the gate of HTTP heads": Reader(_heads, (Refused,), "gate/http/head.py", (REQUEST,)),
    "the gate of HTTP inside": Reader(_guarded, (Failure,), "gate/http/guard.py", (REQUEST,)),
    "the gate of first words": Reader(_first_words, (Failure,), "gate/relay/first_bytes.py", (REQUEST,)),
    "the gate of what it sniffs": Reader(sniff, (), "gate/relay/first_bytes.py", (REQUEST,)),
    "the gate of hosts": Reader(
        lambda data: parse_host_port(data.decode("latin-1")), (), "gate/addresses.py", (b"[::1]:80", b"a:99999")
    ),
}

OWN_WORDS = {
    "sandbox/native/grounds/namespaces/listening.py": "the kernel's",
    "sandbox/native/launch.py": "the keeper's, before it has a sandbox",
    "sandbox/native/host_advice.py": "a child of our own",
    "sandbox/native/grounds/root.py": "the keeper's, before anything is imported",
    "sandbox/native/inside/walls.py": "the keeper's",
    "sandbox/native/inside/later.py": "the keeper's, as the first process passes them on",
    "sandbox/native/grounds/namespaces/form.py": "the keeper's own table",
    "ipc/channel.py": "read by every keeper's row above; frames in tests/unit/ipc",
    "ipc/peers.py": "the kernel's",
    "sandbox/native/grounds/landlock/inside/walls.py": "the keeper's",
    "sandbox/native/grounds/landlock/zygote.py": "the keeper's",
    "sandbox/native/linux/supervision.py": "the kernel's",
    "sandbox/native/grounds/gvisor/jail.py": "our own file",
    "sandbox/microvm/accel.py": "our own file",
    "sandbox/microvm/backend.py": "our own file; what a machine says is read by parse_json",
    "sandbox/microvm/image.py": "the operator's image",
    "sandbox/microvm/inside.py": "the server's",
    "sandbox/oci/backend.py": "the engine's, and those of an image in which no foreign code has run",
    "sandbox/oci/engine.py": "the engine's",
    "sandbox/oci/home.py": "our own file",
    "sandbox/oci/loader.py": "the server's, in a container where no foreign code runs",
    "sandbox/srt/run.py": "our own file, and bubblewrap's before srt starts",
    "sandbox/srt/settings.py": "the operator's file",
    "sandbox/srt/tools.py": "the operator's npm package",
    "sandbox/e2b/stage.py": "the server's, and a child's",
    "sandbox/e2b/one_user.py": "the server's",
    "sandbox/opensandbox/http_entry.py": "the server's, with its key",
    "sandbox/opensandbox/maker.py": "the server's, and the kernel's",
    "gate/link.py": "the server's",
    "gate/addresses.py": "the kernel's",
    "gate/client.py": "the server's own, sealed under its key",
}
_PARSERS = {"loads", "unpack", "unpack_from", "recvmsg"}


def _all_that_parse() -> set[str]:
    top = Path(skillyard.__file__).parent
    found = set()
    for folder in ("sandbox", "gate", "ipc"):
        for path in (top / folder).rglob("*.py"):
            calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            if any(isinstance(call, ast.Attribute) and call.attr in _PARSERS for call in calls):
                found.add(str(path.relative_to(top)))
    return found


def test_the_table_names_every_reader() -> None:
    """A module of a keeper's or the gate's that begins to parse words belongs into one table or the other."""
    assert _all_that_parse() - {reader.module for reader in READERS.values()} - OWN_WORDS.keys() == set()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["ready", "ended", "status", "pid", "name", "size", "kind", "cpu", "rss", "failed", "why"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
_DEEP = st.sampled_from([b"[" * DEEP, b'{"ready":' * DEEP, b"[" * 900 + b"]" * 900, b"9" * 5000, b'{"size":1e999}'])


def _changed(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A seed, cut, doubled, or with a few of its bytes replaced."""

    def change(seed: bytes, at: int, piece: bytes, cut: int) -> bytes:
        at %= len(seed) + 1
        return seed[:at] + piece + seed[at + cut :]

    return st.builds(change, st.sampled_from(seeds), st.integers(0, 4000), st.binary(max_size=12), st.integers(0, 12))


@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_what_it_says_and_nothing_else(name: str) -> None:
    reader = READERS[name]
    seeds = (*reader.like, b"")

    @given(st.binary(max_size=300) | _JSON | _DEEP | _changed(seeds))
    def holds(data: bytes) -> None:
        with contextlib.suppress(*reader.raises):
            reader.read(data)

    holds()
    for seed in reader.like:
        with contextlib.suppress(*reader.raises):
            reader.read(seed)
