"""Orders of jails are read strictly, and the standing of who sends them is compared field by field."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.work.limits import Limits
from skillyard.faces.jails.peers import Standing
from skillyard.faces.jails.wire import MOST_DIRECTORIES, Ask, Ended
from skillyard.ipc.channel import BadMessage

ASK = Ask(
    ("node", "server.js", ""),
    Limits(cpus=0.5),
    "/srv/notes",
    {"NAME": "é\n"},
    ("api.test:443",),
    ("KEY",),
    (("/srv/notes", True), ("/srv/other", False)),
    ("files", "0" * 64),
    "native",
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _told(ask: Ask) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(ask.told()))
    return told


def test_an_order_arrives_as_it_was_sent() -> None:
    assert Ask.read(_told(ASK)) == ASK
    assert Ask.read(_told(replace(ASK, package=None, isolation=None))).package is None


@given(st.sampled_from(sorted(ASK.told())), _JSON)
def test_a_field_of_any_form_is_read_or_refused(name: str, value: Any) -> None:
    with suppress(BadMessage):
        read = Ask.read({**_told(ASK), name: value})
        assert all(isinstance(word, str) and "\0" not in word for word in (*read.args, read.cwd, *read.allow))
        assert all((type(path), type(writable)) == (str, bool) for path, writable in read.directories)


@given(_JSON)
def test_other_words_are_refused(value: Any) -> None:
    for read in (Ask.read, Ended.read):
        with pytest.raises(BadMessage):
            read(value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"args": []}, {"args": ["a\0b"]}, {"args": "sh"}, {"env": {"A": 1}}, {"cwd": None}, {"package": ["x"]},
        {"limits": {}}, {"limits": {**Limits().as_dict(), "pids": 1}}, {"limits": {**Limits().as_dict(), "pids": True}},
        {"limits": {**Limits().as_dict(), "memory_mb": 64.0}}, {"directories": [["/a", 1]]}, {"directories": [["/a"]]},
        {"directories": [["/a", True]] * (MOST_DIRECTORIES + 1)}, {"isolation": 1}, {"more": 1},
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        Ask.read({**_told(ASK), **wrong})


OURS = Standing.of(os.getpid())
LESS: dict[str, dict[str, Any]] = {
    **{f"other {name}": {"namespaces": {**OURS.namespaces, name: "x:[1]"}} for name in OURS.namespaces},
    "another root": {"root": (0, 0)},
    "another saved user": {"ids": (OURS.ids[0] + " 1", OURS.ids[1])},
    "no new privileges": {"no_new_privs": OURS.no_new_privs + 1},
    "a filter more": {"filters": OURS.filters + 1},
    "another label": {"label": OURS.label + "confined"},
}


@pytest.mark.parametrize("change", LESS.values(), ids=LESS.keys())
def test_one_that_is_confined_by_more_lacks_something(change: dict[str, Any]) -> None:
    assert OURS.lacks(OURS) == ""
    assert replace(OURS, **change).lacks(OURS)


def test_groups_and_capabilities_may_be_more_and_not_fewer() -> None:
    server = replace(OURS, groups=frozenset({"10", "20"}), capabilities=0b110)
    more = replace(server, groups=frozenset({"10", "20", "30"}), capabilities=0b111)
    assert more.lacks(server) == ""
    assert replace(server, groups=frozenset({"10"})).lacks(server)
    assert replace(server, capabilities=0b100).lacks(server)
    assert replace(server, no_new_privs=0, filters=0).lacks(replace(server, no_new_privs=1, filters=2)) == ""
