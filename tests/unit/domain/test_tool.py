"""Definitions of tools, which others wrote, and their names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput
from skillyard.domain.tool import check_server_name, offered_name, tool_of, tool_of_text
from skillyard.engine.table import METHODS

PLAIN = {"name": "status", "description": "Shows it.", "inputSchema": {"type": "object"}}
SERVERS = st.from_regex(r"[a-z][a-z0-9]{0,3}(_[a-z0-9]{1,3}){0,2}", fullmatch=True)
TOOLS = st.from_regex(r"[A-Za-z0-9_.\-]{1,8}", fullmatch=True)


@given(st.tuples(SERVERS, TOOLS), st.tuples(SERVERS, TOOLS))
def test_no_tool_has_the_name_of_another(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (offered_name(*one) == offered_name(*other)) == (one == other)


@given(SERVERS, TOOLS)
def test_no_tool_has_the_name_of_a_method(server: str, tool: str) -> None:
    ours = {name.replace(".", "_") for name in METHODS} | METHODS.keys()
    assert offered_name(check_server_name("x", server), tool) not in ours


@pytest.mark.parametrize("name", ["", "A", "a__b", "a_", "_a", "1a", "a-b", "a.b", "a" * 33, "a\n"])
def test_a_server_cannot_have_a_name_that_two_could_share(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_server_name("mcp.servers", name)


@pytest.mark.parametrize(
    "change",
    [
        {"description": "Sends it."},
        {"inputSchema": {"type": "object", "properties": {"key": {"description": "your key"}}}},
        {"title": "Status"},
        {"outputSchema": {"type": "object"}},
        {"annotations": {"readOnlyHint": True}},
    ],
)
def test_everything_that_a_model_reads_is_in_the_digest(change: dict[str, Any]) -> None:
    assert tool_of({**PLAIN, **change}).digest != tool_of(PLAIN).digest


def test_the_digest_does_not_depend_on_order_or_on_what_nobody_reads() -> None:
    told = {**dict(reversed(PLAIN.items())), "icons": [], "_meta": {"a": 1}}
    assert tool_of(told).digest == tool_of(PLAIN).digest == tool_of_text(tool_of(PLAIN).text).digest


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {**PLAIN, "name": "a b"},
        {**PLAIN, "name": "a" * 65},
        {**PLAIN, "name": 3},
        {**PLAIN, "description": ["x"]},
        {**PLAIN, "inputSchema": True},
        {"name": "a"},
        {**PLAIN, "description": "x" * 40_000},
    ],
)
def test_what_cannot_be_offered_is_refused(told: Any) -> None:
    with pytest.raises(InvalidInput):
        tool_of(told)


@pytest.mark.parametrize("hidden", ["\u200b", "\U000e0041", "\u202e", "\x1b", "\ufeff"])
def test_invisible_characters_are_found_wherever_they_stand(hidden: str) -> None:
    deep = {"type": "object", "properties": {"a": {"enum": ["x", f"y{hidden}"]}}}
    assert tool_of(PLAIN).hidden == ""
    assert tool_of({**PLAIN, "inputSchema": deep}).hidden == f"U+{ord(hidden):04X}"
    assert tool_of({**PLAIN, "description": f"two lines\nand{hidden}"}).hidden
