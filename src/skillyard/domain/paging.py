"""Which part of a list, or of some bytes, may be asked for."""

from __future__ import annotations

from skillyard.domain.errors import InvalidInput

MAX_PAGE = 1000


def check_page(limit: int) -> None:
    """Raises InvalidInput unless a page of ``limit`` entries may be asked for."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput("limit", f"must be from 1 to {MAX_PAGE}", str(limit)[:32])


def check_range(offset: int, length: int | None) -> None:
    """Raises InvalidInput for a negative offset or length, in bytes."""
    for field, value in (("offset", offset), ("length", length)):
        if value is not None and value < 0:
            raise InvalidInput(field, "must not be negative", str(value)[:32])
