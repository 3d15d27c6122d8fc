"""Detached runs of the skill that takes steps: starting them, and whether they did what they would do undisturbed."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.crash.server import SMALL, Server
from tests.crash.witness import BEGUN, SKILL, STEPS, contents_of, keyed, log_of, output_of


def steps_of(number: int) -> dict[str, Any]:
    size = 300_000 if number % 5 == 0 else 3_000
    return {"seed": number, "steps": 30, "size": size, "pause": 0.1, "exit": 7 if number % 4 == 3 else 0}


def start(server: Server, args: dict[str, Any], **more: Any) -> str:
    with server.client() as client:
        params = {"args": args, "limits": SMALL, "detach": True} | more
        if keyed(args):
            run = client.call("execute_skill", {"name": SKILL, **params})
        else:
            run = client.call("run_code", {"language": "python", "code": STEPS, **params})
    assert run["status"] == "queued", run
    return str(run["run_id"])


def begun_mark(server: Server, run_id: str) -> str:
    """Returns the mark of the start, once it is in the log."""
    with server.client() as client:
        for _ in range(30):
            page = client.call("runs.logs", {"run_id": run_id, "wait_ms": 2000, "max_bytes": 100})
            if found := BEGUN.match(page["content"]):
                return found[1]
    raise AssertionError(f"{run_id} did not begin")


def ended(server: Server, run_id: str) -> dict[str, Any]:
    with server.client() as client:
        for _ in range(6):
            answer = client.call("runs.wait", {"run_id": run_id, "wait_ms": 20_000})
            if answer["ended"]:
                return dict(client.call("runs.show", {"run_id": run_id})["run"])
    raise AssertionError(f"{run_id} did not end; {server.log()}")


def kinds(server: Server, run_id: str) -> list[str]:
    with server.client() as client:
        return [event["kind"] for event in client.call("runs.events", {"run_id": run_id})["events"]]


def whole_log(server: Server, run_id: str) -> str:
    with server.client() as client:
        text, complete, offset = "", False, 0
        while not complete:
            page = client.call("runs.logs", {"run_id": run_id, "offset": offset, "max_bytes": 1 << 20})
            text, complete, offset = text + page["content"], page["complete"], page["next_offset"]
    return text


def check(server: Server, run_id: str, mark: str | None, args: dict[str, Any]) -> None:
    run = ended(server, run_id)
    log = whole_log(server, run_id)
    begun = BEGUN.match(log)
    assert begun is not None, run
    assert mark in (None, begun[1]), "it was started again"
    assert log[begun.end() :] == log_of(args), (run, log)
    with server.client() as client:
        digests = [client.call("blobs.stat", {"blob_id": b})["blob"]["sha256"] for b in run["output_blobs"]]
    assert digests == [hashlib.sha256(content).hexdigest() for content in contents_of(args)]
    if args["exit"]:
        assert (run["status"], run["outcome"]) == ("failed", "exit")
        assert "code 7" in run["error"]["message"]
    else:
        assert (run["status"], run["outcome"], run["output"]) == ("completed", "exit", output_of(args))
    assert kinds(server, run_id).count("running") == 1


def is_lost(run: dict[str, Any]) -> bool:
    return (run["status"], run["outcome"], run["error"] and run["error"]["type"]) == ("failed", "lost", "SandboxLost")
