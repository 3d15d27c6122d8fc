"""The orders that go to a container engine, and the streams that come from it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tomllib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import BackendAway
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.native.linux.seccomp import ALLOWED, BUILDING
from skillyard.sandbox.oci import calls, container
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.container import Image, Surroundings
from skillyard.sandbox.oci.engine import Demultiplexed, Engine
from skillyard.sandbox.oci.image_build import Built, usual_tag
from skillyard.sandbox.oci.probe import BOUNDED, UNCOUNTED, limits_of
from tests.hosts.test_profile import DANGEROUS

pytestmark = pytest.mark.anyio
IMAGE = Image("sha256:1", {"PATH": "/opt/bin:/bin", "LD_PRELOAD": "/x.so", "SKILLYARD_AGENT": "{}"}, "x86_64")
AROUND = Surroundings("65532:65532", "runsc", 2)
PROFILE = calls.profile("x86_64")


def frame(source: int, data: bytes) -> bytes:
    return bytes([source, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("cut", [1, 3, 8, 11, 1000])
async def test_the_standard_output_is_taken_out_of_frames(cut: int) -> None:
    sent = frame(1, b"one") + frame(2, b"not this") + frame(1, b"") + frame(1, b"two" * 100)
    reader = asyncio.StreamReader()
    stream = Demultiplexed(reader, sent[:cut])
    reader.feed_data(sent[cut:])
    reader.feed_eof()
    found = b""
    while piece := await stream.read(7):
        assert len(piece) <= 7
        found += piece
    assert found == b"one" + b"two" * 100


async def test_a_socket_that_is_not_there_is_an_engine_that_is_away(tmp_path: Path) -> None:
    engine = Engine(str(tmp_path / "none.sock"))
    with pytest.raises(BackendAway, match=r"none\.sock does not answer"):
        await engine.call("GET", "/info")
    with pytest.raises(BackendAway):
        await engine.hijack("/exec/1/start", {})
    await engine.close()


async def test_a_closed_engine_has_done_its_work_and_opens_nothing(tmp_path: Path) -> None:
    """A create that is cancelled removes its container behind the caller's back; nothing is opened after that."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
                told = json.dumps({"ApiVersion": "1.41"}).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(told)}\r\n\r\n"
                writer.write(head.encode() + told)
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "engine.sock"):
        engine = Engine(str(tmp_path / "engine.sock"))
        begun = asyncio.Event()

        async def removal() -> None:
            begun.set()
            await asyncio.sleep(0)
            await engine.call("DELETE", "/containers/one")

        removing = asyncio.create_task(engine.finished(removal()))
        await begun.wait()
        removing.cancel()
        await engine.close()
        assert asked[-1] == b"DELETE /v1.41/containers/one HTTP/1.1"
        with pytest.raises(BackendAway, match="was let go of"):
            await engine.call("GET", "/info")
    assert removing.cancelled()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SPACES = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
SICK = {
    "endless": (CHUNKED, SPACES, "longer than 32 MiB"),
    "an endless error": (CHUNKED.replace(b"200 OK", b"500 No"), SPACES, "longer than 32 MiB"),
    "packed": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 40\r\n\r\n" + gzip.compress(bytes(5000)), b"", "in"),
    "too deep": (HEAD + b"Content-Length: 40000\r\n\r\n" + b"[" * 40000, b"", "in another form: it is nested too deep"),
    "not JSON": (HEAD + b"Content-Length: 3\r\n\r\nyes", b"", "in another form: it is not JSON"),
}


@pytest.mark.parametrize("kind", SICK)
async def test_an_engine_that_answers_sickly_is_away(kind: str, tmp_path: Path) -> None:
    first, more, why = SICK[kind]
    async with _engine(tmp_path / "engine.sock", first, more) as engine:
        with pytest.raises(BackendAway, match=why):
            await engine.call("GET", "/info")


async def test_a_build_that_says_one_endless_line_is_given_up(tmp_path: Path) -> None:
    async with _engine(tmp_path / "engine.sock", CHUNKED, SPACES) as engine:
        with pytest.raises(BackendAway, match="a line of its answer is longer than 1 MiB"):
            async with aclosing(engine.stream("/build", b"", "application/x-tar", {})) as told:
                await anext(told)


async def test_an_answer_that_comes_a_byte_at_a_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillyard.sandbox.oci.engine.CALL_S", 0.3)
    async with _engine(tmp_path / "engine.sock", CHUNKED, b"1\r\n \r\n", pause_s=0.01) as engine, asyncio.timeout(30):
        with pytest.raises(BackendAway, match="does not answer"):
            await engine.call("GET", "/info")


@asynccontextmanager
async def _engine(path: Path, first: bytes, more: bytes, pause_s: float = 0) -> AsyncIterator[Engine]:
    """An engine that answers all but its version with ``first``, and with ``more`` for as long as somebody reads."""
    version, answering = b'{"ApiVersion": "1.41"}', list[asyncio.Task[Any] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while b"/version" in await reader.readuntil(b"\r\n\r\n"):
                writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(version) + version)
            writer.write(first)
            while more:
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(pause_s)
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_unix_server(answer, path):
        engine = Engine(str(path))
        try:
            yield engine
        finally:
            await engine.close()
            await asyncio.gather(*filter(None, answering))


