"""Checks of small values from callers: ids, MIME types, text, pages and ranges, TOML keys."""

from __future__ import annotations

import re

from skillyard.domain.errors import InvalidInput, shape, shown

BLOB_ID = re.compile(r"blob:[A-Za-z0-9._-]{1,128}")
MAX_PAGE = 1000
_MAX_TYPE = 255
_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - a token of the grammar
_QUOTED = r'"(?:[\t !#-\[\]-~]|\\[\t -~])*"'
_MEDIA_TYPE = re.compile(rf"{_NAME}/{_NAME}(?:[ \t]*;[ \t]*{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))*")
MOST_PARTS = 32
"""Parts of a dotted TOML key: the time of :mod:`tomllib` for one grows with the square of their number."""
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


def is_blob_id(text: str) -> bool:
    """Returns whether ``text`` has the form of a blob id (skills-protocol §5.1)."""
    return BLOB_ID.fullmatch(text) is not None and text not in ("blob:.", "blob:..")


def check_blob_id(field: str, text: str) -> str:
    """Returns ``text``, a blob id. Raises InvalidInput."""
    if not is_blob_id(text):
        raise InvalidInput(field, "must be 'blob:' and 1 to 128 of A-Z a-z 0-9 . _ -", shown(text))
    return text


def long_key(text: str) -> int:
    """Returns the line, from 1, of a key of more than MOST_PARTS parts; 0 when there is none.

    The text was not parsed yet, so the line may also hold a text that only looks like such a key."""
    found = _LONG.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def check_media_type(field: str, text: str) -> str:
    """Returns ``text``, a MIME type that is safe in a header. Raises InvalidInput."""
    if len(text) > _MAX_TYPE or not _MEDIA_TYPE.fullmatch(text):
        rule = f"must be a MIME type such as text/csv, at most {_MAX_TYPE} ASCII characters"
        raise InvalidInput(field, rule, shown(text))
    return text


def check_unicode(field: str, text: str) -> bytes:
    """Returns ``text`` in UTF-8. Raises InvalidInput for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, "must be well-formed Unicode", shape(text)) from None


def check_page(limit: int) -> None:
    """Raises InvalidInput unless a page of ``limit`` entries may be asked for."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput("limit", f"must be from 1 to {MAX_PAGE}", str(limit)[:32])


def check_range(offset: int, length: int | None) -> None:
    """Raises InvalidInput for a negative offset or length, in bytes."""
    for field, value in (("offset", offset), ("length", length)):
        if value is not None and value < 0:
            raise InvalidInput(field, "must not be negative", str(value)[:32])
