"""kill -9 of the server with twenty tasks at work: each goes on, once, and no byte of either stream is lost."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import SMALL, Server
from tests.crash.store import contradictions

SKILL = "skills.protocol.guide"
STEPS = """
import os, random, sys, time
seed, steps, size = {seed}, {steps}, {size}
numbers = random.Random(seed)
print("begun", os.urandom(16).hex(), flush=True)
for step in range(steps):
    print(step, numbers.randbytes(size // 2).hex(), flush=True)
    print("aside", step, numbers.randbytes(size // 16).hex(), file=sys.stderr, flush=True)
    time.sleep({pause})
open("made.txt", "w").write(str(seed))
sys.exit(seed % 3)
"""
BEGUN = re.compile(r"begun ([0-9a-f]{32})\n")


class Task:
    """A task, and how far its output was read: of a few with much output, it lies in parts by then."""

    def __init__(self, number: int) -> None:
        self.args: dict[str, Any] = {
            "seed": number,
            "steps": 24,
            "size": 100_000 if number % 10 == 0 else 600,
            "pause": 0.3,
        }
        self.id = ""
        self.offset = 0
        self.read = {"stdout": "", "stderr": ""}

    def start(self, server: Server) -> None:
        with server.client() as client:
            asked: dict[str, Any] = {"language": "python", "limits": SMALL, "outputs": [{"path": "made.txt"}]}
            self.id = client.run_cmd_async(SKILL, STEPS.format(**self.args), timeout_sec=600, **asked)["task_id"]

    def page(self, server: Server) -> bool:
        """Reads a page; returns whether it was the last one."""
        with server.client() as client:
            page = client.task_logs(self.id, offset=self.offset, wait_ms=20_000, max_bytes=1 << 20)
        for chunk in page["chunks"]:
            self.read[chunk["stream"]] += chunk["text"]
        assert not page["dropped"]
        self.offset = page["next_offset"]
        return bool(page["complete"])

    def check(self, server: Server) -> None:
        with server.client() as client:
            ended = client.task_watch(self.id, timeout_sec=50, tail_bytes=20)
            kinds = [event["kind"] for event in client.run_events(self.id)["events"]]
            made = [client.read_blob(made["artifact_id"])["preview"] for made in ended["created_artifacts"]]
        while not self.page(server):
            continue
        seed = self.args["seed"]
        assert (ended["status"], ended["reason"]) == ("succeeded" if seed % 3 == 0 else "failed", "exit"), ended
        assert (ended["exit_code"], made) == (seed % 3, [str(seed)])
        begun = BEGUN.match(self.read["stdout"])
        assert begun is not None
        assert {**self.read, "stdout": self.read["stdout"][begun.end() :]} == self.wanted()
        assert (self.read["stdout"][-20:], self.read["stderr"][-20:]) == (ended["stdout_tail"], ended["stderr_tail"])
        assert (kinds.count("running"), kinds.count("resumed")) == (1, 1), kinds

    def wanted(self) -> dict[str, str]:
        numbers, out, err = random.Random(self.args["seed"]), [], []
        for step in range(self.args["steps"]):
            out.append(f"{step} {numbers.randbytes(self.args['size'] // 2).hex()}\n")
            err.append(f"aside {step} {numbers.randbytes(self.args['size'] // 16).hex()}\n")
        return {"stdout": "".join(out), "stderr": "".join(err)}


def _read_until_begun(task: Task, server: Server) -> None:
    until(lambda: task.page(server) or bool(task.read["stdout"]), 60, "it has begun")


@pytest.mark.timeout(300)
def test_twenty_tasks_go_on_with_both_streams(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint, tasks = Footprint(data_dir), [Task(number) for number in range(20)]
    with Server(data_dir) as first:
        for task in tasks:
            task.start(first)
        for task in tasks:
            _read_until_begun(task, first)
        until(lambda: tasks[0].page(first) or len(tasks[0].read["stdout"]) > 1_200_000, 60, "one has a part")
        footprint.look()
        first.kill()
    with Server(data_dir) as second:
        for task in tasks:
            task.check(second)
        idle(footprint)
    gone(footprint)
    assert contradictions(data_dir) == []
