"""Explanations say what the policy decides, and never something else."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.explain import Target, explain
from skillyard.domain.network.policy import Layer, Policy, parse_rules


def policy(**layers: list[str]) -> Policy:
    hosts = {"db.internal": (ipaddress.ip_address("10.0.0.5"),)}
    return Policy(tuple(Layer(name, parse_rules(rules)) for name, rules in layers.items()), hosts)


def told(found: Policy, target: str, *addresses: str, own: tuple[str, ...] = ()) -> dict[str, Any]:
    parsed = [ipaddress.ip_address(text) for text in addresses]
    return explain(found, Target.parse(target), parsed, [ipaddress.ip_address(text) for text in own])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("api.x.com", "api.x.com:443"),
        ("API.x.com:80", "api.x.com:80"),
        ("10.0.0.1:5432", "10.0.0.1:5432"),
        ("::1", "[::1]:443"),
        ("[2001:db8::1]:65535", "[2001:db8::1]:65535"),
    ],
)
def test_targets(text: str, shown: str) -> None:
    assert str(Target.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":443",
            "https://x.com",
            "x.com/",
            "x.com:",
            "x.com:0",
            "x.com:65536",
            "x.com:٣",
            "x.com:443:1x",
            "x.com.",
        ),
        *(
            "0x7f.1",
            "2130706433",
            "127.1",
            "[::1",
            "[x.com]:1",
            "[fe80::1%lo]:1",
            "é.com",
            "*.x.com",
            "x" * 301,
            5,
            None,
        ),
    ],
)
def test_what_is_no_target(text: object) -> None:
    with pytest.raises(InvalidInput):
        Target.parse(text, "targets[0]")


def test_each_layer_speaks_for_itself() -> None:
    found = told(policy(operator=["*", "!evil.com"], skill=["*.x.com"], request=["a.x.com:443"]), "b.x.com:443")
    assert (found["allowed"], found["layer"], found["reason"]) == (False, "request", "no request rule allows b.x.com")
    says = [(layer["name"], layer["says"], layer["rule"]) for layer in found["layers"]]
    assert says == [("operator", "allows", "*"), ("skill", "allows", "*.x.com"), ("request", "has no rule", "")]
    denied = told(policy(operator=["*", "!evil.com"], skill=["evil.com"]), "evil.com:80")
    assert denied["reason"] == "denied by operator rule '!evil.com'"
    assert [layer["says"] for layer in denied["layers"]] == ["denies", "allows"]


def test_the_floor_is_told() -> None:
    literal = told(policy(operator=["*"]), "10.0.0.5:5432")
    assert literal["reason"] == ("10.0.0.5 is private: closed unless the operator names the address in network.rules")
    named = told(policy(operator=["10.0.0.0/8:5432"]), "10.0.0.5:5432")
    assert (named["allowed"], named["rule"]) == (True, "10.0.0.0/8:5432")
    host = told(policy(operator=["*"]), "8.8.8.8:443", own=("8.8.8.8",))
    assert "8.8.8.8 is the host itself" in host["reason"]


def test_each_address_of_a_name_is_judged() -> None:
    both = told(policy(operator=["*"], skill=["x.com"]), "x.com:443", "93.184.216.34", "10.0.0.5")
    assert both["allowed"]
    assert [(a["address"], a["allowed"]) for a in both["addresses"]] == [("93.184.216.34", True), ("10.0.0.5", False)]
    closed = told(policy(operator=["*"], skill=["x.com"]), "x.com:443", "10.0.0.5")
    assert not closed["allowed"]
    said = "10.0.0.5 is private: closed unless the operator gives the name's address in network.hosts"
    assert closed["reason"] == said
    assert told(policy(operator=["*"], code=["db.internal:5432"]), "db.internal:5432", "10.0.0.5")["allowed"]


RULES = st.sampled_from(["*", "x.com", "*.x.com:8443", "!x.com:80", "10.0.0.0/8:*", "!10.0.0.5", "::/0"])
LAYERS = st.dictionaries(st.sampled_from(["operator", "skill", "request"]), st.lists(RULES, max_size=4), max_size=3)
TARGETS = st.sampled_from(["x.com:80", "x.com:443", "a.x.com:8443", "10.0.0.5:80", "[2001:db8::1]:443", "8.8.8.8:443"])


@given(LAYERS, TARGETS)
def test_it_is_what_the_policy_decides(layers: dict[str, list[str]], text: str) -> None:
    found, target = policy(**layers), Target.parse(text)
    decision = found.ask(target.name, target.address, target.port)
    if target.address is not None:
        decision = found.check(None, target.address, target.port)
    said = explain(found, target)
    assert (said["allowed"], said["reason"]) == (decision.allowed, decision.reason)
    if said["allowed"]:
        assert {layer["says"] for layer in said["layers"]} == {"allows"}
