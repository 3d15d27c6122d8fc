"""What a token and its principal may be called."""

from __future__ import annotations

import re

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.principal import Principal
from skillyard.domain.secret.entry import check_project

MIN_LENGTH = 24
MAX_LENGTH = 512

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_VALUE = re.compile(rf"[!-~]{{{MIN_LENGTH},{MAX_LENGTH}}}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")


def check_principal(principal: Principal) -> Principal:
    """Raises InvalidInput for a name, a project or a skill pattern that cannot be a principal's."""
    if not _NAME.fullmatch(principal.name):
        rule = "must be a letter or digit, then letters, digits or . _ @ + -, at most 64 in all"
        raise InvalidInput("name", rule, shape(principal.name))
    check_project("project", principal.project)
    for index, pattern in enumerate(principal.skills):
        if not _PATTERN.fullmatch(pattern):
            rule = "must be a pattern of skill names such as 'sales.*', at most 128 characters"
            raise InvalidInput(f"skills[{index}]", rule, shape(pattern))
    return principal


def check_token_value(value: str) -> str:
    """A token's text that a user chose. It is hashed quickly, so it must not be guessable: at least 24
    characters. Raises InvalidInput."""
    if not _VALUE.fullmatch(value):
        rule = f"must be {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters without spaces"
        raise InvalidInput("value", rule, shape(value))
    return value
