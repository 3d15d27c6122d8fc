"""Lists that come in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target

_PAGE = 500


def collect(
    target: Target, method: str, key: str, limit: int | None, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The first ``limit`` items (None: all), page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while limit is None or len(found) < limit:
        wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = target.call(method, {**params, "limit": wanted} | ({"cursor": cursor} if cursor else {}))
        found += page[key]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    return found
