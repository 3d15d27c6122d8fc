"""Shell commands beside bubblewrap and srt, cells of a session, a thousand tasks drained, and watchers of tasks."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from bench.peers import PEERS, Missing
from skillyard.bench.installations import printed
from skillyard.bench.subject import WrongResult
from skillyard.bench.turns import in_ms
from skillyard.client.sync import SyncClient
from skillyard.server_process import ServerProcess

SKILL = "skills.protocol.guide"
COMMAND = "true"
_SHELL = ("bash", "-c", COMMAND)
RUN, CELL = "run_code of a sum", "a cell of a session's interpreter"
_CODE = "print(sum(range(1000)))"
OURS, SHELL, BUBBLEWRAP, SRT = "run_cmd true", "bash -c true", "bwrap bash -c true", "srt bash -c true"
LIMITS = {"memory_mb": 64, "disk_mb": 16, "pids": 32}
_AT_ONCE = 16
_WAIT_S = 600.0
_PLACES = {
    "SKILLYARD_ADMISSION__QUEUED": "2100",
    "SKILLYARD_ADMISSION__QUEUED_EACH": "2100",
    "SKILLYARD_ADMISSION__RESERVE": "0",
    "SKILLYARD_ADMISSION__POLLS": "1100",
    "SKILLYARD_ADMISSION__POLLS_EACH": "1100",
}


@dataclass(slots=True)
class Work:
    """Seconds by title. ``drained_s`` is the time of ``tasks`` from the first call to the last end.

    ``watching`` is the processor time of the server in a second with so many watchers, by what they watch; under the
    empty text without one.
    """

    commands: dict[str, list[float]] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    tasks: int = 0
    drained_s: float = 0.0
    watchers: int = 0
    watching: dict[str, float] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float | None]]:
        """Yields titles and numbers."""
        ours = self.commands[OURS]
        for title in (SHELL, BUBBLEWRAP, SRT):
            yield f"{OURS}: of {title}", _ratio(ours, self.commands.get(title))
        yield f"{CELL}: of {RUN}", _ratio(self.commands[CELL], self.commands[RUN])
        each_s = self.drained_s / self.tasks
        yield f"{self.tasks:,} tasks queued and drained, each: of {OURS}", each_s / statistics.median(ours)
        for what, cost in self.watching.items():
            who = f"{self.watchers} watchers of {what}" if what else f"{self.watchers} tasks without a watcher"
            yield f"{who}, ms of processor time a second", cost * 1000

    def as_dict(self) -> dict[str, Any]:
        times = {title: in_ms(samples) for title, samples in self.commands.items()}
        return {
            **{name: value and round(value, 3) for name, value in self.rows()},
            "times": times,
            "lacking": self.lacking,
        }


def _ratio(ours: Sequence[float], theirs: Sequence[float] | None) -> float | None:
    return statistics.median(ours) / statistics.median(theirs) if theirs else None


def measure(home: Path, *, quick: bool) -> Work:
    """Measures all of them. Raises the errors of a server and of its start, WrongResult."""
    found = Work(tasks=8 if quick else 1000, watchers=8 if quick else 500)
    home.mkdir(parents=True)
    with ServerProcess(home / "data", settings=_PLACES) as server, SyncClient(data_dir=server.data_dir) as client:
        _beside(home, client, 3 if quick else 40, found)
        began = time.perf_counter()
        asyncio.run(_drain(server, found.tasks))
        found.drained_s = time.perf_counter() - began
        asyncio.run(_watch(server, 0.5 if quick else 10.0, found))
    return found


def _beside(home: Path, client: SyncClient, times: int, found: Work) -> None:
    def run_cmd() -> None:
        if (answer := client.run_cmd(SKILL, COMMAND, limits=LIMITS))["status"] != "succeeded":
            raise WrongResult(f"run_cmd ended with {answer['reason']}: {answer['stderr'][-200:]}")

    def run_code(session_id: str | None = None) -> None:
        if (run := client.run_code(_CODE, limits=LIMITS, session_id=session_id)).status != "completed":
            raise WrongResult(f"run_code: {run.summary}")

    works: dict[str, Callable[[], object]] = {
        OURS: run_cmd,
        RUN: run_code,
        CELL: partial(run_code, "bench"),
        SHELL: partial(printed, _SHELL),
    }
    with ExitStack() as stack:
        for title, name in ((BUBBLEWRAP, "bubblewrap"), (SRT, "srt")):
            try:
                [prepare] = [peer.prepare for peer in PEERS if peer.id == name]
                works[title] = partial(prepare(stack, home), _SHELL)
                works[title]()
            except (Missing, OSError, WrongResult, subprocess.SubprocessError) as error:
                works.pop(title, None)
                found.lacking[title] = " ".join(str(error).split())[:200]
        for turn in range(times + 1):
            for title, work in works.items():
                began = time.perf_counter()
                work()
                if turn:
                    found.commands.setdefault(title, []).append(time.perf_counter() - began)


class _Caller:
    """Calls a server at once from many tasks."""

    def __init__(self, server: ServerProcess) -> None:
        token = (server.data_dir / "token").read_text().strip()
        self._http = httpx2.AsyncClient(
            base_url=server.url,
            headers={"authorization": f"Bearer {token}"},
            timeout=_WAIT_S,
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> _Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._http.post("/rpc", json=request)).json()
        if "error" in answer:
            raise WrongResult(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    async def start(self, command: str) -> str:
        task = await self.call("skills.run_cmd_async", skill_name=SKILL, command=command, limits=LIMITS)
        return str(task["task_id"])

    async def watch(self, task_id: str, number: int = 0) -> str:
        """Returns how it ended."""
        watched = await self.call(
            "skills.task_watch", task_id=task_id, timeout_sec=_WAIT_S, dedupe_key=f"{task_id}-{number}"
        )
        return str(watched["status"])


async def _drain(server: ServerProcess, tasks: int) -> None:
    """Queues so many, a few calls at once, and waits for the last end. Raises WrongResult."""
    at_once = asyncio.Semaphore(_AT_ONCE)
    async with _Caller(server) as caller:

        async def one() -> str:
            async with at_once:
                return await caller.start(COMMAND)

        queued = await asyncio.gather(*[one() for _ in range(tasks)])
        for task_id in queued:
            if (status := await caller.watch(task_id)) != "succeeded":
                raise WrongResult(f"a task ended as {status}")


async def _watch(server: ServerProcess, seconds: float, found: Work) -> None:
    """Watches no task, then one, and then as many as there are watchers; nothing happens meanwhile."""
    async with _Caller(server) as caller:
        tasks = [await caller.start("sleep 1000") for _ in range(found.watchers)]
        nobody: list[str] = []
        for what, watched in (("", nobody), ("one task", tasks[:1] * len(tasks)), (f"{len(tasks)} tasks", tasks)):
            watching = [asyncio.create_task(caller.watch(each, n)) for n, each in enumerate(watched)]
            await asyncio.sleep(seconds)  # until all are there
            before = _used(server.pid)
            await asyncio.sleep(seconds)
            found.watching[what] = (_used(server.pid) - before) / seconds
            if any(one.done() for one in watching):
                raise WrongResult("a watcher did not wait")
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        for task_id in tasks:
            await caller.call("skills.task_cancel", task_id=task_id)


def _used(pid: int) -> float:
    """Returns the processor time of a process, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
