"""The table of what is known to fail inside and to pass outside, with the reason for each."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

TABLE = Path(__file__).with_name("expected.toml")


def load() -> dict[str, dict[str, str]]:
    """Module → pattern of a test → reason. Raises TOMLDecodeError for a table that is none."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def unexplained(tests: set[str]) -> set[str]:
    """Those of the test ids for which the table has no reason."""
    patterns = [f"test.{module}.{name}" for module, names in load().items() for name in _anywhere(names)]
    return {test for test in tests if not any(fnmatchcase(test, pattern) for pattern in patterns)}


def _anywhere(patterns: dict[str, str]) -> list[str]:
    """A test may be in any class of its module."""
    return [found for pattern in patterns for found in (pattern, f"*.{pattern}")]
