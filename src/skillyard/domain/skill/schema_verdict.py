"""The result of a value's comparison with a schema."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ERRORS = 5


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """The result of one check. ``errors`` are the first few: the place in the value (keys and indexes), and the
    message. ``unfit`` is the reason for which the schema could not be applied. Both hold foreign text, whole: secrets
    have to be taken out before it is cut."""

    errors: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    unfit: str = ""
