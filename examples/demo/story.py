"""The parts of the demo, each over the client as an agent's host would call it. A part that does not go as it
should raises DemoFailed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.material import (
    ANSWER,
    ATTACKS,
    CROWD,
    CROWD_LIMITS,
    HEADER,
    HOG,
    HOG_LIMITS,
    HOSTILE,
    QUESTION,
    REGIONS,
    SKILL,
    write_orders,
)
from examples.demo.screen import Screen
from skillyard.client.run import Run
from skillyard.client.sync import SyncClient
from skillyard.faces.cli.render import size


class DemoFailed(Exception):
    """Something did not do what the demo says that it does."""


@dataclass(slots=True)
class Story:
    """``work`` is a directory for its files; the report goes to the file ``report``."""

    yard: SyncClient
    screen: Screen
    work: Path
    report: Path
    rows: int

    def tell(self) -> dict[str, Any]:
        """All of it; the record of the last run. Raises DemoFailed and what the client raises."""
        orders = self.store()
        self.look_round()
        self.run_skill(orders)
        self.run_code(orders)
        return self.attack()

    def store(self) -> str:
        """The id of the blob with the table."""
        path = self.work / "orders.csv"
        self.screen.part("A table goes in as a blob")
        with self.screen.step("a CSV is made") as line:
            made = write_orders(path, self.rows)
            line.text = f"{self.rows:,} rows of {len(HEADER)} columns, {size(made)}"
        with self.screen.step("PUT /blobs") as line:
            blob = self.yard.put_blob(path, "text/csv")
            line.text = f"{_short(blob.blob_id)}, sha256 {blob.sha256[:16]}…"
        _check(blob.size_bytes == made, "the blob has another size than the file")
        return blob.blob_id

    def look_round(self) -> None:
        self.screen.part("The agent looks round")
        with self.screen.step("list_skills") as line:
            names = [skill["name"] for skill in self.yard.list_skills()["skills"]]
            line.text = ", ".join(names)
        _check(SKILL in names, f"{SKILL} is not among the skills")
        with self.screen.step("describe_skill") as line:
            skill = self.yard.describe_skill(SKILL)["skill"]
            line.text = f"{SKILL} {_version(skill)}: {_description(skill)}"

    def run_skill(self, orders: str) -> None:
        self.screen.part("It runs the skill on the blob, in a sandbox of its own")
        with self.screen.step("execute_skill") as line:
            run = self._ended(self.yard.execute_skill(SKILL, {"blob": orders}, input_blobs=[orders]))
            line.text = str(run.output["summary"])
        _check(run.output["rows"] == self.rows, "the skill counted other rows than there are")
        self._cost(run)
        with self.screen.step("GET /blobs") as line:
            fetched = self.yard.get_blob(run.output["report_blob"], self.report)
            line.text = f"{size(fetched.total_bytes)} of {fetched.kind} into {os.path.relpath(self.report)}"
        self.screen.quote(self.report.read_text(encoding="utf-8"))

    def run_code(self, orders: str) -> None:
        self.screen.part(f"It writes Python that imports the skill: {QUESTION}")
        self.screen.quote(ANSWER)
        with self.screen.step("run_code") as line:
            run = self.yard.run_code(ANSWER, {"orders": orders}, mount_skills=[SKILL], input_blobs=[orders])
            line.text = json.dumps(self._ended(run).output)
        _check(run.output["region"] == max(REGIONS, key=lambda name: REGIONS[name]), "another region sells best")
        self._cost(run)

    def attack(self) -> dict[str, Any]:
        """The record of the attack's run."""
        self.screen.part("It writes Python that wants out")
        with self.screen.step("run_code") as line:
            run = self._ended(self.yard.run_code(HOSTILE, timeout_ms=60_000))
            line.text = f"{len(ATTACKS)} attempts in one sandbox"
        tries = run.output["tries"]
        _check(len(tries) == len(ATTACKS), "not every attack was tried")
        for name, (broken, seen) in zip(ATTACKS, tries, strict=True):
            self.screen.row(name, str(seen), good=not broken)
        _check(not any(broken for broken, _ in tries), "an attack succeeded")
        self._crowd()
        self._hog()
        return self._record(run)

    def _crowd(self) -> None:
        """Forks fail, or where processes are only counted from outside, the run is ended."""
        with self.screen.step("run_code") as line:
            run = self.yard.run_code(CROWD, limits=CROWD_LIMITS, timeout_ms=60_000)
            kind = (run.error or {}).get("type")
            seen = f"made {run.output['made']}: {run.output['seen']}" if run.ok else f"{run.status}, {kind}"
            line.text = f"forks without end with {CROWD_LIMITS['pids']} processes allowed: {seen}"
        held = run.output["made"] <= CROWD_LIMITS["pids"] if run.ok else kind == "ProcessLimitExceeded"
        _check(held, "more processes were made than were allowed")

    def _hog(self) -> None:
        with self.screen.step("run_code") as line:
            run = self.yard.run_code(HOG, limits=HOG_LIMITS, timeout_ms=60_000)
            kind = (run.error or {}).get("type")
            line.text = f"a gibibyte with {HOG_LIMITS['memory_mb']} MiB allowed: {run.status}, {kind}"
        _check(kind in ("MemoryLimitExceeded", "MemoryError"), f"taking a gibibyte of memory ended as {kind}")

    def _cost(self, run: Run) -> None:
        """What the record of a run says that it used."""
        record = self._record(run)
        usage = record["usage"]
        self.screen.fact(
            "",
            f"sandbox in {usage['startup_ms']:.1f} ms, cpu {usage['cpu_ms']:,.0f} ms, peak memory "
            f"{size(usage['peak_memory_bytes'])}, ended as '{record['outcome']}'",
        )

    def _record(self, run: Run) -> dict[str, Any]:
        record: dict[str, Any] = self.yard.show_run(run.run_id)["run"]
        return record

    def _ended(self, run: Run) -> Run:
        if not run.ok:
            error = run.error or {}
            raise DemoFailed(f"{run.run_id} failed: {error.get('type')}: {error.get('message')}")
        return run


def _check(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DemoFailed(otherwise)


def _short(blob_id: str) -> str:
    return blob_id if len(blob_id) <= 24 else f"{blob_id[:21]}…"


def _version(skill: dict[str, Any]) -> str:
    return str((skill.get("manifest") or skill).get("version", ""))


def _description(skill: dict[str, Any]) -> str:
    return str((skill.get("manifest") or skill).get("description", ""))
