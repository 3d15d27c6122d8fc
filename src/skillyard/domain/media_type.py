"""MIME types: RFC 6838 §4.2 names, with the parameters of RFC 9110 §5.6.6."""

from __future__ import annotations

import re

from skillyard.domain.errors import InvalidInput, shown

MAX_LENGTH = 255

_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - a token of the grammar
_QUOTED = r'"(?:[\t !#-\[\]-~]|\\[\t -~])*"'
_MEDIA_TYPE = re.compile(rf"{_NAME}/{_NAME}(?:[ \t]*;[ \t]*{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))*")


def check_media_type(field: str, text: str) -> str:
    """``text``, a MIME type that is safe in a header. Raises InvalidInput."""
    if len(text) > MAX_LENGTH or not _MEDIA_TYPE.fullmatch(text):
        rule = f"must be a MIME type such as text/csv, at most {MAX_LENGTH} ASCII characters"
        raise InvalidInput(field, rule, shown(text))
    return text
