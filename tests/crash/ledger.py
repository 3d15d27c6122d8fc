"""What callers were told, and whether the records and blobs of the next server say the same."""

from __future__ import annotations

import hashlib
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXPLAINED = {
    ("completed", "exit", None),
    ("failed", "lost", "SandboxLost"),
    ("failed", "signal", "SignalError"),
    ("failed", "cancelled", "Cancelled"),
    ("failed", "None", "SandboxError"),
}
"""How a run may end whose processes, keeper or server are killed, or that somebody cancels."""
KILLED = 128 + signal.SIGKILL
"""The exit code of a command whose shell was killed."""
_AUDIT = """
CREATE TABLE test_endings (run_id TEXT NOT NULL, was TEXT NOT NULL);
CREATE TRIGGER test_ending AFTER UPDATE ON runs WHEN new.ended_at IS NOT NULL
    BEGIN INSERT INTO test_endings VALUES (new.run_id, old.status); END;
"""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A content, as far as one has to know it to recognise it."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Bytes:
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class Promise:
    """What a run gives that comes to its end, whatever is killed around it."""

    output: dict[str, Any]
    blobs: tuple[Bytes, ...] = ()


@dataclass(slots=True)
class Ledger:
    """``wrong`` has a line for everything that contradicts what was told."""

    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, Bytes] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    """Blobs whose deletion nobody was told of."""
    promised: dict[str, Promise] = field(default_factory=dict)
    """What detached runs give whose callers were told that they go on."""
    tasks: dict[str, str] = field(default_factory=dict)
    """The output of each task that comes to its own end."""
    jobs: dict[str, list[str]] = field(default_factory=dict)
    """What each step of a job writes, by job."""
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, run: dict[str, Any], key: str | None = None) -> None:
        """A caller was given this Run object."""
        run_id, ending = run["run_id"], ending_of(run)
        self.counts[ending[1]] += 1
        if ending not in EXPLAINED:
            self.wrong.append(f"{run_id} ended as {ending}: {run.get('error')}")
        before = self.told.setdefault(run_id, run)
        if before != run:
            self.wrong.append(f"{run_id} was told twice, differently: {before} and {run}")
        if key is not None and self.keys.setdefault(key, run_id) != run_id:
            self.wrong.append(f"the key {key} gave {self.keys[key]} and {run_id}")

    def check_record(self, record: dict[str, Any]) -> None:
        """A record as a server shows it that started after everything was told."""
        run_id = record["run_id"]
        killed = record["kind"] == "run_cmd" and (record["output"] or {}).get("exit_code") == KILLED
        if not (killed or ending_of(record) in EXPLAINED) or record["ended_at"] is None:
            said = f"{ending_of(record)} with {record['output']}"
            self.wrong.append(f"record {run_id} says {said}, ended at {record['ended_at']}")
        if record["status"] == "completed" and (promise := self.promised.get(run_id)) is not None:
            self._check_kept(record, promise)
        for name, value in self.told.get(run_id, {}).items():
            if record.get(name, value) != value:
                self.wrong.append(f"record {run_id}: {name} is {record[name]!r}, and {value!r} was told")

    def _check_kept(self, record: dict[str, Any], promise: Promise) -> None:
        run_id, blobs = record["run_id"], record["output_blobs"]
        if record["output"] != promise.output:
            self.wrong.append(f"record {run_id} gives {record['output']}, should be {promise.output}")
        if len(blobs) != len(promise.blobs):
            self.wrong.append(f"record {run_id} has the blobs {blobs}, should have {len(promise.blobs)}")
        self.blobs.update(zip(blobs, promise.blobs, strict=False))

    def check_task(self, task_id: str, told: dict[str, Any]) -> None:
        """A task as its status tells it."""
        self.counts[f"task {told['reason'] or told['status']}"] += 1
        if told["reason"] == "exit" and told["exit_code"] != KILLED and told["stdout_tail"] != self.tasks[task_id]:
            self.wrong.append(f"task {task_id} wrote {told['stdout_tail']!r}, should be {self.tasks[task_id]!r}")

    def check_job(self, job_id: str, told: dict[str, Any]) -> None:
        """A job that has ended: every step that succeeded worked once, behind those before it."""
        self.counts[f"job {told['reason'] or told['status']}"] += 1
        for step, text in zip(told["steps"], self.jobs[job_id], strict=True):
            wrong = step["status"] == "succeeded" and step["stdout_tail"] != text
            if wrong or (step["status"] != "succeeded" and told["status"] == "succeeded"):
                self.wrong.append(f"job {job_id} is {told['status']}, and a step {step}, should be {text!r}")

    def check_blob(self, blob_id: str, found: Bytes | None) -> None:
        """What a server gives for it; None when there is no such blob."""
        if blob_id in self.doubtful and found is None:
            return
        expected = None if blob_id in self.deleted else self.blobs[blob_id]
        if found != expected:
            self.wrong.append(f"{blob_id} is {found}, should be {expected}")


