"""The parts of the examples with packages that need none: reading tables, moving shapes."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from skillyard.bundled import EXAMPLES


class Blobs:
    def __init__(self) -> None:
        self.text = ""

    def read_text(self, blob_id: str) -> str:
        return self.text


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    made, module = Blobs(), ModuleType("runtime")
    module.__dict__["blobs"] = made
    sys.modules["runtime"] = module
    try:
        yield made
    finally:
        del sys.modules["runtime"]


def part(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("part", EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tables(blobs: Blobs) -> Any:
    return part("examples.sheet.build/code/tables.py")


@pytest.fixture
def rows(blobs: Blobs) -> Any:
    return part("examples.model.fit/code/rows.py")


def test_columns_are_numbers_or_text(tables: Any, blobs: Blobs) -> None:
    blobs.text = "\ufeffname;n;mixed;\nann;1;2;x\nbob;;three\n\ncid;2.5;=1+1;y;more\n"
    table = tables.read("b")
    assert table.names == ["name", "n", "mixed", "column 4"]
    assert table.columns == [["ann", "bob", "cid"], [1, None, 2.5], ["2", "three", "=1+1"], ["x", None, "y"]]
    assert (table.rows, table.numbers()) == (3, [(2, "n")])


def test_lists_of_objects(tables: Any, blobs: Blobs) -> None:
    blobs.text = '[{"a": 1, "b": true}, {"a": 9007199254740993, "c": {"d": "\\u0007"}}]'
    table = tables.read("b")
    assert table.names == ["a", "b", "c"]
    assert table.columns == [[1, float(2**53)], ["true", None], [None, '{"d": "\\u0007"}']]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no columns"),
        ('{"a": 1}', "list of objects"),
        ("[1]", "list of objects"),
        ("," * 300, "at most 50,000 and 200"),
    ],
)
def test_what_is_no_table(tables: Any, blobs: Blobs, text: str, message: str) -> None:
    blobs.text = text
    with pytest.raises(ValueError, match=message):
        tables.read("b")


def test_what_xml_cannot_hold_is_replaced(tables: Any, blobs: Blobs) -> None:
    blobs.text = "a\nx\x07y\n"
    assert tables.read("b").columns == [["x\ufffdy"]]


def test_rows_for_a_classification(rows: Any, blobs: Blobs) -> None:
    names = "".join(f"u{n},{n},{'ab'[n % 2]},{'yes' if n % 2 else 'no'}\n" for n in range(60))
    blobs.text = f"id,n,kind,left\n{names}x,,a,\n"
    table = rows.read("b", "left")
    assert (table.task, table.dropped, table.left_out) == ("classification", 1, ["id"])
    assert table.rows[1] == {"n": 1.0, "kind": "b"}
    assert table.target[:2] == ["no", "yes"]


def test_rows_for_a_regression(rows: Any, blobs: Blobs) -> None:
    blobs.text = "n,m\n" + "".join(f"{n},{'' if n == 3 else n * 2}\n" for n in range(12))
    table = rows.read("b", "n", ["m"])
    assert (table.task, table.target[2]) == ("regression", 2.0)
    assert math.isnan(table.rows[3]["m"])


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,b\n1,2\n", "c", "no column 'c'; there are a, b"),
        ("a,b\n1,2\n1,3\n", "a", "'a' has one value only"),
        ("a,b\n" + "".join(f"{n % 2},name {n}\n" for n in range(99)), "a", "every column"),
        ("", "a", "there are none"),
    ],
)
def test_what_cannot_be_predicted(rows: Any, blobs: Blobs, text: str, target: str, message: str) -> None:
    blobs.text = text
    with pytest.raises(ValueError, match=message):
        rows.read("b", target)


def test_shapes_go_there_and_back() -> None:
    motion = part("examples.gif.animate/code/motion.py")
    assert [motion.there_and_back(turn / 4) for turn in range(5)] == [0, 0.5, 1, 0.5, 0]
    for ease in motion.EASES:
        shape = {"from": [10, 0], "to": [30, 8], "ease": ease}
        assert motion.place(shape, 0) == pytest.approx((10, 0))
        assert motion.place(shape, 1) == pytest.approx((30, 8))
    assert motion.place({"from": [1, 2]}, 0.3) == (1, 2)
