"""The keeper's event loop."""

from __future__ import annotations

import os

from skillyard.sandbox.native.keeper.loop import READ, Loop


def test_an_event_never_reaches_a_descriptor_that_took_the_number_of_a_closed_one() -> None:
    """Two pipes are ready at once; the first callback closes the second and opens another in its place."""
    loop = Loop()
    pipes = [os.pipe() for _ in range(2)]
    for _, writing in pipes:
        os.write(writing, b"x")
    strays: list[int] = []
    seen: list[int] = []

    def replace(ready: int) -> None:
        (other,) = [reading for reading, _ in pipes if reading != ready]
        seen.append(ready)
        loop.forget(ready)
        loop.forget(other)
        os.close(other)
        fresh, _ = os.pipe()
        assert fresh == other
        loop.watch(fresh, READ, strays.append)
        loop.running = False

    for reading, _ in pipes:
        loop.watch(reading, READ, lambda _, fd=reading: replace(fd))  # type: ignore[misc]
    loop.run()
    assert len(seen) == 1
    assert strays == []


def test_timers_fire_in_order_and_not_when_cancelled() -> None:
    loop = Loop()
    fired: list[str] = []
    loop.after(0.003, lambda: fired.append("late"))
    loop.after(0.001, lambda: fired.append("early"))
    loop.after(0.002, lambda: fired.append("never")).cancel()
    loop.after(0.004, lambda: setattr(loop, "running", False))
    loop.run()
    assert fired == ["early", "late"]


def test_idle_calls_wait_for_everything_else() -> None:
    loop = Loop()
    order: list[str] = []
    reading, writing = os.pipe()
    os.write(writing, b"x")

    def ready(_: int) -> None:
        os.read(reading, 1)
        order.append("ready")

    def idle() -> None:
        order.append("idle")
        loop.running = False

    loop.when_idle(idle)
    loop.watch(reading, READ, ready)
    loop.run()
    assert order == ["ready", "idle"]
