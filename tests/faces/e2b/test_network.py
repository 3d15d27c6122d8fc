"""The SDK's rules for the network narrow what policy gives, and never widen it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from e2b.exceptions import SandboxException

from skillyard.config.network import NetworkSettings
from skillyard.faces.e2b.network import rules_of
from tests.crash.server import Server, end_kept
from tests.faces.e2b.conftest import ENV, Yard

EVERYTHING = "0.0.0.0/0"
HOSTS = ["a.example", "b.example", "c.example"]
POLICY = NetworkSettings.model_validate({"rules": HOSTS, "run_code": ["a.example:443", "b.example:443"]})


def asked(**body: Any) -> list[str] | None:
    rules = rules_of(body, POLICY)
    return None if rules is None else [rule.text for rule in rules]


def test_rules_become_ours() -> None:
    assert asked() is asked(allow_internet_access=True) is asked(allowOut=["c.example"]) is None
    assert asked(allow_internet_access=False) == asked(denyOut=[EVERYTHING]) == []
    assert asked(denyOut=[EVERYTHING], allowOut=["a.example", "192.0.2.1", "2001:db8::1"]) == [
        "a.example:*", "192.0.2.1:*", "[2001:db8::1]:*",
    ]  # fmt: skip
    assert asked(denyOut=["192.0.2.0/24"]) == ["a.example:443", "b.example:443", "!192.0.2.0/24"]
    assert asked(allow_internet_access=False, allowOut=["a.example"], denyOut=["192.0.2.1"]) == [
        "a.example:*", "!192.0.2.1",
    ]  # fmt: skip
    assert asked(denyOut=[EVERYTHING], allowOut=[EVERYTHING]) is None


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    own = {
        "SKILLYARD_NETWORK__RULES": json.dumps(HOSTS),
        "SKILLYARD_NETWORK__RUN_CODE": '["a.example", "b.example"]',
    }
    with Server(tmp_path_factory.mktemp("e2b") / "data", **cast("Any", {**ENV, **own})) as server:
        yield Yard(server)
    end_kept()


def network_of(yard: Yard, sandbox: Any) -> Any:
    with yard.server.client() as client:
        return client.show_run(f"run_{sandbox.sandbox_id}", detail="full")["run"]["network"]


def connects(sandbox: Any, host: str) -> str:
    """Returns what the gate says of a host: one that is allowed has no address here."""
    look = f"curl -s -m 20 -o /dev/null -w '%{{http_connect}}' https://{host}/ || true"
    return str(sandbox.commands.run(look).stdout)


def test_a_sandbox_has_at_most_what_policy_gives(yard: Yard) -> None:
    closed = yard.create(allow_internet_access=False)
    assert network_of(yard, closed) is None
    closed.kill()
    narrow = yard.create(network={"allow_out": ["a.example", "c.example"], "deny_out": [EVERYTHING]})
    layers = {layer["name"]: layer["rules"] for layer in network_of(yard, narrow)["layers"]}
    assert layers["request"] == ["a.example:*", "c.example:*"]
    assert layers["code"] == ["a.example", "b.example"]
    assert connects(narrow, "b.example") == connects(narrow, "c.example") == "403"
    assert connects(narrow, "a.example") != "403"
    narrow.update_network({"allow_internet_access": False})
    assert connects(narrow, "a.example") == "403"
    narrow.kill()
    with pytest.raises(SandboxException, match=r"400: .*rules"):
        yard.create(network={"rules": {"a.example": [{"transform": {"headers": {"X": "y"}}}]}})
