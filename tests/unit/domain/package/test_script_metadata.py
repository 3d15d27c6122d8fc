"""Inline script metadata (PEP 723), as it should be and as nobody should write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.checks import MOST_PARTS, long_key
from skillyard.domain.package.names import within
from skillyard.domain.package.script_metadata import MAX_BLOCK, MAX_DEPENDENCIES, MAX_OPENED, read_script_metadata
from skillyard.stores.skills.validation.toml import TomlRefused, read_toml

ORDINARY = """#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "requests<3",  # the web
#   "rich[jupyter] >= 13",
# ]
#
# [tool.uv]
# exclude-newer = "2024-01-01"
# ///
import requests
"""


def block(*lines: str) -> str:
    return "\n".join(["# /// script", *lines, "# ///", ""])


def test_what_a_script_declares() -> None:
    found = read_script_metadata(ORDINARY)
    assert found is not None
    assert found.dependencies == ("requests<3", "rich[jupyter] >= 13")
    assert (found.requires_python, found.line, found.problems) == (">=3.11", 2, ())
    assert found.admits_python("3.11.7")
    assert not found.admits_python("3.10.9")


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_other_line_ends_and_a_byte_order_mark_say_the_same(ending: str) -> None:
    assert read_script_metadata("\ufeff" + ORDINARY.replace("\n", ending)) == read_script_metadata(ORDINARY)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "print(1)\n",
        "#/// script\n# dependencies = ['a']\n# ///\n",
        "# /// scripts\n# dependencies = ['a']\n# ///\n",
        "  # /// script\n  # dependencies = ['a']\n  # ///\n",
        "# /// pyproject\n# dependencies = ['a']\n# ///\n",
        "# /// script \n# dependencies = ['a']\n# ///\n",
    ],
)
def test_what_is_no_block(source: str) -> None:
    assert read_script_metadata(source) is None


def test_a_block_ends_at_the_last_closing_line_of_its_comments() -> None:
    text = block('# dependencies = ["a"]', "# x = '''", "# ///", "# '''")
    found = read_script_metadata(text)
    assert found is not None
    assert (found.dependencies, found.problems) == (("a",), ())


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        (block('# dependencies = ["a"') + "\n", 2, "script-toml"),
        (block("# a = " + "[" * 5000), 1, "script-toml"),
        (block("# a = " + "9" * 5000), 1, "script-toml"),
        (block("# x = 1", '# dependencies = "numpy"'), 3, "script-type"),
        (block("# x = 1", "# " + "a." * 30_000 + "a = 1"), 3, "script-toml"),
        (block("# [" + '"b" . ' * 8_000 + "a]"), 2, "script-toml"),
        (block("# dependencies = [1]"), 2, "script-type"),
        (block("# requires-python = 3.11"), 2, "script-type"),
        (block('# requires-python = "newest"'), 2, "requires-python"),
        (block("# dependencies = [", '#   "numpy",', '#   "x @ https://example.org/x.whl",', "# ]"), 4, "requirement"),
        (block('# dependencies = ["../evil"]'), 2, "requirement"),
        (block('# dependencies = ["--index-url=http://example.org"]'), 2, "requirement"),
        (block(f"# dependencies = {['a'] * (MAX_DEPENDENCIES + 1)}"), 2, "script-size"),
        (block("# x = 1", "# y = '" + "y" * MAX_BLOCK + "'"), 1, "script-size"),
        (block('# dependencies = ["a"]') + "\n" + block('# dependencies = ["b"]'), 5, "script-twice"),
    ],
)
def test_what_is_wrong_has_its_line(text: str, line: int, rule: str) -> None:
    found = read_script_metadata(text)
    assert found is not None
    assert [(problem.rule, problem.harmless) for problem in found.problems] == [(rule, False)]
    assert found.problems[0].line == line


def test_what_is_no_requirement_stays_declared() -> None:
    found = read_script_metadata(block('# dependencies = ["numpy", "x @ https://example.org/x.whl"]'))
    assert found is not None
    assert found.dependencies == ("numpy", "x @ https://example.org/x.whl")


def test_an_unclosed_block_has_no_effect_and_is_told() -> None:
    found = read_script_metadata("# /// script\n# dependencies = ['a']\nimport a\n")
    assert found is not None
    assert found.dependencies == ()
    assert [(p.line, p.rule, p.harmless) for p in found.problems] == [(1, "script-unclosed", True)]


def test_keys_of_many_parts_are_found_before_they_are_parsed() -> None:
    """tomllib takes time with the square of the parts of a key: minutes for one that fills a skill.toml."""
    part = "a."
    assert long_key("x = 1\n" + part * MOST_PARTS + "a = 1") == 2
    assert long_key(part * (MOST_PARTS - 1) + "a = 1") == 0
    assert long_key("x = [" + "0.5, " * 1000 + "]") == 0
    assert long_key('x = "' + "One sentence. Another one follows it here. " * 100 + '"') == 0
    with pytest.raises(TomlRefused, match="more than 32 parts") as refused:
        read_toml(b"x = 1\n[" + b"a." * 100_000 + b"a]")
    assert refused.value.line == 2


def test_what_comes_after_many_openings_is_not_looked_at() -> None:
    text = "# /// script\nx\n" * MAX_OPENED + block("# dependencies = ['a']")
    found = read_script_metadata(text)
    assert found is not None
    assert (found.dependencies, found.problems[0].rule) == ((), "script-unclosed")


@given(st.lists(st.sampled_from(["# /// script", "# ///", "#", "# a = 1", "# dependencies = ['b']", "x", "", "# [t]"])))
def test_any_text_is_read(lines: list[str]) -> None:
    found = read_script_metadata("\n".join(lines))
    if found is not None:
        assert lines[found.line - 1] == "# /// script"
        assert set(found.dependencies) <= {"b"}


@pytest.mark.parametrize(
    ("bounds", "version", "fits"),
    [
        ("", "3.11.7", True),
        (">=3.9,<4", "3.11.7", True),
        (">= 3.12", "3.11.7", False),
        ("~=3.11", "3.12.0", True),
        ("~=3.11.2", "3.12.0", False),
        ("==3.11.*", "3.11.7", True),
        ("!=3.11.*", "3.11.7", False),
        ("<3.11", "3.11", False),
        ("==3.11", "3.11.0", True),
        ("~=3", "3.11", None),
        (">=3.*", "3.11", None),
        ("latest", "3.11", None),
        (">=" + "9" * 5000, "3.11", None),
    ],
)
def test_bounds(bounds: str, version: str, fits: bool | None) -> None:
    assert within(version, bounds) is fits
