"""Every method of the table with generated parameters: an answer of the protocol each time, and never our fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skillyard.engine.table import METHODS
from tests.attacks.front_door.conftest import INSIDES, Door
from tests.attacks.front_door.methods import CANARY, HIDDEN, params_of
from tests.attacks.front_door.wire import Response
from tests.examples import fewer

COMMON = {"InvalidParams": -32602, "Forbidden": -32003, "Busy": -32005}
MAY_START = {
    "run_code": {"timeout_ms": 3000},
    "execute_skill": {"timeout_ms": 3000},
    "skills.run_cmd": {"timeout_sec": 3},
    "skills.run_cmd_async": {"timeout_sec": 3},
    "skills.run_service": {"timeout_sec": 3},
    "skills.task_status": {"timeout_sec": 3},
    "skills.task_watch": {"timeout_sec": 3, "query_timeout_sec": 3},
}
"""Methods that may start something, which is dear, with the time that it gets."""


@pytest.mark.parametrize("name", METHODS)
def test_any_parameters_get_an_answer_of_the_protocol(door: Door, name: str) -> None:
    with door.wire() as wire:

        @fewer(2 if name in MAY_START else 1)
        @given(params=params_of(METHODS[name]), who=st.sampled_from(("alice", "mallory", "reader")))
        def hold(params: dict[str, Any], who: str) -> None:
            body = json.dumps({"jsonrpc": "2.0", "id": "x", "method": name, "params": _calm(name, params)}).encode()
            assume(not INSIDES.search(body))  # an error names the parameter, which would be taken for our insides
            _check(name, door.checked(wire.send(door.post(body, who=who)).response()))

        hold()


def _calm(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Nothing that would work for long."""
    calm = MAY_START.get(name, {})
    return params | {field: most for field, most in calm.items() if isinstance(params.get(field, most), int)}


def _check(name: str, response: Response) -> None:
    if response.status == 400:  # a text that JSON has no room for, such as half a character
        assert response.error["code"] == -32700
        return
    answer = response.json
    assert answer["id"] == "x"
    if "result" in answer:
        assert response.status == 200
        assert METHODS[name].result["required"] == [
            f for f in METHODS[name].result["required"] if f in answer["result"]
        ]
        return
    error = response.error
    allowed = COMMON | {kind.type: kind.code for kind in METHODS[name].errors}
    assert allowed.get(error["data"]["type"]) == error["code"], error
    assert response.status == {-32003: 403, -32005: 429}.get(error["code"], 200)
    if error["code"] == -32602:
        _check_blame(name, error)


def _check_blame(method: str, error: dict[str, Any]) -> None:
    """It names a field and a rule, and does not repeat a value that may be a secret."""
    field = error["data"]["field"]
    assert error["message"].startswith(f"{field}: ")
    root = field.partition(".")[0].partition("[")[0]
    if root in HIDDEN or method.startswith("secrets."):
        assert CANARY not in error["message"]
