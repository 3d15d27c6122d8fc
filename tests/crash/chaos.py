"""A server under load whose processes are killed at random, until so many were: what was killed, what was wrong."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.crash import parts
from tests.crash.ledger import Bytes, Ledger, ended_badly, strange_files, watch_endings
from tests.crash.leftovers import Footprint, Process, Snapshot, gone, idle, until
from tests.crash.load import Client
from tests.crash.server import Server, launch, log_of
from tests.crash.store import contradictions, detached
from tests.crash.witness import Witness, leaks

ENDED = ("completed", "failed")
BOUND_S = 60.0
"""A busy machine starts a server within it, and ends what servers left."""
CLIENTS = 5
OLD_BLOBS = 30
KILLED_AT_ONCE_S = 0.06
"""How long after a server was told to stop, or was started, it is killed: up to this, or up to ten times this."""
KINDS = {"worker": 5, "init": 5, "zygote": 4, "keeper": 4, "gate": 5, "child": 2}
ENDINGS = {"server": 6, "server and keeper": 2, "server and gate": 3, "server while it stops": 2}
STARTS = {"": 5, "server while it starts": 3, "keeper while the server starts": 2, "gate while the server starts": 2}


@dataclass(slots=True)
class Chaos:
    """``kills`` counts by kind. The same ``seed`` gives the same schedule; what it hits is the kernel's to say."""

    data_dir: Path
    seed: int
    witness: Witness
    ledger: Ledger = field(default_factory=Ledger)
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    chance: random.Random = field(init=False)
    footprint: Footprint = field(init=False)
    _seen: dict[str, object] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)
    """Tasks that were looked at after their end."""
    _live: set[str] = field(default_factory=set)
    """Detached runs that went on when they were looked at."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.footprint = Footprint(self.data_dir)

    async def run(self, kills: int, each_server: int) -> None:
        """Kill so many processes, a server after about ``each_server`` of them, and check after each restart."""
        await self.witness.seal(self.data_dir)
        while self.kills.total() < kills:
            await self._disturb_start()
            with self._started() as server:
                await self._check(server)
                load = [
                    asyncio.create_task(
                        Client(server, self.witness, self.ledger, f"{self.seed}-{self.restarts}-{n}").work()
                    )
                    for n in range(CLIENTS)
                ]
                await self._kill_parts(self.chance.randint(each_server // 2, each_server * 3 // 2), load)
                await self._kill_server(server)
                await asyncio.gather(*load)
        await self._end()

    def _started(self) -> Server:
        self.restarts += 1
        server = self.witness.server(self.data_dir, ready=self.chance.choice((0, 2, 4)))
        if self.restarts == 1:
            watch_endings(self.data_dir)
        return server

    async def _disturb_start(self) -> None:
        """Before a server is started for good, one that does not live to be ready, or loses its keeper."""
        kind = self.chance.choices(list(STARTS), list(STARTS.values()))[0] if self.restarts else ""
        if not kind:
            return
        process = launch(self.data_dir, ready=0, **self.witness.env)
        try:
            if kind == "server while it starts":
                await asyncio.sleep(self.chance.uniform(0, 15 * KILLED_AT_ONCE_S))
                self._count(kind, process.poll() is None)
            elif kind == "gate while the server starts":
                await self._kill_first_gate(process, kind)
            else:
                await self._kill_first_keeper(process, kind)
        finally:
            process.kill()
            process.communicate(timeout=BOUND_S)

    async def _kill_first_keeper(self, process: subprocess.Popen[bytes], kind: str) -> None:
        """As soon as it is seen. The server then starts another, or says why it ends."""
        try:
            async with asyncio.timeout(BOUND_S):
                while process.poll() is None and not await asyncio.to_thread(self.footprint.keepers):
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            said = log_of(self.data_dir).read_text(errors="replace")[-4000:]
            error.add_note(f"a server lives without a keeper; {self.footprint.glance()}; it said:\n{said}")
            raise
        await asyncio.sleep(self.chance.uniform(0, KILLED_AT_ONCE_S))
        self._count(kind, bool(self.footprint.keepers()))
        self.footprint.kill_keeper()
        await asyncio.sleep(self.chance.uniform(0, KILLED_AT_ONCE_S))

    async def _kill_first_gate(self, process: subprocess.Popen[bytes], kind: str) -> None:
        """As soon as there is one: the gate of the last server, or one that resumed runs need."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                while process.poll() is None and not await asyncio.to_thread(self.footprint.kill_gates):
                    await asyncio.sleep(0.02)
                self._count(kind, process.poll() is None)
        await asyncio.sleep(self.chance.uniform(0, 5 * KILLED_AT_ONCE_S))

    async def _kill_parts(self, count: int, load: list[asyncio.Task[None]]) -> None:
        for _ in range(count):
            await asyncio.sleep(self.chance.uniform(0, 0.35))
            kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
            if kind == "keeper":
                self._count(kind, bool(await asyncio.to_thread(self.footprint.keepers)))
                await asyncio.to_thread(self.footprint.kill_keeper)
            elif kind == "gate":
                self._count(kind, bool(await asyncio.to_thread(self.footprint.kill_gates)))
            else:
                now = await asyncio.to_thread(self.footprint.glance)
                found = _of_kind(now, kind)
                self._count(kind, bool(found))
                parts.kill(self.chance.sample(found, min(1, len(found))))
            for task in load:
                if task.done():
                    task.result()

    async def _kill_server(self, server: Server) -> None:
        await asyncio.to_thread(self.footprint.look)
        kind = self.chance.choices(list(ENDINGS), list(ENDINGS.values()))[0]
        if kind == "server and keeper":
            self.footprint.kill_keeper()
        if kind == "server and gate":
            self.footprint.kill_gates()
        if kind == "server while it stops":
            server.signal(signal.SIGTERM)
            await asyncio.sleep(self.chance.uniform(0, 10 * KILLED_AT_ONCE_S))
        self._count(kind, server.alive)
        server.kill()

    def _count(self, kind: str, hit: bool) -> None:
        self.kills[kind] += hit

    async def _check(self, server: Server) -> None:
        """What this server shows, against what was told by those before it and what they showed."""
        async with httpx2.AsyncClient(
            base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=BOUND_S, trust_env=False
        ) as http:
            await self._check_records(http)
            await self._check_blobs(http)
            await self._check_tasks(http)
        self.ledger.wrong.extend(ended_badly(self.data_dir))
        self.ledger.wrong.extend(self.witness.wrong())
        until(lambda: not contradictions(self.data_dir), BOUND_S, f"they agree: {contradictions(self.data_dir)[:5]}")
        assert not self.ledger.wrong, self._wrong()

    async def _check_tasks(self, http: httpx2.AsyncClient) -> None:
        for task_id in self.ledger.tasks.keys() - self._ended:
            told = await _told(http, "skills.task_watch", task_id=task_id, timeout_sec=BOUND_S)
            self.ledger.check_task(task_id, told)
            self._ended.add(task_id)

    async def _end_sessions(self, server: Server) -> None:
        """Once every job has come to its end."""
        headers = {"authorization": f"Bearer {server.token}"}
        async with httpx2.AsyncClient(
            base_url=server.url, headers=headers, timeout=3 * BOUND_S, trust_env=False
        ) as http:
            for job_id in self.ledger.jobs:
                self.ledger.check_job(job_id, await _told(http, "skills.job_watch", job_id=job_id, timeout_sec=BOUND_S))
            for session in (await _told(http, "skills.sessions", limit=500))["sessions"]:
                await _told(http, "skills.end_session", session_id=session["session_id"])

    async def _check_records(self, http: httpx2.AsyncClient) -> None:
        """All that are new, and of the known ones those on the same pages."""
        cursor, known = None, False
        resumed = self.ledger.promised.keys() | await asyncio.to_thread(detached, self.data_dir)
        while not known:
            params = {"limit": 500, "cursor": cursor}
            answer = await http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "runs.list", "params": params})
            page = answer.json()["result"]
            # Jobs start their next steps meanwhile, which are detached runs too.
            resumed |= await asyncio.to_thread(detached, self.data_dir)
            for record in page["runs"]:
                known = known or record["run_id"] in self._seen
                if record["status"] not in ENDED:
                    self._live.add(record["run_id"])
                    if record["run_id"] not in resumed:
                        self.ledger.check_record(await _told(http, "runs.show", run_id=record["run_id"]))
                    continue
                self.ledger.check_record(record)
                if self._seen.setdefault(record["run_id"], record) != record:
                    self.ledger.wrong.append(f"record {record['run_id']} changed: {self._seen[record['run_id']]}")
            cursor = page["next_cursor"]
            known = known or cursor is None
        lacking = self.ledger.told.keys() - self._seen.keys()
        lacking |= self.ledger.tasks.keys() - self._seen.keys() - self._live
        lacking |= self.ledger.promised.keys() - self._seen.keys() - self._live
        self.ledger.wrong.extend(f"{run_id} was told and has no record" for run_id in lacking)

    async def _check_blobs(self, http: httpx2.AsyncClient) -> None:
        """Those of the last server, and some older ones."""
        new = self.ledger.blobs.keys() - self._checked
        old = self.chance.sample(sorted(self._checked), min(OLD_BLOBS, len(self._checked)))
        for blob_id in [*new, *old]:
            answer = await http.get(f"/blobs/{blob_id}")
            self.ledger.check_blob(blob_id, Bytes.of(answer.content) if answer.status_code == 200 else None)
        self._checked |= new

    async def _end(self) -> None:
        """A last server: all is checked, and then nothing is left."""
        self._seen.clear()
        self._checked.clear()
        self._ended.clear()
        self._live.clear()
        with self.witness.server(self.data_dir) as server:
            until(lambda: not contradictions(self.data_dir), BOUND_S, "detached runs come to their end")
            await self._end_sessions(server)
            await self._check(server)
            await asyncio.to_thread(lambda: idle(self.footprint, BOUND_S, ahead=True))
            assert server.stop() == 0, server.log()
        await asyncio.to_thread(gone, self.footprint, BOUND_S)
        self.ledger.wrong.extend(f"left behind: {name}" for name in strange_files(self.data_dir))
        self.ledger.wrong.extend(f"a secret is in {name}" for name in leaks(self.data_dir))
        self.ledger.wrong.extend(contradictions(self.data_dir))
        assert not self.ledger.wrong, self._wrong()

    def _wrong(self) -> str:
        return f"seed {self.seed}, after {self.report()}:\n" + "\n".join(self.ledger.wrong[:50])

    def report(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in self.kills.most_common())
        told = ", ".join(f"{count} {what}" for what, count in self.ledger.counts.most_common())
        return (
            f"seed {self.seed}: {self.kills.total()} kills ({kills}), {self.restarts} restarts; told: {told}; "
            f"{_records(self.data_dir)} records, {len(self.ledger.blobs)} blobs; {len(self.ledger.wrong)} wrong"
        )


async def _told(http: httpx2.AsyncClient, method: str, **params: object) -> dict[str, Any]:
    answer = (await http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).json()
    assert "result" in answer, (method, params, answer)
    return dict(answer["result"])


def _of_kind(now: Snapshot, kind: str) -> list[Process]:
    choose = {"worker": parts.workers, "init": parts.inits, "zygote": parts.zygotes, "child": parts.children}
    return [process for process in choose[kind](now) if process.state != "Z"]


def _records(data_dir: Path) -> int:
    with closing(sqlite3.connect(f"file:{data_dir / 'skillyard.db'}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM runs").fetchone()[0])
