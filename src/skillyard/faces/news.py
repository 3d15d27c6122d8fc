"""Counts what changes the skills and tools that agents see, for faces that tell them."""

from __future__ import annotations

from collections.abc import Callable

from skillyard.engine.observer import ApprovalChanged, CatalogueChanged, Event, ToolsChanged


def _nothing() -> None:
    return


class News:
    """An observer of changes of the catalogue, of tools and of approvals.

    ``heard`` is called after each, ``count`` counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.heard: Callable[[], None] = _nothing

    def observe(self, event: Event) -> None:
        if isinstance(event, CatalogueChanged | ApprovalChanged | ToolsChanged):
            self.count += 1
            self.heard()
