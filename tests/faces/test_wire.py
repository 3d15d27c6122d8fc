"""JSON that is taken and JSON that is not."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import ParseError
from skillyard.faces.rpc.wire import MAX_DEPTH, MAX_VALUES, dumps, loads, weight

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    assert loads(dumps(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_parse_error(body: bytes) -> None:
    try:
        value = loads(body)
    except ParseError:
        return
    assert json.loads(body) == value


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "Expecting value"),
        (b"{", "line 1"),
        (b"{} {}", "Extra data"),
        (b'{"a":1,"a":2}', "same name twice"),
        (b'[{"b":{"a":1,"a":2}}]', "same name twice"),
        (b"[NaN]", "NaN"),
        (b"[Infinity]", "NaN"),
        (b"[-Infinity]", "NaN"),
        (b"[1e999]", "double"),
        (b"[-1e999]", "double"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'"\xff"', "byte 1"),
        ("{}".encode("utf-16"), "byte 0"),
        (b'["\\ud800"]', "half a character"),
        (b'{"\\uDC00":1}', "half a character"),
        (b"9" * 5000, "digits"),
        (b"[" * 100_000, "levels deep"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "levels deep"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "levels deep"),
        (b"[" + b"[]," * MAX_VALUES + b"[]]", "values"),
        (b'["' + b'","' * MAX_VALUES + b'"]', "values"),
    ],
)
def test_refused(body: bytes, part: str) -> None:
    with pytest.raises(ParseError, match=part):
        loads(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, None),
        (b"1" * 4000, int("1" * 4000)),
        (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        (b'"\\u0000"', "\0"),
        (b' \r\n\t{"a":[]}\n', {"a": []}),
        (b"1e308", 1e308),
    ],
)
def test_taken(body: bytes, value: object) -> None:
    assert loads(body) == (loads(body) if value is None else value)


def test_a_long_text_full_of_separators_is_one_value() -> None:
    text = 'a,b,"c",[{,' * (MAX_VALUES // 2)
    assert loads(json.dumps({"content": text}).encode()) == {"content": text}


def test_a_message_repeats_no_content() -> None:
    with pytest.raises(ParseError) as caught:
        loads(b'{"password": hunter2}')
    assert "hunter2" not in caught.value.message
    assert "password" not in caught.value.message


def test_what_is_written_is_always_utf8_and_never_nan() -> None:
    assert dumps({"a": "\ud800é"}) == '{"a":"?é"}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        dumps(math.nan)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"[" + b"[]," * 9_999 + b"[]]", 20_000),
        (b'["' + b"," * 100_000 + b'"]', 1),
        (b"[" + b"1," * (2 * MAX_VALUES) + b"1]", MAX_VALUES),
        (b'["' + b'","' * (3 * MAX_VALUES) + b'"]', MAX_VALUES),
        (b"[1,2,3]", 0),
    ],
)
def test_weight_counts_what_stands_outside_strings(body: bytes, values: int) -> None:
    assert weight(body) == 64 * values
