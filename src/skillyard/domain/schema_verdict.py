"""What a value's comparison with a schema found."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ERRORS = 5


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """``errors`` are the first few, each where in the value (keys and indexes) and what; ``unfit`` says why the schema
    could not be applied at all. Both hold foreign text, whole: secrets have to be taken out before it is cut."""

    errors: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    unfit: str = ""
