"""What happened to one thing between two versions."""

from __future__ import annotations

from enum import StrEnum


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
