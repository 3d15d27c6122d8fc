"""A keeper remembers nothing of shapes that nobody asks for any more: callers choose them without end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from skillyard.sandbox.native.keeper.ground import Ground
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Lease, Shape
from skillyard.sandbox.native.keeper.sandboxes import Asked, Sandboxes

SHAPES = 200


def test_shapes_are_forgotten_with_their_last_sandbox() -> None:
    def place(handle: str, shape: Shape) -> Any:
        raise OSError(28, "there is no room")

    loop, told = Loop(), list[str]()
    source = SimpleNamespace(idle=True, pids=(), close=lambda: None, weigh=lambda: 0)
    ground = SimpleNamespace(begin=lambda _: None, tells_single=True, place=place, source=lambda *_: source)
    sandboxes = Sandboxes(loop, cast(Ground, ground), "", 0, 64, 60.0)
    sandboxes.environment("none", {"packages": "", "preload": [], "directories": []})
    for number in range(SHAPES):
        lease = Lease(str(number), "run", True, 1000)
        asked = Asked(lease, (), lambda sandbox, error, sockets=(): told.append(error))
        sandboxes.create(Shape("none", "", 64 + number, 1.0, 16, 16), asked)
    loop.after(0.0, sandboxes.refill)
    loop.after(0.05, lambda: setattr(loop, "running", False))
    loop.run()
    assert told == ["there is no room"] * SHAPES
    kept = [value for value in vars(sandboxes).values() if hasattr(value, "__len__") and not isinstance(value, str)]
    assert max(map(len, kept)) < SHAPES / 10
