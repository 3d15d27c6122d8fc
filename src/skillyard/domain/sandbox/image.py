"""The name of an image by its content, as skills and requests give it."""

from __future__ import annotations

import re

from skillyard.domain.errors import InvalidInput, shown

RULE = "must name the image by digest: 'sha256:' and 64 hexadecimal digits, after 'NAME@' where a registry has it"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,126}[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
_PART = r"[a-z0-9]{1,64}(?:(?:\.|__?|-{1,8})[a-z0-9]{1,64}){0,8}"
_BY_DIGEST = re.compile(rf"(?:{_HOST}{_PART}(?:/{_PART}){{0,8}}@)?sha256:[0-9a-f]{{64}}")
_BY_NAME = re.compile(rf"{_HOST}{_PART}(?:/{_PART}){{0,8}}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")
_LONGEST = 512


def is_name(name: str) -> bool:
    """Returns whether ``name`` can be that of an image, with a tag, a digest or neither."""
    return len(name) <= _LONGEST and (is_by_digest(name) or _BY_NAME.fullmatch(name) is not None)


def is_by_digest(name: str) -> bool:
    """Returns whether ``name`` means the same bytes for ever."""
    return len(name) <= _LONGEST and _BY_DIGEST.fullmatch(name) is not None


def check_image(field: str, name: str) -> str:
    """Returns ``name``, which names an image by digest. Raises InvalidInput."""
    if not is_by_digest(name):
        raise InvalidInput(field, RULE, shown(name))
    return name
