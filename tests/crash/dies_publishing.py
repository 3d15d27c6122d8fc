"""Processes that publish two versions of a skill and are killed at a step of the second.

``python dies_publishing.py HOME STEP...``: one process for each step, on a data directory ``HOME/STEP`` of its own. It
is killed (-9) at the STEPth thing that it asks of the operating system (an event of sys.audit: open, mkdir, chmod,
rename …) from the first byte of the archive on, or at a named step in the database. A line for each says how it ended
and, when it survived, how many steps there were.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillyard.config.policy import TrustSettings
from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.principal import LOCAL
from skillyard.engine.observer import ignore
from skillyard.engine.shares import LargeReads
from skillyard.engine.skills.publishing import Published, Publisher
from skillyard.engine.skills.service import SkillService
from skillyard.engine.skills.standings import Standings
from skillyard.engine.tasks import Tasks
from skillyard.stores.clock import SystemClock
from skillyard.stores.sqlite.approvals import SqliteApprovals
from skillyard.stores.sqlite.database import Database
from skillyard.wiring import SkillStores, make_skill_stores
from tests.bundles import skill_files, tar
from tests.crash.dies_at import die, make_deadly

NAME = "acme.words.say"
NAMED = ("insert-before", "insert-after", "refresh-before", "refresh-after")


@dataclass
class Yard:
    """Skills of a data directory, without anything that runs them."""

    stores: SkillStores
    skills: SkillService
    publisher: Publisher

    async def publish(self, archive: bytes, begun: Callable[[], None] = lambda: None) -> Published:
        async def chunks() -> AsyncIterator[bytes]:
            begun()
            yield archive

        return await self.publisher.publish(LOCAL, chunks())


@asynccontextmanager
async def yard(data_dir: Path) -> AsyncIterator[Yard]:
    places = DataDir(data_dir)
    with places.owned():
        database = await Database.open(places.database)
        try:
            stores = await make_skill_stores(load_settings(data_dir=data_dir), places, database)
            tasks = Tasks()
            standings = Standings(SqliteApprovals(database), TrustSettings(), ignore)
            skills = SkillService(
                stores.skills, stores.publications, standings, cursor_key=b"", large_reads=LargeReads()
            )
            publisher = Publisher(stores.publications, stores.bundles, skills, SystemClock(), tasks, ignore)
            try:
                yield Yard(stores, skills, publisher)
                await tasks.drain()
            finally:
                await stores.skills.close()
        finally:
            await database.close()


def bundle(version: str) -> bytes:
    files = skill_files(NAME, version, word=version)
    return tar(files | {"data/deep/table.bin": bytes(range(256)) * 400, "data/empty": b""})


class Countdown:
    def __init__(self, step: int) -> None:
        self.step = step
        self.seen = 0
        self.on = False

    def begin(self) -> None:
        self.on = True

    def __call__(self, event: str, _args: tuple[Any, ...]) -> None:
        if self.on and event.startswith(("open", "os.", "tempfile.", "shutil.")):
            self.seen += 1
            if self.seen == self.step:
                die()


async def main(data_dir: Path, step: str) -> int:
    async with yard(data_dir) as here:
        await here.publish(bundle("1.0.0"))
        countdown = Countdown(0 if step in NAMED else int(step))
        if step in NAMED:
            method, when = step.split("-")
            port: Any = here.stores.publications if method == "insert" else here.stores.skills
            make_deadly(port, method, when)
        sys.addaudithook(countdown)
        await here.publish(bundle("2.0.0"), countdown.begin)
        countdown.on = False
    return countdown.seen


def each(home: Path, steps: list[str]) -> None:
    """Forked, since what takes long is to import all of it."""
    for step in steps:
        pid = os.fork()
        if pid == 0:
            try:
                seen = asyncio.run(main(home / step, step))
            except BaseException:  # noqa: BLE001 - whatever it is, the parent reads it
                traceback.print_exc()
                os._exit(255)
            os._exit(min(seen, 254))
        print(step, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    each(Path(sys.argv[1]), sys.argv[2:])