def test_a_container_is_closed_on_every_side() -> None:
    mount = Mount(Content("1", Path("/store/skill")), "/skills/a", ("/skills/b",))
    packages = EnvironmentRef(packages=Content("2", Path("/store/packages")))
    limits = Limits(memory_mb=128, cpus=16, pids=20, disk_mb=64)
    spec = SandboxSpec(limits=limits, mounts=(mount,), environment=packages, owner=Owner.TASK)
    mounts = container.mounts(container.content_of(spec, "/usr/lib/python3/dist-packages"), {})
    order = container.body(spec, IMAGE, AROUND, {"label": "x"}, "ab" * 32, PROFILE, mounts)
    host = order["HostConfig"]
    assert (order["User"], order["NetworkDisabled"], host["NetworkMode"]) == ("65532:65532", True, "none")
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["Runtime"]) == (True, ["ALL"], "runsc")
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert host["MemorySwap"] == host["Memory"]
    assert host["NanoCpus"] == 2_000_000_000
    assert all(mount["ReadOnly"] for mount in host["Mounts"])
    assert [mount["Target"] for mount in host["Mounts"]] == [
        "/skills/a", "/skills/b", "/usr/lib/python3/dist-packages",
    ]  # fmt: skip
    settings = json.loads(order["Env"][-1].partition("=")[2])
    assert settings["env"]["PATH"] == "/opt/bin:/bin"
    assert settings["lease_s"] is None
    assert len(settings["filters"]) == 2


@pytest.mark.parametrize("disk_mb", [1, 7, 512, 16384])
def test_the_places_have_the_disk_limit_together(disk_mb: int) -> None:
    assert sum(container.parts(Limits(disk_mb=disk_mb)).values()) == disk_mb << 20


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_the_profile_is_what_the_tables_allow(architecture: str) -> None:
    rules = json.loads(calls.profile(architecture))["syscalls"]
    allowed = {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert allowed == {name for group in ALLOWED for name in group.calls} | {"seccomp"}
    assert allowed.isdisjoint({*DANGEROUS, *BUILDING} - {"seccomp"})
    [clone] = [rule for rule in rules if rule["names"] == ["clone"]]
    assert clone["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"
    assert clone["args"][0]["valueTwo"] == 0
    assert all(calls.exact(architecture))


def test_variables_of_an_image_steer_nothing() -> None:
    order = container.body(SandboxSpec(), IMAGE, AROUND, {}, "ab" * 32, PROFILE)
    variables = dict(text.split("=", 1) for text in order["Env"])
    assert len(variables) == len(order["Env"])
    assert (variables["LD_PRELOAD"], variables["PATH"]) == ("", "/opt/bin:/bin")
    assert json.loads(variables["SKILLYARD_AGENT"])["env"].keys() == {"PATH", "HOME", "LANG"}


def test_an_image_is_named_by_the_settings_of_its_languages() -> None:
    built = Built("a/b:1", "sha256:1", ())
    assert tomllib.loads(built.settings(())) == tomllib.loads(built.settings(("bash", "python")))
    assert tomllib.loads(built.settings(("bash", "javascript", "bash"))) == {
        "oci": {"images": {"bash": "a/b:1", "javascript": "a/b:1"}}
    }
    assert [usual_tag(names, "1.0+x") for names in ((), ("python",), ("bash", "javascript"))] == [
        "skillyard/run:1.0-x", "skillyard/run:1.0-x", "skillyard/run-bash-javascript:1.0-x",
    ]  # fmt: skip


def test_queues_are_bounded_where_the_engine_can() -> None:
    limits = Limits(memory_mb=128)
    orders = [
        container.body(SandboxSpec(limits=limits), IMAGE, replace(AROUND, bounds_queues=can), {}, "ab" * 32, PROFILE)
        for can in (True, False)
    ]
    assert [order["HostConfig"].get("KernelMemoryTCP") for order in orders] == [32 << 20, None]


def seen_in(queues: str) -> dict[str, Any]:
    """What a program sees on control groups of version 1."""
    memory = str(container.memory(Limits()))
    return {
        "counts_queues": False,
        "memory": memory,
        "swap": memory,
        "queues": queues,
        "pids": "0",
        "cpus": "0 0",
        "sizes": {},
    }


@pytest.mark.parametrize(
    ("queues", "by"), [(str(128 << 20), BOUNDED), ("9223372036854771712", UNCOUNTED), ("", UNCOUNTED)]
)
def test_the_memory_guarantee_says_what_is_not_counted(queues: str, by: str) -> None:
    found = limits_of(seen_in(queues), SandboxSpec(), 2, Level.KERNEL)
    assert found["memory"].by == by


def test_podman_gets_what_it_takes() -> None:
    around = replace(AROUND, is_podman=True)
    host = container.body(SandboxSpec(), IMAGE, around, {}, "ab" * 32, "/data/calls.json")["HostConfig"]
    *usual, masked = host["SecurityOpt"]
    assert usual == ["no-new-privileges", "seccomp=/data/calls.json"]
    assert masked == f"mask={':'.join(host['MaskedPaths'])}"
    assert all("uid=" not in options and "size=" in options for options in host["Tmpfs"].values())
    assert host["Tmpfs"]["/var/tmp"].startswith("ro,")  # it is writable and without a bound otherwise
    assert {limit["Name"] for limit in host["Ulimits"]} == {"nofile", "nproc"}


@pytest.mark.ordinary
@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every socket")
async def test_a_socket_that_may_not_be_opened_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    there = tmp_path / "engine.sock"
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), there)
    there.chmod(0)
    for place, mend in ((there, "let the server's user open it"), (tmp_path / "none.sock", "start Docker")):
        backend = OciBackend(tmp_path / "state", OciSettings(socket=str(place), image="x:1"))
        probe = await backend.probe()
        assert mend in probe.facts["why"]
        assert probe.away
        await backend.close()
    server.close()
