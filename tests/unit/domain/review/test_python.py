"""The lexer beside ``ast``: on Python's own library both see the same imports and calls."""

from __future__ import annotations

import ast
import random
import sysconfig
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skillyard.domain.review import File, review
from skillyard.domain.review.python_facts import facts_of
from skillyard.domain.review.python_tokens import tokens

LIBRARY = Path(sysconfig.get_path("stdlib"))
SAMPLE = sorted(
    path for part in (".", "asyncio", "email", "json", "importlib") for path in (LIBRARY / part).glob("*.py")
)
WANTED = frozenset({"eval", "exec", "compile", "os.system", "os.fork", "len", "os.path.join", "sys.exit"})


def by_ast(source: str) -> tuple[list[tuple[str, str]], list[tuple[str, int]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    imports, calls = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and (name := dotted(node.func)) in ("eval", "exec", "compile", "len"):
            calls.append((name, node.func.lineno))
    return sorted(imports), sorted(calls)


def dotted(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("seed", range(4))
def test_the_library_is_read_as_ast_reads_it(seed: int) -> None:
    for path in random.Random(seed).sample(SAMPLE, 25):
        source = path.read_text(encoding="utf-8", errors="replace")
        imports, calls = by_ast(source)
        file = File(path.name, source.encode())
        assert file.text is not None
        facts = facts_of(file.text, WANTED.__contains__)
        assert sorted((found.module, found.name) for found in facts.imports) == imports, path
        seen = {(use.dotted, file.text.line_of(use.offset)) for use in facts.uses if use.called}
        assert set(calls) <= seen, path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b as c, d", [("a.b", ""), ("d", "")]),
        ("from . import (x,  # why\n  y as z,\n)", [(".", "x"), (".", "y")]),
        ("from ..a.b import *", [("..a.b", "*")]),
        ("from x import \\\n  y", [("x", "y")]),
        ("if a: import b\nelse: from c import d; import e", [("b", ""), ("c", "d"), ("e", "")]),
        ('\'import a\'; """\nimport b\n"""; r\'\\\'\' ; import c', [("c", "")]),
        ("# import a\nx.import_ = 1\nraise A from B\nyield from c", []),
        ("f'{x!r:>{width}} import a {{import b}}'\nimport c", [("c", "")]),
        ("'unclosed\nimport a", [("a", "")]),
        ("'''unclosed\nimport a", []),
        ("def f(:\n  import a", [("a", "")]),
    ],
)
def test_imports(source: str, expected: list[tuple[str, str]]) -> None:
    assert [(i.module, i.name) for i in facts_of(source, lambda _: False).imports] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("eval (x)", ["eval"]),
        ("e = eval\nmodel.eval()\ndef eval(): ...\nf(eval=1)\nx == eval", ["eval", "eval"]),
        ("import os as o; o . system('x')", ["os.system"]),
        ("from os import system\nsystem", ["os.system"]),
        ("import os.path\nos.system", ["os.system"]),
        ("import os\ngetattr(os, 'system')", ["os.system"]),
        ("f'{f\"{eval(1)}\"}'", ["eval"]),
        ("f'{{eval(1)}}'", []),
        ("'eval(1)' # eval(1)", []),
    ],
)
def test_uses(source: str, expected: list[str]) -> None:
    assert [use.dotted for use in facts_of(source, WANTED.__contains__).uses] == expected


PIECES = st.sampled_from(
    [
        "import ",
        "from ",
        "a",
        ".",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "'",
        '"',
        '"""',
        "f'",
        'f"{',
        "\\",
        "\n",
        " ",
        "#",
        "as ",
        ",",
        "=",
        "\u00aa",
    ]
)


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=60))
@example("f'{f\"{f'{x}'}\"}'")
def test_any_text_has_tokens_in_their_places(source: str) -> None:
    found = list(tokens(source))
    assert all(0 <= token.offset <= len(source) for token in found)
    if source.isascii():
        assert all(source.startswith(token.text, token.offset) for token in found)
    facts_of(source, lambda _: True)


BOMBS = {
    "brackets": "(" * 200_000,
    "nested calls": "f(" * 100_000,
    "unary": "-" * 200_000 + "1",
    "attributes": "a" + ".b" * 100_000,
    "f-strings": "f'{" * 70_000,
    "f-string of braces": "f'" + "{" * 200_000 + "'",
    "backslashes": "'" + "\\" * 200_001,
    "quotes": '"' * 200_001,
    "imports": "import a\n" * 30_000,
    "one import": "import " + "a," * 100_000,
    "from": "from a import (" + "b\n," * 60_000,
    "indents": "".join(" " * (i % 200) + "if x:\n" for i in range(2_000)),
    "names": "eval\n" * 40_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_take_time_in_proportion(name: str) -> None:
    """Half of it takes about half as long: nothing is quadratic, let alone exponential."""
    whole, half = took(BOMBS[name]), took(BOMBS[name][: len(BOMBS[name]) // 2])
    assert whole < 4 * half + 0.5


def took(source: str) -> float:
    start = time.perf_counter()
    review([File("a.py", source.encode())])
    return time.perf_counter() - start
