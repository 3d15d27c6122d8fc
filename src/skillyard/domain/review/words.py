"""Quoting what a bundle holds, so that it can stand in a message."""

from __future__ import annotations

MOST = 60


def quoted(text: str, most: int = MOST) -> str:
    """The beginning of a text, in one line of printable ASCII, in quotes."""
    plain = " ".join(text[: 4 * most].split())
    plain = plain.encode("ascii", "backslashreplace").decode("ascii")
    plain = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)
    return f"'{plain[:most]}…'" if len(plain) > most or len(text) > 4 * most else f"'{plain}'"
