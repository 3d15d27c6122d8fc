"""The parts of a keeper's tree, by what they are, and killing them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from tests.crash.leftovers import Process, Snapshot


def zygotes(now: Snapshot) -> list[Process]:
    return [p for p in now.processes if p.depth == 2 and "native.inside.zygote" in p.command]


def inits(now: Snapshot) -> list[Process]:
    inside = {p.pid for p in now.sandboxed}
    return [p for p in now.sandboxed if p.parent not in inside]


def workers(now: Snapshot) -> list[Process]:
    above = {p.pid for p in inits(now)}
    return [p for p in now.sandboxed if p.parent in above]


def children(now: Snapshot) -> list[Process]:
    """What workers started."""
    above = {p.pid for p in (*inits(now), *workers(now))}
    return [p for p in now.sandboxed if p.pid not in above]


def anything(now: Snapshot) -> list[Process]:
    return [*zygotes(now), *now.sandboxed]


def kill(processes: Iterable[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
