"""The real time and unguessable ids."""

from __future__ import annotations

import secrets
import time


class SystemClock:
    """The operating system's clocks."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class SystemIds:
    """128 random bits an id, from the operating system."""

    def run(self) -> str:
        return f"run_{secrets.token_hex(16)}"

    def blob(self) -> str:
        return f"blob:{secrets.token_hex(16)}"
