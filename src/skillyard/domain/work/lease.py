"""The lease of a run that outlives its server: the server that drives it, and until when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """``holder`` names a server. ``until`` is in seconds of CLOCK_BOOTTIME, in the boot of the machine that ``boot``
    names: an operator who sets the wall clock ends no lease and prolongs none."""

    holder: str
    boot: str
    until: float

    def held(self, boot: str, now: float) -> bool:
        """Returns whether it is in force at ``now``, in the boot ``boot``. One of another boot never is."""
        return self.boot == boot and now < self.until
