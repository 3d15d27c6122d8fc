"""What the function returns, and what the host gets of it (skills-protocol §4, rows 6 and 13)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.guest.conftest import GuestBox


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


IMPORTS = """
import dataclasses, datetime, decimal, enum, pathlib, types, uuid, collections, fractions, io, re
UTC = datetime.timezone.utc
Point = collections.namedtuple("Point", "x y")
class Color(enum.Enum):
    RED = "red"
    AT = datetime.date(2026, 1, 2)
class Level(enum.IntEnum):
    HIGH = 3
class Name(str): pass
@dataclasses.dataclass
class Row:
    at: object
    more: object = None
@dataclasses.dataclass(slots=True)
class Slim:
    a: int = 1
class Model:
    model_fields = {"a": None}
    def model_dump(self, mode="python"): return {"a": 1, "mode": mode}
class Own:
    def __init__(self): self.a = 1
class Endless:
    def __iter__(self):
        while True: yield 1
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("datetime.datetime(2026, 1, 2, 3, 4, 5)", "2026-01-02T03:04:05"),
        ("datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC)", "2026-01-02T03:04:05.000006+00:00"),
        ("datetime.date(2026, 1, 2)", "2026-01-02"),
        ("datetime.time(3, 4)", "03:04:00"),
        ("uuid.UUID(int=5)", "00000000-0000-0000-0000-000000000005"),
        ("pathlib.Path('/workspace/a.csv')", "/workspace/a.csv"),
        ("pathlib.PureWindowsPath('c:/x')", "c:\\x"),
        ("[Color.RED, Color.AT, Level.HIGH]", ["red", "2026-01-02", 3]),
        ("{Color.RED: 1, Level.HIGH: 2, uuid.UUID(int=5): 3}", None),
        ("Name('x')", "x"),
        ("[Point(1, Color.RED)]", [{"x": 1, "y": "red"}]),
        ("[Row(datetime.date(2026, 1, 2), [Row(1)])]", [{"at": "2026-01-02", "more": [{"at": 1, "more": None}]}]),
        ("[Slim()]", [{"a": 1}]),
        ("[Model()]", [{"a": 1, "mode": "json"}]),
        ("collections.OrderedDict(a=collections.defaultdict(list, b=[datetime.date(1, 1, 1)]))", None),
        ("{datetime.date(2026, 1, 2): {pathlib.Path('a'): 1}}", None),
    ],
)
def test_what_has_one_obvious_form_is_converted(box: GuestBox, expression: str, value: object) -> None:
    wanted = {
        "{Color": {"red": 1, "3": 2, "00000000-0000-0000-0000-000000000005": 3},
        "collec": {"a": {"b": ["0001-01-01"]}},
        "{datet": {"2026-01-02": {"a": 1}},
    }.get(expression[:6], {"result": value})
    assert box.call(returning(expression, IMPORTS)).value == wanted


def test_a_row_at_the_top_is_the_object(box: GuestBox) -> None:
    assert box.call(returning("Row(1)", IMPORTS)).value == {"at": 1, "more": None}
    assert box.call(returning("Point(1, 2)", IMPORTS)).value == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("{'tags': {'b', 'a'}}", "output.tags is of type set, which JSON does not have; return sorted(x) or list(x)"),
        ("frozenset()", "return sorted(x)"),
        ("{'image': b'x'}", "blobs.write_bytes(x)"),
        ("bytearray(1)", "blobs.write_bytes(x)"),
        ("{'price': decimal.Decimal('1.10')}", "output.price is of type decimal.Decimal"),
        ("decimal.Decimal(1)", "return str(x), which is exact, or float(x)"),
        ("fractions.Fraction(1, 3)", "return str(x)"),
        ("[1, float('nan')]", "output[1] is nan, which JSON does not have; return None instead, or leave it out"),
        ("{float('inf'): 1}", "output is inf, which JSON does not have"),
        ("1j", "[x.real, x.imag]"),
        ("datetime.timedelta(1)", "x.total_seconds()"),
        ("range(3)", "list(x)"),
        ("{}.items()", "dict(x)"),
        ("{1: 2}.keys()", "list(x)"),
        ("(x for x in [])", "list(x)"),
        ("map(str, [])", "list(x)"),
        ("collections.deque()", "list(x)"),
        ("types.MappingProxyType({})", "dict(x)"),
        ("io.StringIO()", "x.getvalue()"),
        ("re.match('a', 'a')", "x.group()"),
        ("main", "call it"),
        ("Row", "of type type"),
        ("Own()", "return vars(x)"),
        ("{'a': Own()}", "output.a is of type Own"),
        ("Endless()", "of type Endless"),
        ("object()", "return a dict, list, text, number, bool or None"),
        ("[Row({1})]", "output[0].at is of type set"),
        ("{(1, 2): 3}", "make a text of it"),
        ("{datetime.date(1, 1, 1): 1, '0001-01-01': 2}", "keys that become one"),
        ("[{'0001-01-01': 2, datetime.date(1, 1, 1): 1}]", "output[0] has different keys that become one"),
        ("collections.UserDict()", "dict(x)"),
    ],
)
def test_what_is_ambiguous_is_refused_with_the_mend(box: GuestBox, expression: str, complaint: str) -> None:
    ran = box.call(returning(expression, IMPORTS))
    assert ran.failure.type == "OutputNotSerializable"
    assert complaint in ran.failure.message


