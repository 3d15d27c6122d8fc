"""Long work in the keeper's one thread, a little at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from skillyard.sandbox.native.keeper.loop import Turns

SLICE_S = 0.003


def work(loop: Turns, steps: Iterator[None], done: Callable[[OSError | None], None]) -> None:
    """Go through ``steps``, the first of them at once, and let others have their turn; then call ``done`` with what
    went wrong."""

    def turn() -> None:
        until = time.monotonic() + SLICE_S
        try:
            for _ in steps:
                if time.monotonic() > until:
                    loop.after(0, turn)
                    return
        except OSError as error:
            done(error)
            return
        except Exception as error:  # noqa: BLE001 - whoever waits hears of it
            loop.report(error)
            done(OSError(0, f"{type(error).__name__}: {error}"))
            return
        done(None)

    turn()
