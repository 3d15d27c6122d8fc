"""How a landlock keeper is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from skillyard.sandbox.native.launch import KeeperOptions


@dataclass(frozen=True, slots=True)
class LandlockOptions(KeeperOptions):
    """Ids apart from the native backend's, and more: each sandbox takes two."""

    PROGRAM: ClassVar[str] = "skillyard.sandbox.native.grounds.landlock.ground"
    uid_base: int = 1_901_000_000
    uid_count: int = 16_384
