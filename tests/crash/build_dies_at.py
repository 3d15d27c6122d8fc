"""A process that builds an environment without a sandbox and is killed at a step of the store.

``python build_dies_at.py DIRECTORY STEP WHEN``: kill -9 ``before`` or ``after`` a function of the store has worked.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from skillyard.config.packages import PackagesSettings
from skillyard.domain.package.environment import Wanted
from skillyard.engine.observer import ignore
from skillyard.engine.packages.building import Building
from skillyard.engine.packages.environments import Environments
from skillyard.stores.clock import SystemClock
from skillyard.stores.files import environments as store
from skillyard.stores.files.environments import LocalEnvironments, Locks
from tests.unit.engine.packages.fake_builder import FakeBuilder

WANTED = Wanted.of(["alpha", "beta"])
STEPS: dict[str, tuple[Any, str]] = {
    "stage": (LocalEnvironments, "_staging"),
    "receive": (store, "receive_tar"),
    "check": (store, "check_installed"),
    "facts": (LocalEnvironments, "_write"),
    "place": (LocalEnvironments, "_place"),
    "lock": (Locks, "keep"),
    "forget": (LocalEnvironments, "_remove"),
    "delete": (store, "remove_tree"),
}


def environments_in(directory: Path) -> Environments:
    clock, config = SystemClock(), PackagesSettings()

    async def no_log(owner: str, log: bytes) -> str:
        return ""

    async def room(_: int) -> int:
        return 1 << 30

    local = LocalEnvironments(directory, clock)
    building = Building(local, FakeBuilder(), config, clock, no_log, ignore, room)
    return Environments({}, local, building, config, clock)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("kill(2) came back")


def make_deadly(step: str, when: str) -> None:
    home, name = STEPS[step]
    real: Callable[..., Any] = getattr(home, name)

    def last(*args: Any, **more: Any) -> Any:
        if when == "before":
            die()
        real(*args, **more)
        return die()

    async def last_awaited(*args: Any, **more: Any) -> Any:
        if when == "before":
            die()
        await real(*args, **more)
        return die()

    setattr(home, name, last_awaited if inspect.iscoroutinefunction(real) else last)


async def main(directory: Path, step: str, when: str) -> None:
    environments = environments_in(directory)
    if step in ("forget", "delete"):
        digest = (await environments.of(WANTED, "somebody")).digest
        make_deadly(step, when)
        await environments.remove(digest, forget=False)
    else:
        make_deadly(step, when)
        await environments.of(WANTED, "somebody")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
