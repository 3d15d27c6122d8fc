"""Descriptors for connections: as many as the system lets this process have, shared out when they become few."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

_KEPT = 256
"""For files, the channel, name lookups and what a burst has taken before it is counted."""
_EACH = 2
"""The sandbox's side and the far side."""


def raise_limit() -> int:
    """The number of descriptors that this process may have, as large as it can be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        most = int(Path("/proc/sys/fs/nr_open").read_text("ascii"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        return most
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


class Room:
    """``listening`` counts the sockets that wait inside sandboxes."""

    def __init__(self, descriptors: int) -> None:
        self._descriptors = descriptors
        self.sessions = 0
        self.listening = 0
        self.connections = 0

    def full_for(self, own: int) -> str | None:
        """Why a session that has ``own`` connections cannot have another one: half of the room is for whoever comes,
        the other half is kept for the sessions, each the same."""
        most = max(0, self._descriptors - _KEPT - self.listening) // _EACH
        if self.connections < most // 2 or own < most // (2 * max(1, self.sessions)):
            return None
        return "the gate has no room for more connections of this run"
