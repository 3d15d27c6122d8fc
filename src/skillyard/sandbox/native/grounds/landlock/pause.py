"""Hold a sandbox's processes still while something of theirs is looked at that they move about."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from skillyard.sandbox.native.grounds.landlock import looks

_ROUNDS = 64
"""What goes on forking for longer than that is ended by other means."""


def stop(init: int, most: int) -> set[int]:
    """All below ``init``, until nobody is new there; those that were not stopped before. SIGSTOP cannot be ignored."""
    seen: set[int] = set()
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = [pid for pid in looks.tree(init, most) if pid not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for pid in fresh:
            with suppress(ProcessLookupError, PermissionError):
                if not looks.is_stopped(pid):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.add(pid)
    return stopped


def go_on(init: int, most: int, stopped: set[int]) -> None:
    for pid in stopped.intersection(looks.tree(init, most)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