@pytest.mark.parametrize(
    ("bomb", "type_"),
    [
        ("x = 1\nfor _ in range(40): x = [x, x]", "OutputTooLarge"),
        ("x = 'y' * 10**5\nfor _ in range(40): x = {'a': x, 'b': x}", "OutputTooLarge"),
        ("x = ['y' * 10**5] * 10**6", "OutputTooLarge"),
        ("x = [1] * 10**7", "OutputTooLarge"),
        (
            "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int\n"
            "    def __getattribute__(self, n): return D(1) if n == 'a' else object.__getattribute__(self, n)\n"
            "x = D(1)",
            "OutputNotSerializable",
        ),
        ("x = []\nx.append({'a': (x,)})", "OutputNotSerializable"),
    ],
)
def test_bombs_are_bounded(box: GuestBox, bomb: str, type_: str) -> None:
    assert box.call(returning("x", bomb), max_result_bytes=10**6).failure.type == type_


PACKAGES = os.environ.get("SKILLYARD_TEST_NUMPY") or str(Path(pytest.__file__).parent.parent)
"""A directory that has numpy, where the tests' own packages lack it."""
NUMPY = f"import sys\nsys.path.append({PACKAGES!r})\nimport numpy as np"


needs_numpy = pytest.mark.skipif(not Path(PACKAGES, "numpy").is_dir(), reason="numpy is not installed")


@needs_numpy
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("[np.int64(3), np.float32(0.5), np.float64(2.5), np.bool_(True), np.str_('a')]", [3, 0.5, 2.5, True, "a"]),
        ("np.float64(2.5)", 2.5),
        ("np.array([[1, 2], [3, 4]])", [[1, 2], [3, 4]]),
        ("np.array(3.5)", 3.5),
        ("np.array(['a', None], dtype=object)", ["a", None]),
        ("np.datetime64('2026-01-02T03:04:05.123456789')", "2026-01-02T03:04:05.123456789"),
        ("np.array(['2026-01-02'], dtype='datetime64[D]')", ["2026-01-02"]),
        ("np.longdouble(2.5)", 2.5),
        ("[dict([(np.int64(1), 2), (np.str_('b'), 3)])]", [{"1": 2, "b": 3}]),
    ],
)
def test_scalars_and_small_arrays_of_numpy(box: GuestBox, expression: str, value: object) -> None:
    assert box.call(returning(expression, NUMPY)).value == {"result": value}


@needs_numpy
@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("np.array([1.0, np.nan])", "output[1] is nan"),
        ("np.float32('inf')", "output is inf"),
        ("np.datetime64('NaT')", "output is NaT"),
        ("np.zeros(10_001)", "of 10001 values"),
        ("np.zeros(10_001)", "numpy.save("),
        ("np.complex64(1)", "numpy.complex64"),
        ("np.timedelta64(1, 's')", "numpy.timedelta64(1, 's')"),
        ("np.bytes_(b'x')", "numpy.bytes_"),
        ("np.array([{1}], dtype=object)", "output[0] is of type set"),
    ],
)
def test_what_numpy_has_and_json_has_not(box: GuestBox, expression: str, complaint: str) -> None:
    failure = box.call(returning(expression, NUMPY)).failure
    assert (failure.type, complaint in failure.message) == ("OutputNotSerializable", True), failure.message


@pytest.mark.skipif(not Path(PACKAGES, "pandas").is_dir(), reason="pandas is not installed")
@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("pd.DataFrame({'a': [1]})", 'df.to_dict("records")'),
        ("pd.Series([1])", "x.to_dict() or x.tolist()"),
        ("pd.Timedelta('1s')", "x.total_seconds()"),
        ("pd.NaT", "NaT"),
        ("pd.Timestamp('2026-01-02').isoformat()", ""),
        ("pd.Timestamp('2026-01-02')", ""),
    ],
)
def test_what_pandas_has_and_json_has_not(box: GuestBox, expression: str, complaint: str) -> None:
    ran = box.call(returning(expression, f"{NUMPY}\nimport pandas as pd"))
    if complaint:
        assert complaint in ran.failure.message
    else:
        assert ran.value == {"result": "2026-01-02T00:00:00"}


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
        ("main = 3", "'main' is not a function: it is of type int"),
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
