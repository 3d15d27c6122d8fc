"""Counts the modules that one warm run passes in process: ``python -m tests.docs.walk``.

A module is passed when one of its functions is called on the event loop's thread. A coroutine that goes on is not
called. A hop leads from one module to another; it is a return when that one was passed before.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from skillyard.runtime import Runtime

CODE = "def main(args): return {'sum': sum(args['n'])}"
WARM_UP, LOOKS = 5, 30
_PACKAGE = "skillyard."


@dataclass(frozen=True, slots=True)
class Walk:
    """``steps`` are the modules in the order in which they were passed, without repetition next to each other."""

    steps: tuple[str, ...]

    @property
    def modules(self) -> list[str]:
        return list(dict.fromkeys(self.steps))

    @property
    def hops(self) -> int:
        return len(self.steps) - 1

    @property
    def returns(self) -> int:
        return len(self.steps) - len(self.modules)


async def walk_of(work: Callable[[], Awaitable[Any]]) -> Walk:
    """Returns the walk of ``work`` and of everything that the event loop does meanwhile."""
    steps: list[str] = []
    begun: set[FrameType] = set()

    def passed(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame not in begun:
            begun.add(frame)
            module = frame.f_globals.get("__name__", "")
            if module.startswith(_PACKAGE) and (not steps or steps[-1] != module):
                steps.append(module)

    sys.setprofile(passed)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return Walk(tuple(steps))


async def walk_of_run(runtime: Runtime) -> Walk:
    """Returns the walk of a run that finds everything warm: the shortest of a few, since timers may fall into one."""
    for _ in range(WARM_UP):
        await _run(runtime)
    walks = [await walk_of(lambda: _run(runtime)) for _ in range(LOOKS)]
    return min(walks, key=lambda walk: (len(walk.modules), walk.hops))


async def _run(runtime: Runtime) -> None:
    run = await runtime.run_code(CODE, {"n": [1, 2]})
    assert run["status"] == "completed", run


async def _main() -> None:
    with TemporaryDirectory() as home:
        async with Runtime(home) as runtime:
            walk = await walk_of_run(runtime)
    for module in walk.modules:
        print(f"{walk.steps.count(module):4} {module}")
    print(f"modules {len(walk.modules)}, hops {walk.hops}, returns {walk.returns}")


if __name__ == "__main__":
    asyncio.run(_main())
