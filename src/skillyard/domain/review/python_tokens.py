"""Python's tokens, as far as a reader needs them, from any text in linear time.

``ast.parse`` is not for hostile text: it needs memory and a stack in proportion to what it is given, and the syntax of
the very Python that reads. This lexer refuses nothing and never recurses deeper than an f-string in an f-string.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\f\r]+|\\\r?\n|\#[^\n]*)
  | (?P<line>\n)
  | (?P<string>[rRbBuUfFtT]{0,2}(?:
        \"\"\"(?:[^"\\]|\\.|"(?!""))*(?:\"\"\"|\Z)
      | '''(?:[^'\\]|\\.|'(?!''))*(?:'''|\Z)
      | "(?:[^"\\\n]|\\.)*"?
      | '(?:[^'\\\n]|\\.)*'?
    ))
  | (?P<name>[^\W\d]\w*)
  | (?P<number>[0-9][\w.]*)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_PREFIX = re.compile(r"[a-zA-Z]{0,2}")
MOST_NESTED = 2


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ``name``, ``string``, ``number``, ``mark`` or ``line`` (its end). A name is in the form that Python
    compares (NFKC); ``offset`` is its place in the text."""

    kind: str
    text: str
    offset: int


def tokens(source: str, offset: int = 0, depth: int = 0) -> Iterator[Token]:
    """Without blanks and comments; of f-strings, what their braces hold comes behind them."""
    for found in _TOKEN.finditer(source):
        kind = found.lastgroup or ""
        if kind == "space":
            continue
        at = offset + found.start()
        text = found[0]
        if kind == "name" and not text.isascii():
            text = unicodedata.normalize("NFKC", text)
        yield Token(kind, text, at)
        if kind == "string" and depth < MOST_NESTED and _is_formatted(text):
            yield from _fields(text, at, depth + 1)


def _is_formatted(text: str) -> bool:
    prefix = _PREFIX.match(text)
    return prefix is not None and bool({"f", "F", "t", "T"} & set(prefix[0])) and "{" in text


def _fields(text: str, offset: int, depth: int) -> Iterator[Token]:
    """Yields what stands between the braces of an f-string, each between marks."""
    start, level = 0, 0
    at = 0
    while at < len(text):
        if level == 0 and text.startswith("{{", at):
            at += 2
            continue
        if text[at] == "{":
            level += 1
            start = at + 1 if level == 1 else start
        elif text[at] == "}" and level:
            level -= 1
            if level == 0:
                yield Token("mark", "{", offset + start - 1)
                yield from tokens(text[start:at], offset + start, depth)
                yield Token("mark", "}", offset + at)
        at += 1


def value_of(token: Token) -> str:
    """Returns what a string literal says, escapes left as they are written."""
    body = token.text.lstrip("rRbBuUfFtT")
    for quote in ('"""', "'''", '"', "'"):
        if body.startswith(quote):
            return body[len(quote) :].removesuffix(quote)
    return body
