"""Names of entries, which must mean one file on every system, and the refusal of an archive."""

from __future__ import annotations

import re
import unicodedata

from skillyard.domain.skill.skill import Finding

SHOWN = 200
"""Characters of a name that stand in a message."""

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt)."""


class ArchiveRefused(Exception):
    """An archive is refused.

    ``rule`` is the id of one of :data:`skillyard.domain.rules.RULES`, ``entry`` a printable name or empty, ``message``
    a sentence with the entry as its subject.
    """

    def __init__(self, rule: str, entry: str | bytes, message: str) -> None:
        self.rule = rule
        self.entry = printable(entry)
        self.message = message
        super().__init__(f"{self.entry or 'the archive'}: {message}")

    def finding(self) -> Finding:
        return Finding("error", self.entry or ".", 0, self.rule, self.message)


def printable(name: str | bytes) -> str:
    """Returns a name of any bytes as one line of at most :data:`SHOWN` characters."""
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


MAX_PART = 255
"""NAME_MAX, in bytes (limits.h)."""
MAX_PATH = 1024

_STREAMS = re.compile(r'[<>:"|?*]')
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)", re.IGNORECASE)


def parts_of(name: bytes, *, max_depth: int, max_path: int = MAX_PATH) -> tuple[str, ...]:
    """The components of an entry's name; none for the root itself (``./``). A trailing ``/`` is a directory's and
    does not count. Raises ArchiveRefused."""
    text = _decoded(name, max_path)
    if name.startswith(b"/") or (text[1:2] == ":" and text[0].isascii() and text[0].isalpha()):
        raise ArchiveRefused("archive-absolute", name, "is an absolute path or begins with a drive letter")
    parts = text.split("/")
    while len(parts) > 1 and parts[0] == ".":  # tar's own spelling of what lies below "."
        del parts[0]
    if len(parts) > 1 and not parts[-1]:
        del parts[-1]
    if parts in (["."], [""]):
        return ()
    if len(parts) - 1 > max_depth:
        raise ArchiveRefused("archive-depth", name, f"lies deeper than {max_depth} directories")
    for part in parts:
        _check_part(part, name)
    return tuple(parts)


def _decoded(name: bytes, max_path: int) -> str:
    if len(name) > max_path:
        raise ArchiveRefused("archive-name-length", name, f"is a path of more than {max_path} bytes")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise ArchiveRefused("archive-encoding", name, "has a name that is not valid UTF-8") from None
    if not text or not is_visible(text):
        raise ArchiveRefused("archive-name", name, "has an empty name, or one with characters that nobody sees")
    if "\\" in text:
        raise ArchiveRefused("archive-backslash", name, "has a backslash in its name")
    return text


def _check_part(part: str, name: bytes) -> None:
    if part == "..":
        raise ArchiveRefused("archive-traversal", name, "goes up with '..'")
    if part in ("", "."):
        raise ArchiveRefused("archive-name", name, f"has the component '{part}' in its path")
    if len(part.encode()) > MAX_PART:
        raise ArchiveRefused("archive-name-length", name, f"has a component of more than {MAX_PART} bytes")


def check_portable(parts: tuple[str, ...]) -> None:
    """Names that Windows would take for something else. Raises ArchiveRefused."""
    for part in parts:
        if _STREAMS.search(part):
            raise ArchiveRefused("archive-reserved-name", "/".join(parts), 'has one of <>:"|?* in its name')
        if _DEVICES.fullmatch(part.partition(".")[0].rstrip(" ")):
            raise ArchiveRefused("archive-reserved-name", "/".join(parts), "is named as a device of Windows")
        if part[-1] in ". ":
            raise ArchiveRefused("archive-name-end", "/".join(parts), "has a name that ends in a dot or a space")


def folded(part: str) -> str:
    """Returns a key that is equal for names that a file system may take for the same."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", part).casefold())
