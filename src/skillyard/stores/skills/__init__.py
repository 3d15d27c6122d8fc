"""Skills on the local disk: validation, immutable snapshots and the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skillyard.stores.skills.layout import ScanLimits
from skillyard.stores.skills.scaffold import new_skill
from skillyard.stores.skills.tree import Caps
from skillyard.stores.skills.validate import validate

if TYPE_CHECKING:
    from skillyard.stores.skills.catalogue import Catalogue

__all__ = ["Caps", "Catalogue", "ScanLimits", "new_skill", "validate"]


def __getattr__(name: str) -> Any:
    """The catalogue when it is asked for: validating a skill needs no event loop."""
    if name == "Catalogue":
        from skillyard.stores.skills.catalogue import Catalogue

        return Catalogue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
