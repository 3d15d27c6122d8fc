"""Each rule of the protocol's transport has a test, and the list of rules says which."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RULES = tomllib.loads((HERE / "requirements.toml").read_text())["rule"]


def _tests_in(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["says"])[:60])
def test_a_rule_is_held_by_tests_that_exist(rule: dict[str, object]) -> None:
    assert set(rule) == {"says", "source", "held_by"}
    held_by = rule["held_by"]
    assert isinstance(held_by, list)
    assert held_by
    for place in held_by:
        file, _, name = place.partition("::")
        assert name in _tests_in(file), f"{place} does not exist"


def test_every_dispatcher_test_holds_a_rule() -> None:
    named = {place for rule in RULES for place in rule["held_by"]}
    for file in ("test_rpc.py", "test_rpc_http.py"):
        missing = {f"{file}::{name}" for name in _tests_in(file)} - named
        assert not missing
