"""The rule language: what is written, what it means, what is refused and why."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.address import closed, looks_numeric, parse_address
from skillyard.domain.network.policy import is_open, parse_rules
from skillyard.domain.network.rule import ANY_PORT, WEB_PORTS, canonical_name, parse_rule

labels = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=2, max_size=5).map(".".join)
ports = st.integers(1, 65535)


@given(names, ports)
def test_a_name_stands_for_itself_alone(name: str, port: int) -> None:
    rule = parse_rule(f"{name.upper()}:{port}")
    assert rule.has_name(name)
    assert rule.has_port(port)
    assert not rule.has_name(f"x.{name}")
    assert not rule.has_name(name + "x")
    assert not rule.has_port(port % 65535 + 1)
    assert not rule.everything


@given(names, labels)
def test_a_wildcard_stands_for_what_is_below(name: str, label: str) -> None:
    rule, longer = parse_rule(f"*.{name}"), "x" * 13  # than any label of the name
    assert rule.has_name(f"{label}.{name}")
    assert rule.has_name(f"a.{label}.{name}")
    assert not rule.has_name(name)
    assert not rule.has_name(f"{label}{name}")
    assert not rule.has_name(f"{name}.{longer}")


@given(st.ip_addresses())
def test_an_address_is_named_outright(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    text = f"[{address}]" if address.version == 6 else str(address)
    rule = parse_rule(f"{text}:5432")
    assert rule.has_address(address)
    assert not rule.has_address(address + 1 if int(address) % 2 == 0 else address - 1)
    assert rule.ports == ((5432, 5432),)


@given(st.ip_addresses(v=6))
def test_a_bare_ipv6_address_has_the_ports_of_the_web(address: ipaddress.IPv6Address) -> None:
    assert parse_rule(str(address)).ports == WEB_PORTS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x.org", WEB_PORTS),
        ("x.org:*", ANY_PORT),
        ("x.org:22", ((22, 22),)),
        ("x.org:80,443,8000-8100", ((80, 80), (443, 443), (8000, 8100))),
        ("*", ANY_PORT),
        ("*:443", ((443, 443),)),
        ("!x.org", ANY_PORT),
        ("!x.org:25", ((25, 25),)),
        ("10.0.0.0/8", WEB_PORTS),
        ("!10.0.0.0/8", ANY_PORT),
        ("[2001:db8::/32]:9", ((9, 9),)),
        ("localhost:1", ((1, 1),)),
    ],
)
def test_ports(text: str, expected: object) -> None:
    assert parse_rule(text).ports == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a rule"),
        (7, "must be a rule"),
        ("x" * 600, "must be a rule"),
        ("https://x.org", "host"),
        ("x.org/path", "without a scheme or path"),
        ("x.org.", "must not end with a dot"),
        ("bücher.example", "xn--"),
        ("0x7f.1", "usual form"),
        ("2130706433", "usual form"),
        ("127.1", "usual form"),
        ("0177.0.0.1", "usual form"),
        ("1.2.3.4.5", "usual form"),
        ("256.1.1.1", "usual form"),
        ("*.org", "two labels"),
        ("a*.x.org", "whole first label"),
        ("*.*.x.org", "whole first label"),
        ("**", "whole first label"),
        ("x..org", "must be a host name"),
        ("-x.org", "must be a host name"),
        ("x org", "must be a host name"),
        ("x.org\n", "must be a host name"),
        ("user@x.org", "must be a host name"),
        ("!", "must be a host name"),
        ("!!x.org", "must be a host name"),
        ("10.0.0.1/8", "host bits"),
        ("10.0.0.0/33", "not a valid network"),
        ("10.0.0.0/-1", "ADDRESS/BITS"),
        ("10.0.0.0/255.0.0.0", "ADDRESS/BITS"),
        ("[::1%lo]:80", "without a zone"),
        ("fe80::1%eth0", "must be a host name"),
        ("[x.org]:80", "ADDRESS"),
        ("[::1]80", "ADDRESS"),
        ("x.org:", "ports"),
        ("x.org:0", "from 1 to 65535"),
        ("x.org:65536", "from 1 to 65535"),
        ("x.org:+80", "ports"),
        ("x.org:80-79", "ascending"),
        ("x.org:٨٠", "ports"),
        ("x.org:http", "ports"),
        ("x.org:80,", "ports"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_reason(text: object, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_rule(text, "network[3]")
    assert says in caught.value.message
    assert "network[3]" in caught.value.message


@given(st.text(max_size=40) | st.from_regex(r"!?(\*\.)?[a-z0-9.:\[\]/*-]{1,30}", fullmatch=True))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidInput:
        return
    assert rule.text == text
    assert rule.ports
    assert bool(rule.name) != (rule.network is not None)
    assert rule.name in ("", "*") or canonical_name(rule.name) == rule.name
    assert parse_rule(text) == rule


def test_words_and_lists() -> None:
    assert parse_rules("none") == ()
    assert is_open(parse_rules("open"))
    assert is_open(parse_rules(["x.org", "*:443"]))
    assert not is_open(parse_rules(["!*", "x.org"]))
    for wrong in ("all", 7, None, {"x.org": 1}, b"open"):
        with pytest.raises(InvalidInput):
            parse_rules(wrong)
    with pytest.raises(InvalidInput, match=r"network\[1\]"):
        parse_rules(["x.org", "y.org:x"])
    with pytest.raises(InvalidInput, match="at most"):
        parse_rules(["x.org"] * 1001)


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.0.1", "168.63.129.16", "169.254.169.254",
        "172.31.0.1", "192.168.0.1", "192.0.2.1", "198.18.0.5", "224.0.0.1", "239.1.1.1", "255.255.255.255", "::",
        "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:0:53aa:64c::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "4000::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_the_floor(text: str) -> None:
    address = parse_address(text)
    assert address is not None
    assert closed(address)


@pytest.mark.parametrize("text", ["8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_above_the_floor(text: str) -> None:
    address = parse_address(text)
    assert address is not None
    assert closed(address) == ""
    assert closed(address, [address]) == "the host itself"


@given(st.ip_addresses())
def test_python_agrees_that_what_is_open_is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if not closed(address):
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize(
    "text", ["127.1", "0x7f.0.0.1", "127.0.0.1.", "::1%lo", "[::1]", "1.2.3", "", "a.b", "1.2.3.04"]
)
def test_what_is_no_strict_address(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize("text", ["1", "0x1", "a.1", "a.0x", "1.2.3.4", "999.1", "1.2.3.4.", "0X7F"])
def test_what_a_resolver_may_read_as_a_number(text: str) -> None:
    assert looks_numeric(text)
    assert canonical_name(text) is None
