"""A process that runs one piece of code in a runtime of its own and is killed at a named step of that run.

``python dies_at.py DATA_DIR PORT METHOD WHEN``: kill -9 ``before``, ``while`` or ``after`` a port's method works. With
``detach`` behind that, the run outlives it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
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


def make_deadly(port: Any, method: str, when: str) -> None:
    """A coroutine method of ``port`` ends this process from now on."""
    real = getattr(port, method)

    async def call(*args: Any, **more: Any) -> Any:
        if when == "before":
            die()
        working = asyncio.ensure_future(real(*args, **more))
        await asyncio.wait([working], timeout=_WORK_S if when == "while" else None)
        die()

    setattr(port, method, call)


def die_when_started(event: Event) -> None:
    if isinstance(event, RunStarted):
        die()


async def main(data_dir: str, port: str, method: str, when: str, detach: str = "") -> None:
    async with Runtime(data_dir, observer=die_when_started if port == "observer" else ignore) as runtime:
        if port != "observer":
            offer = runtime.app.backends.default
            make_deadly(
                offer.backend if offer and port == "backend" else getattr(runtime.app.ports, port), method, when
            )
        if detach:
            await runtime.run_code(CODE, idempotency_key=KEY, detach=True)
        await runtime.run_code(CODE, idempotency_key=KEY)
    print("survived")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
