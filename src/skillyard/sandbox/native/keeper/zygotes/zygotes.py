"""The zygotes of a keeper: found by what their sandboxes have in common, and closed when they hold too much."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Shape
from skillyard.sandbox.native.keeper.zygotes.zygote import Order, Warmth

MOST = 32
"""Zygotes at once, whatever they hold."""

_LOOK_S = 10.0

Key = tuple[str, str]
"""What sandboxes of one zygote have in common: environment and group."""


def key_of(shape: Shape) -> Key:
    return shape.environment, shape.group


class Maker(Protocol):
    """What sandboxes of one environment and group come from."""

    @property
    def idle(self) -> bool:
        """Nobody waits for anything of it."""
        ...

    @property
    def pids(self) -> Sequence[int]: ...

    def weigh(self) -> int:
        """MiB that it holds; what holds more than it may is ended."""
        ...

    def order(self, order: Order) -> None: ...

    def warm(self, then: Callable[[Warmth], None]) -> None: ...

    def close(self) -> None: ...


class WarmHouse:
    """``make`` makes what is not there; ``stays`` says which one is never closed; ``closed`` hears of those that
    were. All together hold at most ``total_mb`` MiB when nothing is at work, and none stays for ``idle_s`` unused."""

    def __init__(
        self,
        loop: Loop,
        total_mb: int,
        idle_s: float,
        make: Callable[[Key], Maker],
        stays: Callable[[Key], bool],
        closed: Callable[[Key], None],
    ) -> None:
        self._loop = loop
        self._total_mb = total_mb
        self._idle_s = idle_s
        self._make = make
        self._stays = stays
        self._closed = closed
        self._makers: dict[Key, Maker] = {}
        """The one that was needed last is the last."""
        self._needed_at: dict[Key, float] = {}
        self._trimming = self._aging = False

    def __contains__(self, key: Key) -> bool:
        return key in self._makers

    def __len__(self) -> int:
        return len(self._makers)

    def get(self, key: Key) -> Maker:
        maker = self._makers.pop(key, None)
        if maker is None:
            maker = self._make(key)
            self.trim_soon()
        self._makers[key] = maker
        self._needed_at[key] = time.monotonic()
        self._age_later()
        return maker

    def pids(self) -> set[int]:
        return {pid for maker in self._makers.values() for pid in maker.pids}

    def trim_soon(self) -> None:
        """One of them may hold more than before."""
        if not self._trimming:
            self._trimming = True
            self._loop.when_idle(self._trim)

    def close(self) -> None:
        for maker in self._makers.values():
            maker.close()

    def _trim(self) -> None:
        """Those that were needed longest ago go first."""
        self._trimming = False
        held = {key: maker.weigh() for key, maker in self._makers.items()}
        for key in list(held):
            if sum(held.values()) <= self._total_mb and len(held) <= MOST:
                return
            if self._may_go(key):
                self._let_go(key)
                del held[key]

    def _may_go(self, key: Key) -> bool:
        return self._makers[key].idle and not self._stays(key)

    def _let_go(self, key: Key) -> None:
        del self._needed_at[key]
        self._makers.pop(key).close()
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
        if self._makers:
            self._age_later()
