"""The provider of machines: time that is renewed, keys, templates that bring content along, and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from skillyard.config.backends import E2bSettings
from skillyard.domain.errors import InvalidInput, ProtectionMissing, SandboxFault, SandboxGone
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Argv, EnvironmentRef, Mount, Owner, SandboxSpec, Stream
from skillyard.domain.secret import EVERYBODY, Delivery, Secret
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.e2b.backend import E2bBackend
from skillyard.sandbox.e2b.channel import CommandChannel
from skillyard.sandbox.e2b.lifetime import MARGIN_S, Lifetime
from skillyard.sandbox.e2b.probe import WITHOUT
from skillyard.sandbox.e2b.provider import Provider
from tests.conformance.sandbox import e2b_ground
from tests.conformance.sandbox.e2b_ground import BOUND_S, StandIn
from tests.hosts.e2b_server import API_KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
SPEC = SandboxSpec(owner=Owner.TASK, allow_degraded=WITHOUT)


@pytest.fixture
async def backend(provider: StandIn, tmp_path: Path) -> AsyncIterator[E2bBackend]:
    backend = E2bBackend(tmp_path / "e2b", provider.settings, e2b_ground.key)
    yield backend
    provider.fail()
    for held in await backend.survey():
        await backend.destroy(held.handle)
    await backend.close()


async def test_a_machine_is_renewed_while_a_server_has_it_and_ends_when_nobody_does(
    backend: E2bBackend, provider: StandIn
) -> None:
    handle = (await backend.create(SPEC, "one")).handle
    await backend.close()  # the task's machine stays
    api = Provider(provider.settings, e2b_ground.key)
    await api.renew(handle, 3)
    lifetime = Lifetime(api, handle, 3, 3600, 3)
    last = provider.machines()[handle]["ends"]
    for _ in range(2):
        async with asyncio.timeout(BOUND_S):
            while (ends := provider.machines()[handle]["ends"]) <= last:
                await asyncio.sleep(0.05)
        last = ends
    await lifetime.close()
    async with asyncio.timeout(BOUND_S):
        while handle in provider.machines():
            await asyncio.sleep(0.05)
    with pytest.raises(SandboxGone):
        await backend.attach(handle)


async def test_a_machine_outlives_each_program_that_is_started_in_it(backend: E2bBackend, provider: StandIn) -> None:
    sandbox = await backend.create(SPEC, "one")
    await sandbox.start(Argv(("sleep", "1000")), id="long", timeout_ms=900_000)
    left_s = provider.machines()[sandbox.handle]["ends"] - time.time()
    assert 900 <= left_s <= 900 + MARGIN_S
    await sandbox.start(Argv(("sleep", "1000")), id="longer", timeout_ms=24 * 3600 * 1000)
    left_s = provider.machines()[sandbox.handle]["ends"] - time.time()
    assert 3590 <= left_s <= provider.settings.max_ttl_s, "no more than the provider allows; it is renewed later"


async def test_the_key_is_that_of_the_store_and_no_other(
    provider: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2B_API_KEY", API_KEY)

    async def none(*_: str) -> None:
        return None

    async def everybodys(name: str, *_: str) -> Secret:
        return Secret(name, API_KEY, "store:1", Delivery.ENV, (), EVERYBODY)

    async def wrong(name: str, *_: str) -> Secret:
        found = await e2b_ground.key(name, "skillyard", "skillyard-e2b")
        assert found is not None
        return replace(found, value="e2b_wrong")

    for find, said in (
        (none, "the store has no secret"),
        (everybodys, "every skill may"),
        (wrong, "refuses the API key"),
    ):
        backend = E2bBackend(tmp_path, provider.settings, find)
        probe = await backend.probe()
        assert not probe.ready
        assert said in probe.facts["why"]
        assert "e2b_wrong" not in probe.facts["why"]
        with pytest.raises(SandboxFault):
            await backend.survey()
        await backend.close()


async def test_an_address_of_the_environment_is_not_taken(
    provider: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2B_SANDBOX_URL", "http://127.0.0.1:1")
    settings = provider.settings.model_copy(update={"sandbox_url": ""})
    backend = E2bBackend(tmp_path, settings, e2b_ground.key)
    probe = await backend.probe()
    await backend.close()
    assert "E2B_SANDBOX_URL" in probe.facts["why"]


async def test_what_a_template_brings_along_is_not_uploaded(provider: StandIn, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "one.py").write_text("ONE = 1")
    digest = "d" * 64
    (provider.baked / "content" / digest).mkdir()
    (provider.baked / "content" / digest / "one.py").write_text("ONE = 2")
    settings = provider.settings.model_copy(update={"template": "baked", "environments": {"mine": "baked"}})
    backend = E2bBackend(tmp_path / "e2b", settings, e2b_ground.key)
    assert (await backend.probe()).ready
    provider.fail()
    spec = SandboxSpec(
        owner=Owner.TASK, allow_degraded=WITHOUT, environment=EnvironmentRef("mine", Content(digest, packages))
    )
    sandbox = await backend.create(spec, "one")
    process = await sandbox.start(Argv(("python3", "-c", "import one; print(one.ONE)")), id="x")
    assert b"".join([piece async for piece in process.output(Stream.STDOUT)]) == b"2\n"
    assert provider.asked().count("POST /files") == 0, "the order goes to the stage by its standard input"
    await backend.destroy(sandbox.handle)
    await backend.close()


@pytest.mark.parametrize(("size", "behind", "uploads"), [(0, 0, 0), (20_000, 0, 0), (100_000, 1, 0), (600_000, 0, 1)])
async def test_a_sandbox_takes_few_requests(
    size: int, behind: int, uploads: int, provider: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "shown").write_bytes(b"x" * size)
    settings = provider.settings.model_copy(update={"template": "baked"})
    backend = E2bBackend(tmp_path / "e2b", settings, e2b_ground.key)
    assert (await backend.probe()).ready
    provider.fail()
    mounts = (Mount(Content("c" * 64, tmp_path / "shown"), "/skills/shown"),) if size else ()
    sandbox = await backend.create(replace(SPEC, single=True, owner=Owner.RUN, mounts=mounts), "one")
    process = await sandbox.start(Argv(("sh", "-c", f"test $(cat /skills/* 2>&- | wc -c) = {size}")), id="x")
    assert (await process.wait()).code == 0
    await backend.destroy(sandbox.handle)
    await backend.close()
    asked = provider.asked()
    assert asked.count("POST /files") == uploads, "little content goes with the order"
    inputs = asked.count("POST /process.Process/SendInput")
    assert inputs == 1 + behind, "the order comes with the command, and the greeting with the first program"
    assert len(asked) == 3 + inputs + uploads, asked


async def test_what_this_server_knows_of_its_machines_it_does_not_ask(backend: E2bBackend, provider: StandIn) -> None:
    assert backend.may_have("s-", None), "an earlier server may have left one"
    handles = [(await backend.create(SPEC, key)).handle for key in ("s-1", "s-2", "t-1")]
    provider.fail()
    await backend.destroy(handles[1])
    assert [backend.may_have(prefix, but) for prefix, but in (("s-", handles[0]), ("s-", None), ("u-", None))] == [
        False,
        True,
        False,
    ]
    assert (await backend.create(SPEC, "s-1")).handle == handles[0]
    await backend.destroy((await backend.create(SPEC, "s-2")).handle)
    assert sum(asked.startswith("GET /v2") for asked in provider.asked()) == 1, "for the key that has a machine"
    provider.fail({"path": "POST /v2/sandboxes", "status": 400, "count": 1})
    with pytest.raises(SandboxFault):
        await backend.create(SPEC, "v-1")
    assert not backend.may_have("v-", None), "none was made"
    provider.fail({"path": "DELETE", "status": 500, "count": 9})
    with pytest.raises(SandboxFault):
        await backend.destroy(handles[0])
    assert backend.may_have("s-", None), "its end is not confirmed"


async def test_a_creation_whose_answer_is_lost_makes_one_machine(provider: StandIn, tmp_path: Path) -> None:
    async with e2b_ground.way(provider.port) as way:
        backend = E2bBackend(tmp_path, e2b_ground.settings(way.port), e2b_ground.key)
        assert (await backend.probe()).ready
        provider.fail()
        creating = asyncio.create_task(backend.create(SPEC, "one"))
        async with asyncio.timeout(BOUND_S):
            while not any(asked == "POST /v2/sandboxes" for asked in provider.asked()):
                await asyncio.sleep(0)
        await way.cut()
        await way.mend()
        sandbox = await creating
        assert set(provider.machines()) == {sandbox.handle}
        await backend.destroy(sandbox.handle)
        await backend.close()


@pytest.mark.parametrize("body", ["[" * 100_000 + "]" * 100_000, "null", "", '{"sandboxID": []}', '[{"state": 7}]'])
async def test_an_answer_of_another_form_is_a_fault(provider: StandIn, body: str) -> None:
    api = Provider(provider.settings, e2b_ground.key)
    provider.fail({"path": "/v2/sandboxes", "status": 200, "count": 2, "body": body})
    with pytest.raises(SandboxFault, match="the provider refuses"):
        await api.create("base", {}, 60, "k")
    with pytest.raises(SandboxFault, match="the provider refuses"):
        await anext(api.list({}))


@pytest.mark.parametrize("before", [0, 270, 290])
async def test_a_message_with_the_key_does_not_tell_it_nor_a_part(provider: StandIn, before: int) -> None:
    api = Provider(provider.settings, e2b_ground.key)
    provider.fail({"path": "/v2/sandboxes", "status": 400, "count": 1, "message": "x" * before + API_KEY})
    with pytest.raises(SandboxFault) as failed:
        await anext(api.list({}))
    assert API_KEY[:5] not in str(failed.value)


async def test_more_memory_than_machines_have_is_refused_by_name(backend: E2bBackend) -> None:
    spec = SandboxSpec(limits=Limits(memory_mb=1 << 20), allow_degraded=WITHOUT)
    with pytest.raises(InvalidInput, match=r"limits.memory_mb: machines of the template 'base' have \d+ MiB"):
        await backend.create(spec, "one")


async def test_a_template_that_nobody_used_tells_of_its_python(backend: E2bBackend, provider: StandIn) -> None:
    packages = EnvironmentRef(
        packages=Content("0" * 64, Path("/usr/lib/python3")), platform=Platform("3.1", "x86_64", 0)
    )
    spec = replace(SPEC, image="other", environment=packages)
    assert await backend.platform_of(spec) is None
    with pytest.raises(InvalidInput, match=r"its packages are for Python 3\.1 on x86_64 with musl, and"):
        await backend.create(spec, "foreign")
    assert provider.machines() == {}


async def test_a_network_is_refused_without_a_gate(backend: E2bBackend) -> None:
    with pytest.raises(ProtectionMissing, match="the server has no gate"):
        (await backend.probe()).demand("egress")


async def test_without_a_template_the_mend_is_named(tmp_path: Path) -> None:
    backend = E2bBackend(tmp_path, E2bSettings(), e2b_ground.key)
    assert "skillyard image e2b-template" in (await backend.probe()).facts["why"]
    await backend.close()


async def test_machines_of_others_are_left_alone(backend: E2bBackend, provider: StandIn, tmp_path: Path) -> None:
    other = E2bBackend(tmp_path / "other", provider.settings, e2b_ground.key)
    handle = (await other.create(SPEC, "one")).handle
    assert await backend.survey() == []
    with pytest.raises(SandboxGone, match="is unknown here"):
        await backend.attach(handle)
    await backend.destroy(handle)
    assert handle in provider.machines()
    await other.destroy(handle)
    await other.close()


async def test_an_agent_that_has_ended_is_gone_though_its_machine_lives(
    backend: E2bBackend, provider: StandIn, tmp_path: Path
) -> None:
    sandbox = await backend.create(SPEC, "one")
    process = await sandbox.start(Argv(("sleep", "1000")), id="long")
    await sandbox.end()
    with suppress(SandboxGone):  # the agent may be gone before its word comes
        assert (await process.wait()).outcome is Outcome.CANCELLED
    assert sandbox.handle in provider.machines()
    other = E2bBackend(tmp_path / "e2b", provider.settings, e2b_ground.key)
    with pytest.raises(SandboxGone, match="agent has ended"):
        await other.attach(sandbox.handle)
    await other.close()


async def test_an_end_that_speaks_otherwise_ends_its_channel(backend: E2bBackend, provider: StandIn) -> None:
    sandbox = await backend.create(SPEC, "one")
    api = Provider(provider.settings, e2b_ground.key)
    machine = await api.connect(sandbox.handle, 60)
    channel = await CommandChannel.open(api, machine, "printf '\\303\\277\\342\\202\\254'; cat")
    with pytest.raises(EOFError, match="not the agent's end"):
        await _all_of(channel)
    channel.close()
    await channel.closed()
    echo = await CommandChannel.open(api, machine, f"exec python3 -c '{_ECHO}'")
    everything = bytes(range(256)) * 3000
    echo.write(everything)
    seen = b""
    async with asyncio.timeout(BOUND_S):
        while len(seen) < len(everything):
            piece = await echo.read(1000)
            assert piece
            seen += piece
    assert seen == everything
    echo.close()
    await echo.closed()


async def _all_of(channel: CommandChannel) -> None:
    while await channel.read():
        pass


_ECHO = 'import os\nwhile data := os.read(0, 65536): os.write(1, data.decode("latin-1").encode())'
