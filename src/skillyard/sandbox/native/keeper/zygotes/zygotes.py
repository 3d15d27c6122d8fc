"""The zygotes of a keeper: found by what their sandboxes have in common, and closed when they hold too much."""

from __future__ import annotations

import time
from collections.abc import Callable

from skillyard.sandbox.native.keeper.ground import Source
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Key

MOST = 32
"""Zygotes at once, whatever they hold."""

_LOOK_S = 10.0


class Zygotes:
    """All together hold at most ``total_mb`` MiB when nothing is at work, and none stays for ``idle_s`` unused.

    ``make(key)`` makes the source that is not there; ``stays(key)`` says that it is never closed; ``closed(key)`` hears
    of one that was.
    """

    def __init__(
        self,
        loop: Loop,
        total_mb: int,
        idle_s: float,
        make: Callable[[Key], Source],
        stays: Callable[[Key], bool],
        closed: Callable[[Key], None],
    ) -> None:
        self._loop = loop
        self._total_mb = total_mb
        self._idle_s = idle_s
        self._make = make
        self._stays = stays
        self._closed = closed
        self._sources: dict[Key, Source] = {}
        """The one that was needed last is the last."""
        self._needed_at: dict[Key, float] = {}
        self._trimming = self._aging = False

    def __contains__(self, key: Key) -> bool:
        return key in self._sources

    def __len__(self) -> int:
        return len(self._sources)

    def get(self, key: Key) -> Source:
        source = self._sources.pop(key, None)
        if source is None:
            source = self._make(key)
            self.trim_soon()
        self._sources[key] = source
        self._needed_at[key] = time.monotonic()
        self._age_later()
        return source

    def pids(self) -> set[int]:
        return {pid for source in self._sources.values() for pid in source.pids}

    def trim_soon(self) -> None:
        """One of them may hold more than before."""
        if not self._trimming:
            self._trimming = True
            self._loop.when_idle(self._trim)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def _trim(self) -> None:
        """Those that were needed longest ago go first."""
        self._trimming = False
        held = {key: source.weigh() for key, source in self._sources.items()}
        for key in list(held):
            if sum(held.values()) <= self._total_mb and len(held) <= MOST:
                return
            if self._may_go(key):
                self._let_go(key)
                del held[key]

    def _may_go(self, key: Key) -> bool:
        return self._sources[key].idle and not self._stays(key)

    def _let_go(self, key: Key) -> None:
        del self._needed_at[key]
        self._sources.pop(key).close()
        self._closed(key)

    def _age_later(self) -> None:
        if not self._aging:
            self._aging = True
            self._loop.after(min(_LOOK_S, self._idle_s / 2), self._age)

    def _age(self) -> None:
        self._aging = False
        before = time.monotonic() - self._idle_s
        for key in [key for key, needed in self._needed_at.items() if needed < before and self._may_go(key)]:
            self._let_go(key)
        self._trim()
        if self._sources:
            self._age_later()
