"""The method table through JSON-RPC, with parameters that nobody thought of."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.principal import Principal
from skillyard.engine.table import METHODS
from skillyard.faces.rpc.dispatcher import Dispatcher
from tests.faces.support import ROOT
from tests.faces.test_rpc import Patient

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3),
    max_leaves=6,
)


async def _bound(_principal: Principal, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """As far as every method goes before it does its work."""
    return {"bound": METHODS[name].bind(params)}


DISPATCHER = Dispatcher(METHODS, _bound, lambda *_: None)


def ask(request: dict[str, Any]) -> dict[str, Any]:
    answer = asyncio.run(DISPATCHER.answer(json.dumps(request).encode(), ROOT, Patient()))
    assert answer.content is not None
    reply = json.loads(answer.content)
    assert isinstance(reply, dict)
    return reply


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Known and unknown methods, their own parameter names and others, with values of any kind."""
    name = draw(st.sampled_from([*METHODS, "nope"]))
    own = list(METHODS[name].params["properties"]) if name in METHODS else []
    names = st.sampled_from(own) | st.text(max_size=6) if own else st.text(max_size=6)
    params = draw(st.dictionaries(names, JUNK, max_size=4) | st.lists(JUNK, max_size=2))
    return {"jsonrpc": "2.0", "id": draw(st.integers() | st.text()), "method": name, "params": params}


@given(requests())
def test_any_parameters_give_a_result_or_a_clear_error(request: dict[str, Any]) -> None:
    reply = ask(request)
    assert reply["id"] == request["id"]
    assert ("result" in reply) != ("error" in reply)
    if "error" in reply:
        error = reply["error"]
        assert error["code"] == (-32602 if request["method"] in METHODS else -32601)
        assert error["message"]
        assert error["data"]["type"]


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_parameter_is_refused_by_name(name: str) -> None:
    reply = ask({"jsonrpc": "2.0", "id": 1, "method": name, "params": {"timeuot": 1}})
    assert reply["error"]["code"] == -32602
    assert "timeuot" in reply["error"]["message"]
