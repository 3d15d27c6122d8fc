"""A task in a session with a file, and one alone, which are at work when their server is killed."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.crash.leftovers import until
from tests.crash.server import SMALL

SKILL = "skills.protocol.guide"
_SESSION = "a"
_NUMBERS = "".join(f"{number}\n" for number in range(1, 100_001))


def started(client: Any) -> tuple[str, str]:
    """Starts both; returns their ids once they are at work."""
    client.run_cmd(SKILL, "echo kept > ../kept.txt", session_id=_SESSION, limits=SMALL)
    in_session = client.run_cmd_async(SKILL, "sleep 2; cat ../kept.txt", session_id=_SESSION, limits=SMALL)
    alone = client.run_cmd_async(SKILL, "seq 1 100000; sleep 3; echo end", limits=SMALL)
    for task in (in_session, alone):
        until(partial(works, client, task), 60, "it runs")
    return in_session["task_id"], alone["task_id"]


def ended_well(client: Any, in_session: str, alone: str) -> None:
    """Both end with all their output, and the session has its file still."""
    ended = client.task_watch(in_session, timeout_sec=60)
    assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "kept\n"), ended
    ended = client.task_watch(alone, timeout_sec=60, tail_bytes=20)
    assert (ended["status"], ended["stdout_tail"]) == ("succeeded", f"{_NUMBERS}end\n"[-20:]), ended
    assert client.run_cmd(SKILL, "cat ../kept.txt", session_id=_SESSION, limits=SMALL)["stdout"] == "kept\n"


def works(client: Any, task: dict[str, Any]) -> bool:
    return str(client.task_status(task_id=task["task_id"])["status"]) == "running"
