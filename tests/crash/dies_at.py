"""A process that runs one piece of code in a runtime of its own and is killed at a named step of that run.

``python dies_at.py DATA_DIR PORT METHOD WHEN``: kill -9 ``before``, ``while`` or ``after`` a port's method works.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from skillyard import Runtime
from skillyard.engine.observer import Event, RunStarted, ignore

KEY = "the-run"
CODE = """
import os
from runtime import blobs

def main(args):
    print("begun", flush=True)
    for _ in range(3):
        blobs.write_bytes(os.urandom(3_000_000))
    print("x" * 100_000)
    return {"done": True}
"""
_WORK_S = 0.004
"""How long a call has worked when it is killed ``while`` it does."""


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("kill(2) came back")


class Deadly:
    """``port``, one of whose coroutine methods ends this process."""

    def __init__(self, port: Any, method: str, when: str) -> None:
        self._port = port
        self._method = method
        self._when = when

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        return self._last(real) if name == self._method else real

    def _last(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **more: Any) -> Any:
            if self._when == "before":
                die()
            working = asyncio.ensure_future(real(*args, **more))
            await asyncio.wait([working], timeout=_WORK_S if self._when == "while" else None)
            die()

        return call


def die_when_started(event: Event) -> None:
    if isinstance(event, RunStarted):
        die()


async def main(data_dir: str, port: str, method: str, when: str) -> None:
    async with Runtime(data_dir, observer=die_when_started if port == "observer" else ignore) as runtime:
        if port != "observer":
            engine: Any = runtime.engine
            holder = engine.backends.default if port == "backend" else engine
            setattr(holder, port, Deadly(getattr(holder, port), method, when))
        await runtime.run_code(CODE, idempotency_key=KEY)
    print("survived")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
