"""The lifecycle API of an OpenSandbox server when it fails: each error is told as it is, and nothing is left."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from skillyard.config.backends import OpenSandboxSettings
from skillyard.domain.errors import BackendAway, SandboxFault, SandboxGone
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount, SandboxSpec
from skillyard.sandbox.opensandbox.backend import OpenSandboxBackend
from skillyard.sandbox.opensandbox.kept import KeptContent
from skillyard.sandbox.opensandbox.server import FILLER, FROM, NOTHING, Order, Server
from tests.hosts.opensandbox.lifecycle import KEY, Fault, Lifecycle, lifecycle

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary, pytest.mark.timeout(120)]
pytest.importorskip("opensandbox", reason="OpenSandbox's SDK is not installed: pip install 'skillyard[opensandbox]'")
ORDER = Order("image:1", ("python3", "-c", ""), {"NAME": "value"}, {"skillyard.server": "a"}, 0.5, 128 << 20, 420)
CREATE, LIST = "POST /v1/sandboxes", "GET /v1/sandboxes"


@pytest.fixture
def standin() -> Iterator[Lifecycle]:
    with lifecycle() as found:
        yield found


def settings(standin: Lifecycle, **changes: object) -> OpenSandboxSettings:
    given = {"domain": standin.domain, "api_key": KEY, "image": "image:1", "request_timeout_seconds": 30}
    return OpenSandboxSettings.model_validate(given | changes)


@pytest.fixture
async def server(standin: Lifecycle) -> AsyncIterator[Server]:
    server = Server(settings(standin))
    yield server
    await server.close()


async def test_what_is_asked_for_is_closed_bounded_and_with_the_key(standin: Lifecycle, server: Server) -> None:
    id = await server.create(ORDER)
    [(_, _, _, headers, body)] = standin.asked
    assert headers["open-sandbox-api-key"] == KEY
    assert body["networkPolicy"] == {"defaultAction": "deny", "egress": []}
    assert (body["resourceLimits"], body["timeout"]) == ({"cpu": "500m", "memory": "128Mi"}, 420)
    metadata = {**ORDER.metadata, FILLER: NOTHING, FROM: NOTHING}
    assert (body["image"], body["env"], body["metadata"]) == ({"uri": "image:1"}, {"NAME": "value"}, metadata)
    assert not body.get("volumes")
    await server.renew(id, 900)
    ends = datetime.fromisoformat(standin.sandboxes[id]["expiresAt"]).timestamp()
    assert 890 < ends - time.time() <= 900
    await server.kill(id)
    await server.kill(id)
    assert (standin.sandboxes, await server.find(id)) == ({}, None)
    with pytest.raises(SandboxGone):
        await server.renew(id, 900)


@pytest.mark.parametrize("through", [False, True])
async def test_the_way_to_a_sandbox_is_the_one_of_the_settings(standin: Lifecycle, through: bool) -> None:
    standin.endpoint = {"endpoint": "127.0.0.1:9/route", "headers": {"X-ROUTE": "7"}}
    server = Server(settings(standin, use_server_proxy=through))
    address, headers = await server.endpoint(await server.create(ORDER))
    await server.close()
    assert address == "http://127.0.0.1:9/route"
    # Past the server's proxy the key would reach the sandbox itself.
    assert headers == {"X-ROUTE": "7"} | ({"OPEN-SANDBOX-API-KEY": KEY} if through else {})
    assert standin.asked[-1][2]["use_server_proxy"] == str(through).lower()


async def test_only_those_with_our_name_are_found_on_all_pages(standin: Lifecycle, server: Server) -> None:
    standin.page = 2
    ours = {await server.create(ORDER) for _ in range(5)}
    other = await server.create(replace(ORDER, metadata={"skillyard.server": "b"}))
    assert {one.id async for one in server.list(ORDER.metadata)} == ours
    standin.sandboxes[other]["metadata"] = {}
    standin.faults = [Fault(LIST, works=False, status=200, body=_page(standin.sandboxes[other]))]
    assert [one.id async for one in server.list(ORDER.metadata)] == [], "the filter is the server's word"


async def test_a_server_without_snapshots_keeps_nothing(standin: Lifecycle, server: Server, tmp_path: Path) -> None:
    async def fill(spec: SandboxSpec, image: str, name: str) -> str:
        raise AssertionError(name)

    kept = KeptContent(server, lambda: "a" * 32, 1 << 30, fill)
    spec = SandboxSpec(mounts=(Mount(Content("1", tmp_path), "/skills/s"),))
    assert [await kept.find(spec, "image:1") for _ in range(4)] == [None] * 4
    await kept.close()
    assert standin.sandboxes == {}


def _page(*items: object) -> bytes:
    told = {"page": 1, "pageSize": 20, "totalItems": 1, "totalPages": 1, "hasNextPage": False}
    return json.dumps({"items": items, "pagination": told}).encode()


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault(CREATE, 400), SandboxFault, r"the server refuses \(400\): .*as the tests want it"),
        (Fault(CREATE, 403), SandboxFault, "refuses the API key.*set opensandbox.api_key"),
        (Fault(CREATE, 409), SandboxFault, r"the server refuses \(409\)"),
        (Fault(CREATE, 429, count=9), SandboxFault, "rate limit is reached.*run fewer sandboxes"),
        (Fault(CREATE, 500), SandboxFault, r"the server refuses \(500\)"),
        (Fault(CREATE, 502, count=9), BackendAway, "does not answer"),
        (Fault(CREATE, 503, count=9), BackendAway, "does not answer"),
        (Fault(CREATE, 307), SandboxFault, r"the server refuses \(307\)"),
        (Fault(CREATE, 202, b"<html>not of this API</html>"), SandboxFault, "is not an OpenSandbox server"),
        (Fault(CREATE, 202, b'{"id": 7}'), SandboxFault, "answers in another form"),
        (Fault(CREATE, 202, b"[" * 20_000), SandboxFault, "answers in another form; see opensandbox.domain"),
        (Fault(CREATE, cut=True, count=9), BackendAway, "does not answer"),
        (Fault(CREATE, 400, b'{"code": "X", "message": "the key key-of-the-tests \\u001b[31m is"}'), SandboxFault, "…"),
    ],
)
async def test_each_failure_is_told_in_its_own_words(
    standin: Lifecycle, server: Server, fault: Fault, kind: type[SandboxFault], said: str
) -> None:
    standin.faults = [fault]
    with pytest.raises(SandboxFault, match=said) as failed:
        await server.create(ORDER)
    assert type(failed.value) is kind
    assert KEY not in str(failed.value)
    assert str(failed.value).isprintable()
    assert {asked[0] for asked in standin.asked} == {"POST"}, "nobody was led elsewhere"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(LIST, 200, endless=bytes(1 << 18)), "longer than 32 MiB"),
        (Fault(LIST, 400, endless=bytes(1 << 18)), "longer than 32 MiB"),
        (Fault(LIST, 200, endless=b" "), "too slowly"),
        (Fault(LIST, 200, gzip.compress(b" " * (64 << 20)), packed=True), "its answer is packed"),
    ],
    ids=["endless", "an endless error", "a byte at a time", "packed"],
)
async def test_an_answer_is_bounded(standin: Lifecycle, fault: Fault, said: str) -> None:
    standin.faults = [fault]
    server = Server(settings(standin, request_timeout_seconds=2))
    async with asyncio.timeout(30):
        with pytest.raises(BackendAway, match=said):
            await anext(server.list({}))
    await server.close()


async def test_a_server_that_says_nothing_is_given_up(standin: Lifecycle) -> None:
    server = Server(settings(standin, request_timeout_seconds=0.5))
    standin.faults = [Fault(LIST, silent=True, count=9)]
    began = time.monotonic()
    with pytest.raises(BackendAway, match="does not answer"):
        await server.find("sandbox-1")
    await server.close()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "fault",
    [
        Fault(CREATE, cut=True, works=True, count=9),
        Fault(CREATE, 503, works=True),
        Fault(CREATE, 202, b"{}", works=True),
        Fault("GET /v1/sandboxes/", 500, count=1),
    ],
    ids=["its answer is lost", "an error in its place", "an answer of another form", "no way to it"],
)
async def test_of_a_creation_that_fails_nothing_is_left(standin: Lifecycle, tmp_path: Path, fault: Fault) -> None:
    standin.faults = [fault, Fault("GET /v1/sandboxes/sandbox-1/endpoints", 500)]
    standin.faults.append(Fault("GET /v1/sandboxes/sandbox-2/endpoints", 500))
    backend = OpenSandboxBackend(tmp_path, settings(standin))
    probe = await backend.probe()
    assert not probe.ready
    assert probe.facts["why"]
    assert standin.bodies("POST", "/v1/sandboxes"), "one was asked for"
    assert standin.sandboxes == {}
    await backend.close()


async def test_a_sandbox_that_no_list_has_is_ended_too(standin: Lifecycle, tmp_path: Path) -> None:
    standin.faults = [Fault("GET /v1/sandboxes/sandbox-2/endpoints", 500)]
    standin.lists = False
    backend = OpenSandboxBackend(tmp_path, settings(standin))
    assert not (await backend.probe()).ready
    assert standin.bodies("POST", "/v1/sandboxes"), "one was asked for"
    assert standin.sandboxes == {}
    await backend.close()


async def test_nothing_is_made_before_the_machines_of_earlier_servers_are_known(
    standin: Lifecycle, tmp_path: Path
) -> None:
    standin.faults = [Fault(LIST, 500)]
    backend = OpenSandboxBackend(tmp_path, settings(standin))
    assert not (await backend.probe()).ready
    assert standin.bodies("POST", "/v1/sandboxes") == []
    assert standin.faults[0].count == 0, "the list was asked for"
    await backend.close()


async def test_a_caller_that_goes_away_leaves_nothing(standin: Lifecycle, tmp_path: Path) -> None:
    backend = OpenSandboxBackend(tmp_path, settings(standin))
    standin.faults = [Fault(LIST, silent=True)]
    asking = asyncio.create_task(backend.probe())
    async with asyncio.timeout(60):
        while not standin.sandboxes:
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert standin.sandboxes == {}
    await backend.close()
