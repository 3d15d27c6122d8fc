"""The real time and unguessable ids."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path


class SystemClock:
    """The operating system's clocks."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot(self) -> str:
        return _boot()


class SystemIds:
    """128 random bits an id, from the operating system."""

    def run(self) -> str:
        return f"run_{os.urandom(16).hex()}"

    def blob(self) -> str:
        return f"blob:{os.urandom(16).hex()}"

    def session(self) -> str:
        return f"ses_{os.urandom(16).hex()}"


@cache
def _boot() -> str:
    """Returns the kernel's name of this boot. Where it tells none, no lease of an earlier process is in force."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return os.urandom(16).hex()
