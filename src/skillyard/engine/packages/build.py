"""One build at work, or one that failed a moment ago."""

from __future__ import annotations

import asyncio
from typing import Any

from skillyard.domain.package.environment import BuildState, BuiltEnvironment, Wanted
from skillyard.engine.packages.build_log import BuildLog
from skillyard.engine.packages.environment import BuildFailed


class Build:
    """``owner`` is whose blob its log becomes. Times are UTC seconds since the epoch."""

    def __init__(self, wanted: Wanted, owner: str, started_at: float) -> None:
        self.wanted = wanted
        self.owner = owner
        self.started_at = started_at
        self.state = BuildState.WAITING
        self.log = BuildLog()
        self.digest = ""
        """Of the lock, as soon as it is known."""
        self.error: BuildFailed | None = None
        self._built: BuiltEnvironment | None = None
        self._over = asyncio.Event()

    def succeed(self, built: BuiltEnvironment) -> None:
        self._built, self.state = built, BuildState.READY
        self._over.set()

    def fail(self, error: BuildFailed) -> None:
        self.error, self.state = error, BuildState.FAILED
        self._over.set()

    async def result(self) -> BuiltEnvironment:
        """Wait for the end. Who stops waiting stops nothing. Raises BuildFailed."""
        await self._over.wait()
        if self._built is None:
            assert self.error is not None
            raise BuildFailed(self.error.message, self.error.log)
        return self._built

    def view(self) -> dict[str, Any]:
        """As methods show it."""
        shown: dict[str, Any] = {
            "state": self.state.value,
            "requirements": list(self.wanted.requirements),
            "digest": self.digest,
            "line": self.log.line,
            "started_at": self.started_at,
        }
        if self.error is not None:
            shown |= {"error": self.error.message, "log": self.error.log}
        return shown
