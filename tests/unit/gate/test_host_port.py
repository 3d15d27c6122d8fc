"""Hosts and ports have one form: what one reader could take for another host or port is none."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.gate.addresses import Host, parse_host_port, write_host_port

V4, V6 = ipaddress.ip_address("192.0.2.7"), ipaddress.ip_address("2001:db8::7")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a.x.com", "a.x.com", 80),
        ("A.X.com:1", "a.x.com", 1),
        ("a.x.com:65535", "a.x.com", 65535),
        ("192.0.2.7:80", V4, 80),
        ("[2001:DB8:0::7]", V6, 80),
        ("[2001:db8::7]:443", V6, 443),
    ],
)
def test_the_one_form(text: str, host: Host, port: int) -> None:
    assert parse_host_port(text, 80) == (host, port)
    assert parse_host_port(write_host_port(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "", ":80", "a.x.com:", "a.x.com:0", "a.x.com:00", "a.x.com:080", "a.x.com:+80", "a.x.com:-80", "a.x.com: 80",
        "a.x.com:80 ", "a.x.com:65536", "a.x.com:65616", "a.x.com:131152", "a.x.com:8e1", "a.x.com:0x50",
        "a.x.com:80:80", "a.x.com:\u0668\u0660", "a.x.com:\xb2", "a.x.com.", "a..com", ".a.com", "-a.com",
        "a.x.com/", "u@a.x.com", "u:p@a.x.com", "a.x.com#", "a.x.com?", "a.x.com\\", "a.x.com\n", "a\0.com",
        "a%2ecom", "\xe4.com", "a.x.com\u3002org", "*", "*.x.com", "0x7f.1", "0177.0.0.1", "2130706433", "127.1",
        "1.2.3.4.5", "1.2.3.256", "01.2.3.4", "1.2.3.4.", "192.0.2.7/32", "::1", "2001:db8::7", "[::1", "::1]",
        "[::1]x", "[::1]80", "[::1]:", "[::1]:080", "[fe80::1%lo]", "[fe80::1%25lo]", "[192.0.2.7]", "[a.x.com]",
        "[]", "[::1]:80:80", "[[::1]]", "[::1]\n",
    ],
)  # fmt: skip
def test_no_other_form(text: str) -> None:
    assert parse_host_port(text, 80) is None


def test_a_port_may_be_left_out_only_where_one_is_meant() -> None:
    assert parse_host_port("a.x.com") is None
    assert parse_host_port("[::1]") is None


@given(st.text(max_size=30))
def test_what_is_read_is_written_as_it_was_read(text: str) -> None:
    found = parse_host_port(text, 80)
    if found is not None:
        assert parse_host_port(write_host_port(*found)) == found
