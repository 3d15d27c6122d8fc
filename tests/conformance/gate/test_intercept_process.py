"""Secrets in the gate's own process, behind its walls, for programs that know no proxy."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.errors import GateFault
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import TRUST_FILE, EgressLimits, EgressPlan, GateSecret, new_placeholder
from skillyard.gate.client import ProcessGate
from tests.conformance.gate.conftest import GATE_UID
from tests.conformance.gate.gates import Plugged, plugged, policy
from tests.conformance.gate.intercepted import BOUND_S, TOKEN, Outside, all_of
from tests.conformance.gate.rooms import Rooms

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate") / "gate"


@pytest.fixture(scope="module")
async def gate(directory: Path, outside: Outside, anyio_backend: str) -> AsyncIterator[ProcessGate]:
    gate = ProcessGate(directory, uid=GATE_UID, ca_file=outside.authority.ca_file)
    yield gate
    await gate.close()


def secret(*hosts: str) -> GateSecret:
    return GateSecret("KEY", new_placeholder(), TOKEN, tuple(map(parse_rule, hosts)))


def plan(outside: Outside, *secrets: GateSecret) -> EgressPlan:
    rules = [f"{name}:{outside.https.port}" for name in ("api.test", "other.test")]
    return EgressPlan(policy(*rules, hosts=("api.test", "other.test")), EgressLimits(), secrets)


def asked(sandbox: Plugged, address: str, outside: Outside, placeholder: str) -> bytes:
    """What a program is told that trusts the session's file and nobody else."""
    port = outside.https.port
    context = ssl.create_default_context(cafile=str(sandbox.session.mounts[0].source.path))
    head = ("GET /echo HTTP/1.1", f"Host: api.test:{port}", "Connection: close", f"X-Key: {placeholder}", "", "")
    with context.wrap_socket(sandbox.room.dial(address, port), server_hostname="api.test") as sock:
        sock.sendall("\r\n".join(head).encode())
        return all_of(sock)


async def test_a_program_that_knows_no_proxy(
    rooms: Rooms, gate: ProcessGate, outside: Outside, directory: Path
) -> None:
    key = secret(f"api.test:{outside.https.port}")
    sandbox = await plugged(gate, rooms.room(), plan(outside, key), outside.https.port)
    assert sandbox.session.env["SSL_CERT_FILE"] == TRUST_FILE == sandbox.session.mounts[0].target
    address = await sandbox.resolve("api.test")
    told = await asyncio.to_thread(asked, sandbox, address, outside, key.placeholder)
    head, _, body = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["headers"]["x-key"] == key.placeholder
    assert outside.seen[-1].headers["x-key"] == TOKEN
    (logged,) = await sandbox.log()
    assert logged.secrets == ("KEY",)
    assert (logged.via, logged.host) == ("direct", "api.test")
    assert TOKEN not in repr(await sandbox.session.close())
    assert list(directory.glob("*.pem")) == []


async def test_without_secrets_there_is_no_authority(rooms: Rooms, gate: ProcessGate, outside: Outside) -> None:
    session = await gate.open("run", plan(outside))
    assert session.mounts == ()
    assert "SSL_CERT_FILE" not in session.env
    await session.close()


async def test_what_cannot_be_bound_opens_no_session(gate: ProcessGate, outside: Outside, directory: Path) -> None:
    with pytest.raises(GateFault) as raised:
        await gate.open("run", plan(outside, secret("*")))
    assert TOKEN not in str(raised.value)
    assert list(directory.glob("*.pem")) == []


async def test_each_session_has_an_authority_of_its_own(gate: ProcessGate, outside: Outside) -> None:
    sessions = [await gate.open("run", plan(outside, secret("api.test"))) for _ in range(2)]
    first, second = (session.mounts[0].source.path for session in sessions)
    assert first is not None
    assert second is not None
    assert first.read_bytes() != second.read_bytes()
    for session in sessions:
        await session.close()


async def test_secrets_at_the_gate_cost_little(gate: ProcessGate, outside: Outside) -> None:
    """Beside sessions without; the usual difference is a millisecond or two."""

    async def opened(*secrets: GateSecret) -> float:
        began = time.perf_counter()
        async with asyncio.timeout(BOUND_S):
            session = await gate.open("run", plan(outside, *secrets))
        took = time.perf_counter() - began
        await session.close()
        return took

    key = secret("api.test")
    await opened(key)
    without = sorted([await opened() for _ in range(21)])[10]
    with_one = sorted([await opened(key) for _ in range(21)])[10]
    print(f"a session: {without * 1000:.2f} ms, with a secret at the gate {with_one * 1000:.2f} ms")
    assert with_one < without + BOUND_S / 10, "no key is made for each"
