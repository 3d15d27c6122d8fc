"""A server's stand-in that owns a task, or attaches to one, and is meant to be killed: the port, nothing more.

``python task_owner.py RUN_DIR start CODE TIMEOUT_MS`` prints the handle, then a line for each piece of output it
saw; ``python task_owner.py RUN_DIR attach HANDLE`` attaches to it and does the same.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec, Stream
from skillyard.ports.sandbox import Process
from skillyard.sandbox.native.backend import NativeBackend

PROCESS = "work"


async def start(backend: NativeBackend, code: str, timeout_ms: int) -> tuple[str, Process]:
    sandbox = await backend.create(SandboxSpec(owner=Owner.TASK), "the-task")
    program = Argv(("python3", "-I", "-c", code))
    return sandbox.handle, await sandbox.start(program, id=PROCESS, timeout_ms=timeout_ms)


async def main(run_dir: str, what: str, *words: str) -> None:
    backend = NativeBackend(Path(run_dir))
    if what == "start":
        handle, process = await start(backend, words[0], int(words[1]))
    else:
        handle = words[0]
        process = await (await backend.attach(handle)).process(PROCESS)
    print(handle, flush=True)
    seen = 0
    async for piece in process.output(Stream.STDOUT):
        seen += len(piece)
        print(seen, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
