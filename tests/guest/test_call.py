"""What the function returns, and what the host gets of it (skills-protocol §4, rows 6 and 13)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.conftest import GuestBox


def returning(expression: str, before: str = "") -> str:
    return f"{before}\ndef main(args):\n    return {expression}\n"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("None", {}),
        ("{'a': [1, 2.5, None, True, 'é']}", {"a": [1, 2.5, None, True, "é"]}),
        ("[1, 2]", {"result": [1, 2]}),
        ("(1, 2)", {"result": [1, 2]}),
        ("3", {"result": 3}),
        ("'text'", {"result": "text"}),
        ("False", {"result": False}),
        ("{}", {}),
        ("{1: 'a', None: 'b', True: 'c', 2.5: 'd'}", {"1": "c", "null": "b", "2.5": "d"}),
        ("__import__('collections').Counter('aab')", {"a": 2, "b": 1}),
        ("args", {"xs": [1, {"deep": "ü"}]}),
        ("2 ** 200", {"result": 2**200}),
        ("'a\\ud800b'", {"result": "a\ufffdb"}),
        ("{'status': 'failed'}", {"status": "failed"}),
    ],
)
def test_what_is_returned_becomes_an_object(box: GuestBox, expression: str, value: object) -> None:
    assert box.call(returning(expression), args={"xs": [1, {"deep": "ü"}]}).value == value


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("{'rows': [{'at': object()}]}", "output.rows[0].at is of type object, which JSON does not have"),
        ("float('nan')", "output is nan, which JSON does not have"),
        ("{'a': (1, float('-inf'))}", "output.a[1] is -inf, which JSON does not have"),
        ("{'a': {(1, 2): 3}}", "output.a has a key of type tuple, which JSON does not have"),
        ("{1, 2}", "output is of type set, which JSON does not have"),
        ("b'bytes'", "output is of type bytes, which JSON does not have"),
        ("main", "output is of type function, which JSON does not have"),
        ("(x for x in 'ab')", "output is of type generator, which JSON does not have"),
        ("Own()", "output is of type Own, which JSON does not have"),
        ("10 ** 5000", "integer string conversion"),
    ],
)
def test_what_is_not_json_is_named_with_its_place(box: GuestBox, expression: str, complaint: str) -> None:
    failure = box.call(returning(expression, before="class Own: pass")).failure
    assert failure.type == "OutputNotSerializable"
    assert complaint in failure.message
    assert failure.traceback == ""


@pytest.mark.parametrize("limit", [None, 30, 100_000])
def test_deep_and_cyclic_values_are_not_serializable(box: GuestBox, limit: int | None) -> None:
    before = "import sys\nnested = []\nfor _ in range(20000): nested = [nested]\ncycle = []\ncycle.append(cycle)"
    adjust = f"sys.setrecursionlimit({limit}) or " if limit else ""
    for name in ("nested", "cycle"):
        assert box.call(returning(adjust + name, before)).failure.type == "OutputNotSerializable"


def test_a_value_above_the_hosts_limit_is_too_large(box: GuestBox) -> None:
    failure = box.call(returning("'x' * 2000"), max_result_bytes=1000).failure
    assert failure.type == "OutputTooLarge"
    assert "1000" in failure.message
    assert "runtime.blobs" in failure.message


def test_an_async_function_is_run_to_its_end(box: GuestBox) -> None:
    code = """
import asyncio
async def main(args):
    parts = await asyncio.gather(*(asyncio.sleep(0, n) for n in range(3)))
    return {"parts": parts}
"""
    assert box.call(code).value == {"parts": [0, 1, 2]}


def test_an_awaitable_that_a_plain_function_returns_is_awaited(box: GuestBox) -> None:
    code = """
class Later:
    def __await__(self):
        yield from ()
        return 7
def main(args):
    return Later()
"""
    assert box.call(code).value == {"result": 7}


def test_another_entrypoint_can_be_named(box: GuestBox) -> None:
    assert box.call("def other(args): return 1", entrypoint="other").value == {"result": 1}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def helper(x): ...\nclass Thing: ...", "defines no function 'main' (it defines: helper, Thing)"),
        ("main = 3", "'main' is no function: it is of type int"),
        ("from os.path import join", "it defines: none"),
        ("", "it defines: none"),
    ],
)
def test_a_missing_entrypoint_says_what_there_is(box: GuestBox, code: str, message: str) -> None:
    failure = box.call(code).failure
    assert failure.type == "EntrypointNotFound"
    assert message in failure.message


def test_a_dict_with_a_hostile_method_fails_as_what_it_raises(box: GuestBox) -> None:
    code = """
class Bad(dict):
    def items(self):
        raise LookupError("no items for you")
def main(args):
    return Bad(a=1)
"""
    assert box.call(code).failure.type == "LookupError"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"not json",
        b"[]",
        b"{}",
        b'{"v": 1, "code": "", "workspace": "/nonexistent"}',
    ],
)
def test_a_request_that_cannot_be_used_is_the_sandboxs_fault(box: GuestBox, request_bytes: bytes) -> None:
    assert box.send(request_bytes).failure.type == "SandboxError"


def test_an_empty_request_runs_nothing(box: GuestBox) -> None:
    ran = box.send(b"")
    assert (ran.final, ran.frames, ran.logs) == (None, [], "")


def test_the_request_file_is_gone_when_code_runs(box: GuestBox) -> None:
    code = f"import os\ndef main(args): return os.path.exists({str(box.root / 'request')!r})"
    assert box.call(code, env={"SECRET": "s3cret"}).value == {"result": False}


def test_large_arguments_arrive_whole(box: GuestBox) -> None:
    args: dict[str, Any] = {"text": "é" * 1_000_000}
    assert box.call("def main(args): return len(args['text'])", args=args).value == {"result": 1_000_000}
