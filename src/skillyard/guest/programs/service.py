"""Looks after a command that listens, and starts it again when it fails."""

from __future__ import annotations

import re
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .follower import Follower

_FIRST_PAUSE_S, _MOST_PAUSE_S = 1.0, 60.0
"""The wait before a service is started again; each is twice the one before."""
_LONG_S = 60.0
"""A service that went on for longer waits the first pause again."""
_FIRST_LOOK_S, _MOST_LOOK_S = 0.02, 1.0
"""The time between two looks at the ports of a service that is not ready; each is twice the one before."""
_MOST_SIGN = 4096
"""Bytes of output that are kept for the rest of a sign that it is ready."""
_LISTENS = "0A"


class Service:
    """Starts a command again when it fails, and tells how it goes."""

    def __init__(self, wanted: Mapping[str, Any], tell: Callable[[dict[str, object]], None]) -> None:
        self._ports = frozenset(wanted["ports"])
        self._pattern = re.compile(wanted["ready_pattern"].encode()) if wanted["ready_pattern"] else None
        self._again = wanted["restart"] == "on-failure"
        self._late_at = time.monotonic() + wanted["startup_s"]
        self._tell = tell
        self._was_ready = self._ready = False
        self._restarts = 0
        self._code: object = None
        self._ends: dict[bytes, bytes] = {}
        self._look_s, self._look_at = _FIRST_LOOK_S, 0.0

    def run(self, follower: Follower, argv: list[str], env: dict[str, str]) -> dict[str, object]:
        """Returns how its last end was."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            self._look_s, self._look_at = _FIRST_LOOK_S, began
            self._look()
            ended = follower.follow(argv, env, self)
            if not self._again or not ended["exit_code"] or "not_ready" in ended:
                return ended
            if time.monotonic() - began > _LONG_S:
                pause_s = _FIRST_PAUSE_S
            if not self._was_ready and time.monotonic() + pause_s >= self._late_at:
                return {**ended, "not_ready": True}
            self._code, self._ready = ended["exit_code"], False
            self._ends.clear()
            self._restarts += 1
            follower.log.write(
                b"2", f"it ended with exit code {self._code} and starts again in {pause_s:g} s\n".encode()
            )
            self._say()
            select.select([], [], [], pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def hear(self, stream: bytes, data: bytes) -> None:
        """Looks for the sign that it is ready in the output."""
        if self._ready or self._pattern is None:
            return
        text = self._ends.get(stream, b"") + data
        if self._pattern.search(text):
            self._be_ready()
        else:
            self._ends[stream] = text[-_MOST_SIGN:]

    def patience_ms(self) -> int | None:
        """Returns how long to wait for output until somebody must look; None for ever."""
        times = [] if self._was_ready else [self._late_at]
        if self._pattern is None:
            times.append(self._look_at)
        if self._ready or not times:
            return None
        return int(max(0.0, min(times) - time.monotonic()) * 1000) + 1

    def is_late(self) -> bool:
        """Looks whether it is ready, and returns whether it should have been by now."""
        self._look()
        return not self._was_ready and time.monotonic() >= self._late_at

    def _look(self) -> None:
        now = time.monotonic()
        if self._ready or self._pattern is not None or now < self._look_at:
            return
        self._look_s, self._look_at = min(2 * self._look_s, _MOST_LOOK_S), now + self._look_s
        if not self._ports or self._ports <= _listening(self._ports):
            self._be_ready()

    def _be_ready(self) -> None:
        self._ready = self._was_ready = True
        self._ends.clear()
        self._say()

    def _say(self) -> None:
        self._tell({"ready": self._ready, "restarts": self._restarts, "exit_code": self._code})


def _listening(ports: frozenset[int]) -> frozenset[int]:
    """Returns the TCP ports that programs listen on; ``ports`` where the kernel does not tell."""
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as table:
                rows = [row.split() for row in table.readlines()[1:]]
        except OSError:
            if name == "tcp":
                return ports
            continue
        found.update(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENS)
    return frozenset(found)
