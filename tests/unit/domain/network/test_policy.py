"""Layers: every one must allow, deny comes first, and what is closed opens only for who names it."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.network.address import Address, embedded, nat64_prefixes
from skillyard.domain.network.policy import OPERATOR, Layer, Policy, parse_rules
from skillyard.domain.network.session import USUAL_PORTS, ports_of

PUBLIC = ipaddress.ip_address("93.184.216.34")
INSIDE = ipaddress.ip_address("10.0.0.7")
METADATA = ipaddress.ip_address("169.254.169.254")


def policy(*layers: tuple[str, list[str]], hosts: dict[str, tuple[Address, ...]] | None = None) -> Policy:
    return Policy(tuple(Layer(name, parse_rules(rules)) for name, rules in layers), hosts or {})


def skill(*rules: str, operator: tuple[str, ...] = ("*",)) -> Policy:
    return policy((OPERATOR, list(operator)), ("skill", list(rules)))


def test_no_layer_allows_nothing() -> None:
    assert Policy().nothing
    assert not Policy().ask("x.org", None, 443).allowed
    assert skill().nothing
    assert skill("!x.org").nothing
    assert not skill("x.org").nothing


def test_every_layer_must_allow() -> None:
    both = skill("a.x.org", "b.y.org", operator=("*.x.org",))
    assert both.ask("a.x.org", None, 443).allowed
    refused = both.ask("b.y.org", None, 443)
    assert not refused.allowed
    assert refused.layer == OPERATOR
    assert "b.y.org" in refused.reason
    assert not both.ask("c.x.org", None, 443).allowed


def test_deny_decides_in_any_order_and_any_layer() -> None:
    for rules in (["!a.x.org", "*.x.org"], ["*.x.org", "!a.x.org"]):
        decision = skill(*rules).ask("a.x.org", None, 443)
        assert not decision.allowed
        assert decision.rule == "!a.x.org"
    assert not skill("a.x.org", operator=("*", "!*.x.org")).ask("a.x.org", None, 443).allowed


def test_the_decision_names_the_narrowest_rule() -> None:
    decision = skill("a.x.org").ask("a.x.org", None, 443)
    assert (decision.layer, decision.rule, decision.reason) == ("skill", "a.x.org", "")


def test_a_wrong_port_is_told_with_the_mend() -> None:
    assert "'db.x.org:5432'" in skill("db.x.org").ask("db.x.org", None, 5432).reason
    assert "'db.x.org:5432'" in skill("db.x.org:1").ask("db.x.org", None, 5432).reason


def test_a_denied_network_holds_for_what_a_name_resolves_to() -> None:
    decision = skill("*", "!93.184.0.0/16").check("x.org", PUBLIC, 443)
    assert not decision.allowed
    assert decision.rule == "!93.184.0.0/16"


def test_names_do_not_open_literals_nor_literals_names() -> None:
    assert not skill("x.org").ask(None, PUBLIC, 443).allowed
    assert not skill("93.184.216.0/24").ask("x.org", None, 443).allowed
    assert skill("93.184.216.0/24").check(None, PUBLIC, 443).allowed


@given(st.ip_addresses(network="10.0.0.0/8") | st.ip_addresses(network="fc00::/7") | st.just(METADATA))
def test_no_name_and_no_star_opens_what_is_closed(address: Address) -> None:
    everything = skill("*", "x.org:*", "*.x.org:*")
    assert not everything.check("x.org", address, 443).allowed
    assert not everything.check(None, address, 443).allowed
    assert everything.check("x.org", PUBLIC, 443).allowed


def test_a_skill_cannot_name_a_closed_address_for_itself() -> None:
    decision = skill("10.0.0.7:443").check(None, INSIDE, 443)
    assert not decision.allowed
    assert decision.layer == "floor"
    assert "private" in decision.reason


def test_a_closed_address_needs_the_operator_and_the_skill() -> None:
    named = ("*", "10.0.0.0/8:5432")
    assert skill("10.0.0.7:5432", operator=named).check(None, INSIDE, 5432).allowed
    assert not skill("*", operator=named).check(None, INSIDE, 5432).allowed
    assert not skill("10.0.0.7:443", operator=named).check(None, INSIDE, 443).allowed


def test_a_name_that_turns_inside_is_refused_unless_the_operator_names_it() -> None:
    addresses_only = ("*", "10.0.0.0/8:5432")
    assert not skill("evil.org:5432", operator=addresses_only).check("evil.org", INSIDE, 5432).allowed
    both = (*addresses_only, "db.corp.org:5432")
    assert skill("db.corp.org:5432", operator=both).check("db.corp.org", INSIDE, 5432).allowed
    assert not skill("evil.org:5432", operator=both).check("evil.org", INSIDE, 5432).allowed
    assert not skill("*", operator=both).check("db.corp.org", INSIDE, 5432).allowed


def test_the_operators_own_hosts_open_exactly_their_addresses() -> None:
    layers = ((OPERATOR, ["*"]), ("skill", ["db.test:5432", "web.test"]))
    hosts = policy(*layers, hosts={"db.test": (INSIDE,)})
    assert hosts.check("db.test", INSIDE, 5432).allowed
    assert not hosts.check("db.test", METADATA, 5432).allowed
    assert not hosts.check("web.test", INSIDE, 443).allowed
    assert (
        not policy((OPERATOR, ["*"]), ("skill", ["*"]), hosts={"db.test": (INSIDE,)})
        .check("db.test", INSIDE, 1)
        .allowed
    )


@pytest.mark.parametrize(
    ("prefix", "address"),  # RFC 6052 §2.4
    [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100:0"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
    ],
)
def test_what_is_behind_a_nat64_is_known(prefix: str, address: str) -> None:
    six, four = ipaddress.IPv6Address(address), ipaddress.IPv4Address("192.0.2.33")
    assert embedded(six, [ipaddress.IPv6Network(prefix)]) == {four}
    assert embedded(six, []) == set()
    assert ipaddress.IPv6Network(prefix) in nat64_prefixes(six, [four])


@pytest.mark.parametrize(
    ("address", "allowed", "said"),
    [
        ("2600:64::10.0.0.7", False, "2600:64::a00:7 leads to 10.0.0.7, which is private"),
        ("2600:64::127.0.0.1", False, "which is loopback"),
        ("2600:64::169.254.169.254", False, "which is metadata"),
        ("2600:64::8.8.8.8", True, ""),
        ("2600:64::9.9.9.9", False, "denied by operator rule '!9.9.9.0/24'"),
        ("2600:64::20.0.0.1", False, "which is the host itself"),
        ("2600:65::10.0.0.7", True, ""),
        ("2600:65::5efe:10.0.0.7", False, "leads to 10.0.0.7, which is private"),  # ISATAP
        ("2600:65::200:5efe:8.8.8.8", True, ""),
        ("64:ff9b::8.8.8.8", False, "is NAT64"),
        ("2002:808:808::1", False, "is 6to4"),
        ("2001::1", False, "is reserved"),  # Teredo
        ("::ffff:8.8.8.8", False, "is IPv4-mapped"),
        ("::8.8.8.8", False, "is IPv4-compatible"),
        ("fec0::1", False, "is site-local"),
    ],
)
def test_addresses_that_lead_to_others_are_judged_by_those(address: str, allowed: bool, said: str) -> None:
    six, own = ipaddress.ip_address(address), [ipaddress.ip_address("20.0.0.1")]
    rules, prefix = (OPERATOR, ["*", "!9.9.9.0/24"]), ipaddress.IPv6Network("2600:64::/96")
    set_ = replace(policy(rules), nat64=(prefix,))
    for decision in (set_.check(None, six, 443, own), policy(rules).check("x.org", six, 443, own, [prefix])):
        assert decision.allowed is allowed
        assert said in decision.reason


def test_the_host_itself_is_closed() -> None:
    assert not skill("x.org").check("x.org", PUBLIC, 443, own=[PUBLIC]).allowed


@pytest.mark.parametrize(
    ("name", "known"), [("a.x.org", True), ("x.org", False), ("only22.org", True), ("z.org", False)]
)
def test_which_names_are_answered(name: str, known: bool) -> None:
    assert skill("*.x.org", "only22.org:22").answers(name) is known


def test_a_name_that_is_denied_on_some_ports_is_answered() -> None:
    assert skill("x.org:*", "!x.org:25").answers("x.org")
    assert not skill("x.org:*", "!x.org").answers("x.org")


def test_ports_that_are_listened_on() -> None:
    assert ports_of(skill("x.org", "db.org:5432")) == (80, 443, 5432)
    assert set(USUAL_PORTS) <= set(ports_of(skill("*")))
    assert len(ports_of(skill(*(f"x.org:{n}" for n in range(1000, 1900))))) == 256
    assert ports_of(skill("x.org:53,3128,9")) == (9,)
    assert ports_of(skill("x.org:9", operator=("*.x.org:80",))) == ()
    assert ports_of(skill("x.org:9,80,7", operator=("*.org.org:80", "*.y.org:7"))) == (7, 80)


rules = st.sampled_from(
    ["*", "x.org", "*.x.org", "y.org:22", "!x.org", "!*.x.org:443", "10.0.0.0/8:*", "!93.184.216.34"]
)
targets = st.sampled_from(["x.org", "a.x.org", "y.org", "z.org"])


@given(st.lists(rules, max_size=5), st.lists(rules, max_size=5), targets, st.sampled_from([22, 80, 443]))
def test_one_more_layer_never_allows_more(first: list[str], second: list[str], name: str, port: int) -> None:
    narrow = policy((OPERATOR, first), ("skill", second))
    for address in (PUBLIC, INSIDE):
        if narrow.check(name, address, port).allowed:
            assert policy((OPERATOR, first)).check(name, address, port).allowed
            assert narrow.answers(name)
            assert narrow.ask(name, None, port).allowed
