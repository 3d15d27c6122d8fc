"""Counts what changes the skills that agents see, for faces that tell them."""

from __future__ import annotations

from collections.abc import Callable

from skillyard.engine.observer import ApprovalChanged, CatalogueChanged, Event


def _nothing() -> None:
    return


class News:
    """An observer. ``heard`` is called after each change of the catalogue or of an approval; ``count`` counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.heard: Callable[[], None] = _nothing

    def observe(self, event: Event) -> None:
        if isinstance(event, CatalogueChanged | ApprovalChanged):
            self.count += 1
            self.heard()
