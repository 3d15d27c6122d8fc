"""``skillyard serve`` that is killed, or whose keeper or sandboxes are, at a named step of a caller's request.

The variable ``SKILLYARD_TEST_DIES`` says ``WHO PART METHOD WHEN``: kill -9 of the ``server``, its ``keeper`` or all
that is in its ``sandbox``, the first time that a method works, ``before``, ``while`` or ``after`` it does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from skillyard import Runtime
from skillyard.engine.services.programs import Programs
from skillyard.faces.cli.main import main
from skillyard.sandbox.file_programs import FilesOfSandbox
from tests.crash.dies_at import die
from tests.crash.leftovers import Footprint

VARIABLE = "SKILLYARD_TEST_DIES"
_WORK_S = 0.004


def end(who: str, data_dir: Path) -> bool:
    """Returns whether there was anything to kill."""
    footprint = Footprint(data_dir)
    if who == "server":
        die()
    elif who == "keeper":
        footprint.kill_keeper()
        return True
    found = footprint.glance().sandboxed
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return bool(found)


def arm(runtime: Runtime, who: str, part: str, method: str, when: str) -> None:
    offer = runtime.app.backends.default
    assert offer is not None
    places = {"files": FilesOfSandbox, "programs": Programs, "backend": offer.backend}
    place: Any = places.get(part) or getattr(runtime.app.ports, part)
    real = getattr(place, method)
    over: list[bool] = []

    async def call(*args: Any, **more: Any) -> Any:
        if over:
            return await real(*args, **more)
        data_dir = Path(os.environ["SKILLYARD_TEST_DATA"])
        if when == "before":
            over.extend([True] * await asyncio.to_thread(end, who, data_dir))
        working = asyncio.ensure_future(real(*args, **more))
        await asyncio.wait([working], timeout=_WORK_S if when == "while" else None)
        if when != "before":
            over.extend([True] * await asyncio.to_thread(end, who, data_dir))
        return await working

    setattr(place, method, call)


async def entered(runtime: Runtime) -> Runtime:
    await enter(runtime)
    arm(runtime, *os.environ[VARIABLE].split())
    return runtime


if __name__ == "__main__":
    enter = Runtime.__aenter__
    Runtime.__aenter__ = entered  # type: ignore[method-assign, assignment]
    main()
