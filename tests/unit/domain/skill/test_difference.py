"""What was expected beside what came: the comparison alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skillyard.domain.skill.example import Expectation, ExpectedBlob, Given, GivenBlob, differences

PNG = GivenBlob("image/png", b"\x89PNG\r\n")
JSON = GivenBlob("application/json", b'{"a": [1, {"b": 2, "c": 3}]}')


def paths(expect: Expectation, given: Given) -> list[str]:
    return [difference.path for difference in differences(expect, given)]


@pytest.mark.parametrize(
    ("expected", "got", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, []),
        ({"a": 1}, {"a": True}, ["output.a"]),
        ({"a": True}, {"a": 1}, ["output.a"]),
        ({"a": "1"}, {"a": 1}, ["output.a"]),
        ({"a": {"b": 1}}, {"a": {}}, ["output.a.b"]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ["output.a[1].b"]),
        ({"a": [1]}, {"a": [1, 2]}, ["output.a"]),
        ({"a": {}}, {"a": 1}, ["output.a"]),
        ({"a": []}, {"a": {}}, ["output.a"]),
        ({"a": 1, "b": 2}, {}, ["output.a", "output.b"]),
    ],
)
def test_output_is_compared_in_part(expected: dict[str, Any], got: dict[str, Any], found: list[str]) -> None:
    assert paths(Expectation(output=expected), Given(output=got)) == found


@pytest.mark.parametrize(
    ("expect", "given", "found"),
    [
        (Expectation(), Given(), []),
        (Expectation(), Given(error="ValueError", message="no"), ["error"]),
        (Expectation(error="ValueError"), Given(), ["error"]),
        (Expectation(error="ValueError"), Given(error="KeyError"), ["error"]),
        (Expectation(error="ValueError", message="no"), Given(error="ValueError", message="oh no"), []),
        (Expectation(error="ValueError", message="yes"), Given(error="ValueError", message="oh no"), ["message"]),
        (Expectation(error="ValueError", log=("x",)), Given(error="ValueError", log="y"), ["log"]),
        (Expectation(log=("a", "b")), Given(log="a then c"), ["log"]),
        (Expectation(exit=0, stdout=("a",)), Given(output={"exit": 1, "stdout": "b"}), ["exit", "stdout"]),
        (Expectation(exit=0, stderr=("a",)), Given(output={"exit": 0, "stderr": "xax"}), []),
        (Expectation(blobs=()), Given(blobs=[PNG]), ["blobs"]),
        (Expectation(blobs=(ExpectedBlob(),)), Given(blobs=[PNG]), []),
        (Expectation(blobs=(ExpectedBlob("image/png", bytes="89504e47"),)), Given(blobs=[PNG]), []),
        (
            Expectation(blobs=(ExpectedBlob("image/gif", bytes="47"),)),
            Given(blobs=[PNG]),
            ["blobs[0].kind", "blobs[0].bytes"],
        ),
        (Expectation(blobs=(ExpectedBlob(contains="PNG"),)), Given(blobs=[PNG]), []),
        (Expectation(blobs=(ExpectedBlob(contains="GIF"),)), Given(blobs=[PNG]), ["blobs[0].contains"]),
        (Expectation(blobs=(ExpectedBlob(json={"a": [1, {"b": 2}]}),)), Given(blobs=[JSON]), []),
        (Expectation(blobs=(ExpectedBlob(json={"a": [1, {"b": 9}]}),)), Given(blobs=[JSON]), ["blobs[0].json.a[1].b"]),
        (Expectation(blobs=(ExpectedBlob(json=1),)), Given(blobs=[PNG]), ["blobs[0].json"]),
    ],
)
def test_everything_else(expect: Expectation, given: Given, found: list[str]) -> None:
    assert paths(expect, given) == found


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.dictionaries(st.text(max_size=3), VALUES))
def test_a_value_is_a_part_of_itself_with_more(value: dict[str, Any], more: dict[str, Any]) -> None:
    assert paths(Expectation(output=value), Given(output={**more, **value})) == []


@given(VALUES, VALUES)
def test_no_differences_mean_that_one_holds_the_other(expected: Any, got: Any) -> None:
    assume(expected is not None)
    found = list(differences(Expectation(output=expected), Given(output=got)))
    assert all(len(difference.expected) < 300 and len(difference.got) < 300 for difference in found)
    if json.dumps(expected) == json.dumps(got):
        assert found == []
    elif not isinstance(expected, (dict, list, float, int)) or type(expected) is not type(got):
        assert bool(found) == (expected != got or isinstance(expected, bool) != isinstance(got, bool))
