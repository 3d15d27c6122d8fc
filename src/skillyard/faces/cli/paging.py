"""Lists that come in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from skillyard.client.errors import BadReply

_PAGE = 500
_PAGES = 2000
"""Pages of one list; a server that always has one more is none of ours."""


class Caller(Protocol):
    """Whatever can call a method."""

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


def collect(
    target: Caller, method: str, key: str, limit: int | None, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The first ``limit`` items (None: all), page by page. Raises BadReply for pages that lead nowhere."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = target.call(method, {**params, "limit": wanted} | ({"cursor": cursor} if cursor else {}))
        items, cursor = page.get(key), page.get("next_cursor")
        if not isinstance(items, list) or len(items) > wanted or not all(isinstance(item, dict) for item in items):
            raise BadReply(f"the server's page of {method} is none")
        found += items
        if cursor is None or (limit is not None and len(found) >= limit):
            return found
        if not items:
            break
    raise BadReply(f"the server's pages of {method} come to no end")
