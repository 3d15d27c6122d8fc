"""A keeper looks seldom whether it can make sandboxes ahead while runs are short, and never where it makes none."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skillyard.sandbox.native.keeper.ground import Ground
from skillyard.sandbox.native.keeper.loop import Loop, Timer
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.sandboxes import Sandboxes

ASKED, TURN_S, SHORT_RUN_S = 10, 0.001, 0.02


class Counting(Loop):
    timers = idle = 0

    def after(self, seconds: float, call: Callable[[], None], *fault: Any) -> Timer:
        self.timers += 1
        return super().after(seconds, call, *fault)

    def when_idle(self, call: Callable[[], None], *fault: Any) -> None:
        self.idle += 1
        super().when_idle(call, *fault)


@pytest.mark.parametrize("ready", [0, 1])
def test_who_asks_often_while_runs_are_short_is_answered_seldom(ready: int) -> None:
    loop, began = Counting(), time.monotonic()
    ground = SimpleNamespace(begin=lambda household: None)
    sandboxes = Sandboxes(loop, cast(Ground, ground), "", ready, 64, 60.0)
    sandboxes.all["busy"] = cast(Sandbox, SimpleNamespace(lease=object(), dead=False))
    sandboxes._lent_at = began + 60
    for number in range(ASKED):
        Loop.after(loop, number * TURN_S, sandboxes.refill)
    Loop.after(loop, ASKED * SHORT_RUN_S, lambda: setattr(loop, "running", False))
    loop.run()
    most = (time.monotonic() - began) / SHORT_RUN_S + 1
    assert ready <= loop.timers <= most * ready
    assert ready <= loop.idle <= (ASKED + most) * ready
