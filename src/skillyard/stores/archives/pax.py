"""Extended headers: ``LENGTH KEY=VALUE`` lines that replace fields of the next entry (POSIX, pax Extended Header)."""

from __future__ import annotations

from skillyard.stores.archives.refused import ArchiveRefused

MAX_EXTENDED = 64 * 1024
"""Bytes of one extended header; that is what file attributes of common tools need, many times."""
MAX_RECORDS = 64

_IGNORED = frozenset({"atime", "ctime", "mtime", "comment", "gid", "gname", "uid", "uname", "hdrcharset"})
_IGNORED_PREFIXES = ("SCHILY.", "LIBARCHIVE.", "RHT.security.", "MSWINDOWS.")


def pax_path(raw: bytes, entry: bytes, *, every: bool) -> bytes | None:
    """The ``path`` of an extended header, None when it has none. With ``every``, a header for all entries, which may
    have none. What would change how content is read (``size``, ``GNU.sparse.*``) is refused. Raises ArchiveRefused."""
    found: bytes | None = None
    for key, value in _records(raw, entry):
        if key == "path" and not every:
            if found is not None:
                raise ArchiveRefused("archive-extended", entry, "has an extended header that names two paths")
            found = value
        elif key.startswith("GNU.sparse."):
            raise ArchiveRefused("archive-special", entry, "is a sparse file")
        elif key == "linkpath":
            raise ArchiveRefused("archive-link", entry, "is a link")
        elif key not in _IGNORED and not key.startswith(_IGNORED_PREFIXES):
            raise ArchiveRefused("archive-extended", entry, "has an extended header with a key that is not taken")
    return found


def _records(raw: bytes, entry: bytes) -> list[tuple[str, bytes]]:
    records: list[tuple[str, bytes]] = []
    at = 0
    while at < len(raw):
        space = raw.find(b" ", at, at + 6)
        digits = raw[at:space] if space > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = raw[space + 1 : end - 1].partition(b"=")
        if len(records) == MAX_RECORDS:
            raise ArchiveRefused("archive-extended", entry, f"has an extended header of more than {MAX_RECORDS} lines")
        if end > len(raw) or end <= space + 1 or raw[end - 1 : end] != b"\n" or not equals:
            raise ArchiveRefused("archive-extended", entry, "has an extended header that does not follow the format")
        records.append((key.decode("utf-8", "backslashreplace"), value))
        at = end
    return records
