"""A bound that :mod:`tomllib` lacks: the time that it takes for a dotted key grows with the square of its parts."""

from __future__ import annotations

import re

MOST_PARTS = 32

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def long_key(text: str) -> int:
    """The line, from 1, of a key of more than MOST_PARTS parts, or of text that looks like one, before it is parsed;
    0 when there is none."""
    found = _LONG.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 0
