"""Real programs simply work for what their policy names, and learn at once that all else is refused."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.conformance.gate.programs.clients import CLIENTS, NEEDED, Client
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.yard import ENVIRONMENT, Told

AT_ONCE_S = 2.0


def _skip_without(client: Client, place: Place) -> None:
    needs = {"postgres": "postgres", "ws": "websockets", "wss": "websockets"}.get(client.service)
    for need in filter(None, ("packages" if client.packages else None, needs)):
        if why := place.why_not(need):
            pytest.skip(why)
    program = NEEDED.get(client.id.partition("-")[0])
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed here")


SOON = {
    "urllib", "urllib-no-proxy", "requests", "httpx", "aiohttp-no-proxy", "socket", "socks5", "smtplib",
    "psycopg-verify-full", "websocket", "websocket-tls-no-proxy", "curl", "curl-plain", "git", "pip", "node-fetch",
}  # fmt: skip
"""One of each kind; the others are long."""


@pytest.mark.parametrize(
    "client", [pytest.param(c, id=c.id, marks=() if c.id in SOON else pytest.mark.long) for c in CLIENTS]
)
def test_what_is_allowed_works_and_all_else_is_refused_at_once(client: Client, place: Place) -> None:
    _skip_without(client, place)
    world = place.world
    port = world.ports[client.service]
    targets = {
        "allowed": (client.name, port),
        "name": ("other.yard.test", port),
        "port": (client.name, world.ports["dns" if client.service != "dns" else "echo"] + 1),
    }
    told = place.yard.go(
        client.source,
        [world.rule(client.name, client.service)],
        {"ca": world.authority.ca_pem, "targets": targets},
        environment=ENVIRONMENT if client.packages else "base",
    )
    assert told.output["allowed"]["said"] == client.says, (told.output["allowed"], told.connections)
    _recorded_as_allowed(told, client, port)
    for which in ("name", "port"):
        _refused_at_once(told.output[which], client)
    seen = ["name"] if "direct" in client.via else ["name", "port"]  # other ports the sandbox refuses by itself
    for which in seen:
        assert any(one["reason"] for one in told.refused(targets[which][0])), (which, told.connections)
    assert [one for one in told.allowed() if one["host"] != client.name] == []


def _recorded_as_allowed(told: Told, client: Client, port: int) -> None:
    found = [one for one in told.allowed() if (one["host"], one["port"]) == (client.name, port)]
    assert {one["via"] for one in found} <= set(client.via), told.connections
    assert sum(one["received_bytes"] for one in found) > 0, told.connections
    assert {one["rule"] for one in found} == {f"{client.name}:{port}"}


def _refused_at_once(attempt: dict[str, Any], client: Client) -> None:
    assert attempt["said"] is None, attempt
    assert attempt["error"]
    assert attempt["s"] < AT_ONCE_S + client.own_s, attempt