def ending_of(run: dict[str, Any]) -> tuple[str, str, str | None]:
    error = run.get("error")
    return run["status"], str(run.get("outcome")), error["type"] if error else None


def watch_endings(data_dir: Path) -> None:
    """Have the database itself note each change of a record that ends it or comes later."""
    with closing(sqlite3.connect(data_dir / "skillyard.db", timeout=30)) as database:
        database.executescript(_AUDIT)


def ended_badly(data_dir: Path) -> Iterator[str]:
    """Records that changed after their end, or ended without a change; a key or an id that two records have."""
    with closing(sqlite3.connect(f"file:{data_dir / 'skillyard.db'}?mode=ro", uri=True, timeout=30)) as database:
        for run_id, was in database.execute(
            "SELECT run_id, was FROM test_endings WHERE was IN ('completed', 'failed')"
        ):
            yield f"record {run_id} changed when it was {was} already"
        for run_id, times in database.execute(
            "SELECT run_id, count(*) FROM test_endings GROUP BY run_id HAVING count(*) > 1"
        ):
            yield f"record {run_id} ended {times} times"
        for (run_id,) in database.execute(
            "SELECT run_id FROM runs WHERE ended_at IS NOT NULL AND run_id NOT IN (SELECT run_id FROM test_endings)"
        ):
            yield f"record {run_id} is ended and never was running"
        for column in ("run_id", "idempotency_key"):
            query = f"SELECT {column} FROM runs WHERE {column} IS NOT NULL GROUP BY {column} HAVING count(*) > 1"
            yield from (f"{column} {value} is in two records" for (value,) in database.execute(query))


def strange_files(data_dir: Path) -> list[str]:
    """Whatever is in a data directory whose server was stopped and that does not belong there."""
    return sorted(str(path.relative_to(data_dir)) for path in data_dir.rglob("*") if not _belongs(path, data_dir))


_FILES = {
    *("lock", "token", "tokens.json", ".tokens.json.lock", "skillyard.db", "skillyard.db-wal", "skillyard.db-shm"),
    *("catalogue.db", "catalogue.db-wal", "catalogue.db-shm"),
    *("secrets.sealed", ".secrets.sealed.lock", "secrets.key", "config.toml"),
    *("run/sessions/.sessions.lock", "run/secrets/.secrets.lock"),
    *("run/groups", "run/keeper.lock", "run/keeper.log", "run/gate/gate.lock", "run/gate/gate.log"),
}
_DIRECTORIES = {
    "blobs",
    "blobs/sha256",
    "blobs/tmp",
    "environments",
    "environments/locks",
    "run",
    "run/gate",
    "run/root",
    "run/secrets",
    "run/sessions",
    "run/spool",
    "skills",
    "snapshots",
    "uploads",
}


def _belongs(path: Path, data_dir: Path) -> bool:
    name = str(path.relative_to(data_dir))
    if name in _DIRECTORIES:
        return path.is_dir()
    if name in _FILES or (path.is_file() and path.match("blobs/sha256/??/" + "?" * 64)):
        return path.is_file()
    if name.startswith("blobs/sha256/"):
        return path.is_dir() and len(path.name) == 2
    return name.startswith("skills/") or (
        name.startswith("snapshots/") and not path.relative_to(data_dir).parts[1].startswith(".")
    )
