"""The table itself: names, scopes, strict parameters, and one way to call."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from skillyard.domain.errors import Forbidden, InvalidInput, MethodNotFound, SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.method import compile_schema, without_nulls
from skillyard.engine.table import METHODS
from tests.unit.engine.conftest import Rig

pytestmark = pytest.mark.anyio

PROTOCOL = {
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "load_skills_protocol_guide",
}


def test_the_protocol_has_exactly_eight_methods() -> None:
    assert {m.name for m in METHODS.values() if m.surface == "protocol"} == PROTOCOL
    skills = {f"skills.{name}" for name in ("run_cmd", "run_cmd_async", "run_service", "start_job")}
    assert {m.name for m in METHODS.values() if m.runs} == {"execute_skill", "run_code", "tools.call", *skills}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_every_row_is_complete(method: Any) -> None:
    jsonschema_rs.meta.validate(method.params)
    jsonschema_rs.meta.validate(method.result)
    assert method.params["additionalProperties"] is False
    assert method.doc.endswith(".")
    assert all(issubclass(error, SkillyardError) for error in method.errors)
    json.dumps([method.params, method.result])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_null_for_an_optional_parameter_means_that_it_was_left_out(method: Any) -> None:
    properties = method.params["properties"]
    optional = {name: None for name in properties if name not in method.params["required"]}
    required = {name: _example(properties[name]) for name in method.params["required"]}
    assert method.bind({**required, **optional}) == method.bind(required)
    for name in required:
        if "null" not in properties[name].get("type", ()):
            with pytest.raises(InvalidInput):
                method.bind({**required, name: None})
    with pytest.raises(InvalidInput, match="unknown"):
        method.bind({**required, "no_such_parameter": None})


def test_null_within_limits_means_that_it_was_left_out_and_within_args_it_is_a_value() -> None:
    params = {"language": "python", "code": "x", "args": {"a": None}, "limits": {"cpus": None, "pids": 5}}
    bound = METHODS["run_code"].bind(params)
    assert (bound["args"], bound["limits"]) == ({"a": None}, {"pids": 5})


def _example(rules: Any) -> Any:
    """A value that passes."""
    if "enum" in rules:
        return rules["enum"][0]
    kind = rules["type"] if isinstance(rules["type"], str) else rules["type"][0]
    values: dict[str, Any] = {
        "string": ["blob:a", "run_a", "job_a", "a.b", "aaa", "0" * 64],
        "object": [{}],
        "array": [[]],
    }
    check = compile_schema(rules)
    for value in values.get(kind, [1, True]):
        with suppress(InvalidInput):
            check("", value)
            return value
    raise AssertionError(f"no example for {rules}")


async def test_an_unknown_method(rig: Rig) -> None:
    with pytest.raises(MethodNotFound) as caught:
        await rig.call("no_such")
    assert caught.value.code == -32601


SCOPES = {
    "list_skills": "discover",
    "describe_skill": "discover",
    "read_skill_file": "discover",
    "load_skills_protocol_guide": "discover",
    "execute_skill": "execute",
    "run_code": "run_code",
    "create_blob": "blobs",
    "read_blob": "blobs",
    "blobs.list": "blobs",
    "blobs.stat": "blobs",
    "blobs.delete": "blobs",
}


@pytest.mark.parametrize(("method", "scope"), SCOPES.items())
async def test_a_token_needs_the_scope(rig: Rig, method: str, scope: str) -> None:
    others = Principal("p", frozenset(set(Scope) - {Scope(scope), Scope.ADMIN}))
    with pytest.raises(Forbidden, match=f"lacks the scope '{scope}'") as caught:
        await rig.call(method, others)
    assert caught.value.code == -32003
    for holder in (Principal("p", frozenset({Scope(scope)})), Principal("p", frozenset({Scope.ADMIN}))):
        with suppress(InvalidInput):  # past the scope, to the missing parameters
            await rig.call(method, holder)


@pytest.mark.parametrize("method", ["runs.list", "runs.show", "runs.logs", "runs.wait", "runs.events", "runs.cancel"])
async def test_whoever_may_run_may_look_at_runs(rig: Rig, method: str) -> None:
    with pytest.raises(Forbidden):
        await rig.call(method, Principal("p", frozenset({Scope.DISCOVER, Scope.BLOBS})))
    for scope in (Scope.EXECUTE, Scope.RUN_CODE):
        with suppress(InvalidInput):
            await rig.call(method, Principal("p", frozenset({scope})))


@pytest.mark.parametrize("method", ["runs.list", "blobs.list"])
async def test_only_an_admin_sees_everybodys(rig: Rig, method: str) -> None:
    with pytest.raises(Forbidden, match="admin"):
        await rig.call(method, Principal("p", frozenset({Scope.EXECUTE, Scope.BLOBS})), all=True)


REFUSED = [
    ("run_code", {"language": "python"}, "code: is required"),
    ("run_code", {"code": "x"}, "language: is required"),
    (
        "run_code",
        {"language": "python", "code": "x", "timeout": 5},
        "timeout: unknown.*mean 'timeout_ms'",
    ),
    ("run_code", {"language": "python", "code": 5}, r"code: must be a string \(got integer\)"),
    ("run_code", {"language": "python", "code": "\ud800"}, "code: must be Unicode text"),
    ("run_code", {"language": "python", "code": "x" * (2**20 + 1)}, "code: must have at most 1048576 characters"),
    ("run_code", {"language": "python", "code": "x", "entrypoint": "a b"}, "entrypoint: must match"),
    ("run_code", {"language": "python", "code": "x", "entrypoint": "main\n"}, "entrypoint: must match"),
    ("run_code", {"language": "python", "code": "x", "args": [1]}, r"args: must be an object \(got array of 1\)"),
    ("run_code", {"language": "python", "code": "x", "args": {"a": float("nan")}}, "args: must be JSON"),
    ("run_code", {"language": "python", "code": "x", "args": {"a": object()}}, "args: must be JSON"),
    ("run_code", {"language": "python", "code": "x", "input_blobs": "blob:a"}, "input_blobs: must be an array"),
    ("run_code", {"language": "python", "code": "x", "input_blobs": ["blob:a", "b"]}, r"input_blobs\[1\]: must match"),
    ("run_code", {"language": "python", "code": "x", "mount_skills": [5]}, r"mount_skills\[0\]: must be a string"),
    ("run_code", {"language": "python", "code": "x", "mount_skills": ["a"] * 65}, "at most 64 entries"),
    ("run_code", {"language": "python", "code": "x", "idempotency_key": ""}, "idempotency_key: must match"),
    ("run_code", {"language": "python", "code": "x", "detach": 1}, "detach: must be a boolean"),
    ("execute_skill", {}, "name: is required"),
    ("execute_skill", {"name": ""}, "name: must not be empty"),
    ("execute_skill", {"name": "\ud800"}, "name: must match"),
    ("execute_skill", {"name": "a.b", "version": "1 0"}, "version: must match"),
    ("execute_skill", {"name": "a.b", "version": 1}, "version: must be a string"),
    ("execute_skill", {"name": "a.b", "code": "x"}, "code: unknown parameter"),
    ("list_skills", {"query": "x"}, "query: unknown parameter"),
    ("list_skills", {"limit": 0}, "limit: must be at least 1"),
    ("list_skills", {"limit": 501}, "limit: must be at most 500"),
    ("list_skills", {"detail": "all"}, "detail: must be one of 'names', 'summary'"),
    ("list_skills", {"cursor": "forged"}, "cursor: must be a next_cursor"),
    ("load_skills_protocol_guide", {"x": 1}, "x: unknown parameter; known are none"),
    ("create_blob", {"content": "x"}, "kind: is required"),
    ("create_blob", {"content": "x", "kind": "text/plain", "encoding": "hex"}, "encoding: must be one of"),
    ("create_blob", {"content": "%%", "kind": "text/plain", "encoding": "base64"}, "content: must be base64"),
    ("create_blob", {"content": "\ud800", "kind": "text/plain"}, "content: must be Unicode text"),
    ("create_blob", {"content": "x", "kind": "nokind"}, "kind: must be a MIME type"),
    ("read_blob", {"blob_id": "x"}, "blob_id: must match"),
    ("read_blob", {"blob_id": "blob:x", "max_bytes": 0}, "max_bytes: must be at least 1"),
    ("read_blob", {"blob_id": "blob:x", "mode": "head"}, "mode: must be one of"),
    ("runs.show", {"run_id": "x"}, "run_id: must match"),
    ("runs.show", {"run_id": "run_x"}, "run_id: no run"),
    ("runs.list", {"cursor": "x"}, "cursor: must be a next_cursor"),
    ("runs.list", {"cursor": "run_none"}, "cursor: must be a next_cursor"),
    ("blobs.list", {"cursor": "blob:none"}, "cursor: must be a next_cursor"),
]


@pytest.mark.parametrize(("method", "params", "said"), REFUSED)
async def test_bad_parameters_are_named(rig: Rig, method: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        await rig.call(method, **params)
    assert caught.value.code == -32602
    assert rig.backend.started == []


async def test_positional_parameters_are_refused(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match="params: must be an object"):
        METHODS["list_skills"].bind([1])  # type: ignore[arg-type]


async def test_unknown_parameters_pass_where_the_operator_says_so(rig: Rig) -> None:
    rig.configure(strict_params=False)
    assert (await rig.run(timeout=5))["status"] == "completed"
    with pytest.raises(InvalidInput, match=r"limits\.memory: unknown"):
        await rig.run(limits={"memory": 5})


@pytest.mark.parametrize(
    ("params", "got"),
    [
        ({"entrypoint": "my main"}, "(got 'my main')"),
        ({"entrypoint": "\x1b]0;x\u202e"}, r"(got '\x1b]0;x\u202e')"),
        ({"limits": {"memory_mb": 10**9}}, "(got 1000000000)"),
        ({"language": "x" * 64}, "'… of 64 characters)"),
        ({"language": "https://ann:hunter2@x.test"}, "(got string of 26 characters)"),
    ],
)
async def test_an_error_repeats_a_value_that_is_no_secret(rig: Rig, params: dict[str, Any], got: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await rig.call("run_code", **{"language": "python", "code": "x", **params})
    assert got in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("params", [{"code": ["hunter2"]}, {"code": "hunter2\ud800"}, {"args": "hunter2"}])
async def test_an_error_never_repeats_code_or_arguments(rig: Rig, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        await rig.call("run_code", **{"language": "python", "code": "x", **params})
    assert "hunter2" not in json.dumps([str(caught.value), caught.value.data])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({name for m in METHODS.values() for name in m.params["properties"]})) | st.text(
    max_size=5
)


@given(st.sampled_from(sorted(METHODS)), st.dictionaries(NAMES, JSON, max_size=5))
def test_any_parameters_bind_or_are_refused(name: str, params: dict[str, Any]) -> None:
    method = METHODS[name]
    try:
        bound = method.bind(params)
    except InvalidInput as error:
        assert error.field  # noqa: PT017
    else:
        given = without_nulls(method.params, params)
        assert set(bound) >= set(given)
        assert Draft202012Validator(method.params).is_valid(given)


def test_a_schema_outside_the_subset_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="anyOf"):
        compile_schema({"anyOf": []})
