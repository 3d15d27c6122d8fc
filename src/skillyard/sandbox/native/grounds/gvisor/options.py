"""What the operator may say about the gVisor backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from skillyard.sandbox.native.launch import KeeperOptions

PLATFORMS = ("systrap", "ptrace")
"""In the order in which ``auto`` tries them. kvm needs a device that it may share with nobody, and is never tried."""


@dataclass(frozen=True, slots=True)
class GvisorOptions(KeeperOptions):
    """``runsc`` is a path, or empty for the one on PATH; ``platform`` one of PLATFORMS or ``auto``; ``ready``
    sandboxes are made ahead for each of the shapes used last: each holds some 35 MiB."""

    PROGRAM: ClassVar[str] = "skillyard.sandbox.native.grounds.gvisor.ground"

    ready: int = 1
    runsc: str = ""
    platform: str = "auto"
