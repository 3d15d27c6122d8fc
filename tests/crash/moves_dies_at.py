"""A process that moves the idle session of a data directory and is killed at a named step of that.

``python -m tests.crash.moves_dies_at DATA_DIR STEP WHEN``: kill -9 ``before``, ``while`` or ``after`` the step works.
"""

from __future__ import annotations

import asyncio
import sys

from skillyard import Runtime
from skillyard.engine.sessions.keeping import Keeping
from skillyard.sandbox.native.backend import NativeBackend
from tests.crash.dies_at import make_deadly

STEPS = {"create": NativeBackend, "destroy": NativeBackend, "makes": Keeping, "stands": Keeping}


async def main(data_dir: str, step: str, when: str) -> None:
    make_deadly(STEPS[step], step, when)
    async with asyncio.timeout(60), Runtime(data_dir):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
