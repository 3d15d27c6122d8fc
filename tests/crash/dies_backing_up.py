"""Processes that back up or restore a data directory and are killed at a step of that.

``python dies_backing_up.py WORK SOURCE HOME STEP...`` with WORK ``backup`` or ``restore``: one process for each step,
in ``HOME/STEP``. It is killed (-9) at the STEPth thing that it asks of the operating system (an event of sys.audit). A
line for each says how it ended and, when it survived, how many steps there were.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.wiring import back_up, restore
from tests.crash.dies_at import die


class Countdown:
    def __init__(self, step: int) -> None:
        self.step = step
        self.seen = 0
        self.on = True

    def __call__(self, event: str, _args: tuple[Any, ...]) -> None:
        if self.on and event.startswith(("open", "os.", "tempfile.", "shutil.", "sqlite3.")):
            self.seen += 1
            if self.seen == self.step:
                die()


def work(what: str, source: Path, place: Path, step: int) -> int:
    """``source`` is a data directory to back up, or a directory with a backup and its keys."""
    place.mkdir()
    settings = load_settings(data_dir=source)
    countdown = Countdown(step)
    sys.addaudithook(countdown)
    if what == "backup":
        asyncio.run(back_up(settings, DataDir(source), place / "backup.tar", place / "keys"))
    else:
        asyncio.run(restore(DataDir(place / "data"), source / "backup.tar", source / "keys"))
    countdown.on = False
    return countdown.seen


def each(what: str, source: Path, home: Path, steps: list[str]) -> None:
    """Forked, since what takes long is to import all of it."""
    work(what, source, home / "first", 0)
    for step in steps:
        pid = os.fork()
        if pid == 0:
            try:
                seen = work(what, source, home / step, int(step))
            except BaseException:  # noqa: BLE001 - whatever it is, the parent reads it
                traceback.print_exc()
                os._exit(1)
            print(step, f"survived {seen}", flush=True)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            print(step, code, flush=True)


if __name__ == "__main__":
    each(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
