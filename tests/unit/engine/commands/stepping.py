"""Commands that a test steps through, and the calls by which it looks at their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from skillyard.domain.principal import Principal, Scope
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import result

DONE = result({"exit_code": 0})
SCOPES = frozenset({Scope.RUN_CODE})


def token(name: str, **more: Any) -> Principal:
    return Principal(name, SCOPES, **more)


ANN = token("ann")


class Stepping:
    """A command that writes each text that a test gives it, and ends after None."""

    def __init__(self) -> None:
        self.texts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.started = 0

    async def __call__(self, process: TwinProcess) -> None:
        self.started += 1
        while (text := await self.texts.get()) is not None:
            process.log(text)
        process.write(DONE)

    def say(self, *texts: bytes | None) -> None:
        for text in texts:
            self.texts.put_nowait(text)


async def start(rig: Rig, script: Any = None, /, principal: Principal | None = None, **params: Any) -> str:
    rig.backend.script = script or playing(DONE)
    asked = {"skill_name": "acme.notes", "command": "ls", **params}
    task = await rig.call("skills.run_cmd_async", principal, **asked)
    assert task["status"] == "queued"
    return str(task["task_id"])


async def status(rig: Rig, task_id: str, **params: Any) -> dict[str, Any]:
    return await rig.call("skills.task_status", task_id=task_id, **params)


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(30):
        while not (found := await look()):
            await asyncio.sleep(0)
    return found


async def watched(rig: Rig, task_id: str, **params: Any) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return await rig.call("skills.task_watch", task_id=task_id, **params)


async def is_now(rig: Rig, task_id: str, wanted: str) -> bool:
    return bool((await status(rig, task_id))["status"] == wanted)
