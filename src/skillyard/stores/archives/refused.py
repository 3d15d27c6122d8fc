"""The refusal that ends the reading of an archive."""

from __future__ import annotations

import re

from skillyard.domain.skill.skill import Finding

SHOWN = 200
"""Characters of a name that stand in a message."""

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt)."""


class ArchiveRefused(Exception):
    """``rule`` is the id of one of :data:`skillyard.domain.rules.archives.RULES`, ``entry`` a name as it can be printed
    or empty, ``message`` a sentence that goes on from it."""

    def __init__(self, rule: str, entry: str | bytes, message: str) -> None:
        self.rule = rule
        self.entry = printable(entry)
        self.message = message
        super().__init__(f"{self.entry or 'the archive'}: {message}")

    def finding(self) -> Finding:
        return Finding("error", self.entry or ".", 0, self.rule, self.message)


def printable(name: str | bytes) -> str:
    """A name of any bytes on one line, at most :data:`SHOWN` characters of it."""
    if isinstance(name, str):
        name = name[: 4 * SHOWN].encode("utf-8", "surrogateescape" if _is_escaped(name) else "backslashreplace")
    text = name[: 4 * SHOWN].decode("utf-8", "backslashreplace")
    plain = "".join(c if is_visible(c) else c.encode("unicode_escape").decode("ascii") for c in text)
    return plain if len(plain) <= SHOWN else plain[: SHOWN - 1] + "…"


def is_visible(text: str) -> bool:
    """Returns whether all of it prints, and is seen when it does."""
    return text.isprintable() and not _UNSEEN.search(text)


def _is_escaped(name: str) -> bool:
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
