"""What is said of a rule beforehand never contradicts what the policy decides."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.network.extent import Extent, left_of
from skillyard.domain.network.policy import Layer, Policy, parse_rules
from skillyard.domain.network.rule import parse_rule

NAMES = ("x.com", "a.x.com", "b.a.x.com", "y.com", "a.y.com")
ADDRESSES = ("93.184.216.34", "93.184.217.1", "8.8.8.8")
PORTS = (80, 443, 8080, 5432)
TARGETS = (*NAMES, "*.x.com", "*.a.x.com", "*.y.com", "*", "93.184.216.0/24", "93.184.0.0/16", *ADDRESSES)

targets = st.sampled_from(TARGETS)
ports = st.sampled_from(("", ":443", ":80,443", ":*", ":8080", ":1-443", ":444-9000", ":1-200,201-9000"))
allow = st.builds("{}{}".format, targets, ports)
rules = st.lists(st.one_of(allow, st.builds("!{}{}".format, targets, ports)), max_size=4)


@given(asked=allow, others=st.lists(rules, min_size=1, max_size=2))
def test_what_is_said_is_what_is_decided(asked: str, others: list[list[str]]) -> None:
    rule = parse_rule(asked)
    layers = [Layer(f"layer{index}", parse_rules(texts)) for index, texts in enumerate(others)]
    left = left_of(rule, layers)
    assert bool(left.why) is (left.extent is not Extent.WHOLE)
    alone = Policy((Layer("asked", (rule,)),))
    decided = [
        Policy(tuple(layers)).ask(name, address, port).allowed
        for name, address in [*((n, None) for n in NAMES), *((None, ipaddress.ip_address(a)) for a in ADDRESSES)]
        for port in PORTS
        if alone.ask(name, address, port).allowed
    ]
    if left.extent is Extent.WHOLE:
        assert all(decided)
    if left.extent is Extent.NONE:
        assert not any(decided)


@pytest.mark.parametrize(
    ("asked", "others", "extent", "why"),
    [
        ("api.x.com:443", ["*"], Extent.WHOLE, ""),
        ("api.x.com", ["*.x.com:443"], Extent.PART, "operator rules allow some of it: *.x.com:443"),
        ("*.x.com", ["*", "!secret.x.com"], Extent.PART, "operator rule '!secret.x.com' denies some of it"),
        ("api.x.com", ["*", "!*.x.com"], Extent.NONE, "denied by operator rule '!*.x.com'"),
        ("api.x.com", ["y.com"], Extent.NONE, "no operator rule allows it"),
        ("93.184.216.34:80", ["93.184.0.0/16:*"], Extent.WHOLE, ""),
        ("93.184.0.0/16", ["93.184.216.34"], Extent.PART, "operator rules allow some of it: 93.184.216.34"),
    ],
)
def test_what_is_left(asked: str, others: list[str], extent: Extent, why: str) -> None:
    left = left_of(parse_rule(asked), [Layer("operator", parse_rules(others))])
    assert (left.extent, left.why) == (extent, why)
