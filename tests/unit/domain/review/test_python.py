"""The facts of Python files: imports, uses, and files that cannot be read."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.config.storage import SchemaSettings
from skillyard.domain.review.python_facts import Facts, Import, facts_from, facts_of
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool

LIBRARY = Path(sysconfig.get_path("stdlib"))
SAMPLE = sorted(
    path for part in (".", "asyncio", "email", "json", "importlib") for path in (LIBRARY / part).glob("*.py")
)
WANTED = frozenset({"eval", "exec", "compile", "os.system", "os.fork", "len", "os.path.join", "sys.exit"})


@pytest.mark.parametrize("seed", range(2))
def test_the_library_is_read_whole(seed: int) -> None:
    for path in random.Random(seed).sample(SAMPLE, 25):
        source = path.read_text(encoding="utf-8", errors="replace")
        facts = facts_of(source, WANTED.__contains__)
        assert (facts.unread, facts.full) == ("", False), path
        assert {found.top for found in facts.imports} >= set(re.findall(r"^import (\w+)$", source, re.MULTILINE)), path
        assert facts == facts_from(json.loads(json.dumps(facts._asdict())))


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


@pytest.mark.parametrize("source", ["'unclosed\nimport a", "def f(:\n  import a", "print 'x'", "a\0", "(" * 201])
def test_other_text_says_why_it_was_not_read(source: str) -> None:
    facts = facts_of(source, WANTED.__contains__)
    assert facts.unread
    assert facts[:3] == ((), (), ())


@given(st.text("a\ufb01.(){}'\"=\n \\#,f\u00aa", max_size=60) | st.text(max_size=60))
def test_any_text_has_facts_or_a_reason(source: str) -> None:
    facts = facts_of(source, lambda _: True)
    assert facts == facts_from(json.loads(json.dumps(facts._asdict())))


def test_a_disguised_name_is_found_where_it_stands() -> None:
    wide = {ord(letter): ord(letter) + 0xFEE0 for letter in "evalstrfos"}
    lines = [f"# {'eval'.translate(wide)}", f"x = '{'str'.translate(wide)}'", f"{'eval'.translate(wide)}(1)"]
    lines += [f"def {'f'.translate(wide)}(): ...", f"import {'os'.translate(wide)}.path"]
    facts = facts_of("\n".join(lines), WANTED.__contains__)
    assert [(use.dotted, use.line) for use in facts.disguised] == [("eval", 1), ("eval", 3), ("f", 4), ("os", 5)]


@pytest.mark.parametrize(
    "change",
    [
        {"imports": [["a", "b"]]},
        {"imports": [["a", "b", "1"]]},
        {"imports": [["a b", "c", 1]]},
        {"uses": [["\x1b[2K", 1]]},
        {"uses": 1},
        {"uses": [["a", True]]},
        {"line": None},
        {"more": 1},
    ],
)
def test_another_answer_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        facts_from({**Facts()._asdict(), **change})


BOMBS = {
    "brackets": "(" * 200_000,
    "nested calls": "f(" * 100_000,
    "unary": "-" * 200_000 + "1",
    "attributes": "a" + ".b" * 100_000,
    "f-strings": "f'{" * 70_000,
    "f-string of braces": "f'" + "{" * 199_999 + "'",
    "backslashes": "'" + "\\" * 200_001,
    "quotes": '"' * 200_001,
    "imports": "import a\n" * 30_000,
    "one import": "import " + "a," * 100_000,
    "from": "from a import (" + "b\n," * 60_000,
    "indents": "".join(" " * (i % 200) + "if x:\n" for i in range(2_000)),
    "names": "eval\n" * 40_000,
}


@pytest.mark.anyio
async def test_bombs_end_with_facts_or_a_reason(pool: JailedPool) -> None:
    for name, source in BOMBS.items():
        async with asyncio.timeout(20):
            facts = await pool.read_python(source)
        assert facts.unread or facts.full or facts.imports or facts.uses, name
    assert (await pool.read_python("import os")).imports == (Import("os", "", 1),)


@pytest.mark.anyio
async def test_more_time_or_memory_than_there_is_says_so() -> None:
    for bounds, reason in (
        (SchemaSettings(check_s=0.01), "took longer than 0.04 s"),
        (SchemaSettings(memory_mb=128), "too large"),
    ):
        pool = JailedPool(NO_ACCOUNT, bounds)
        try:
            facts = await pool.read_python("[],\n" * 250_000)
        finally:
            await pool.close()
        assert reason in facts.unread
        assert facts.grave


@pytest.fixture
async def pool() -> AsyncIterator[JailedPool]:
    pool = JailedPool(NO_ACCOUNT)
    yield pool
    await pool.close()
