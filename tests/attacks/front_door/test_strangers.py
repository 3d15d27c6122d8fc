"""What belongs to somebody else is answered as what does not exist: the same bytes, and about the same time."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from skillyard.engine.table import METHODS
from tests.attacks.front_door.conftest import Door, until
from tests.attacks.front_door.wire import Response

CODE = {"language": "python", "code": "def main(args):\n    print('private')\n    return {}"}
WAITING = {**CODE, "code": "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(600)"}
KEY = "the-same-key"

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "list_skills": ({}, {"namespace": "{skill}"}, {"detail": "summary"}),
    "describe_skill": (
        {"name": "{skill}"},
        {"name": "{skill}", "version": "0.1.0"},
        {"name": "{skill}", "detail": "full"},
    ),
    "read_skill_file": ({"name": "{skill}", "path": "SKILL.md"}, {"name": "{skill}", "path": "../x"}),
    "load_skills_protocol_guide": ({},),
    "execute_skill": (
        {"name": "{skill}", "args": {}},
        {"name": "{skill}", "args": {"bad": 1}, "idempotency_key": KEY},
        {"name": "skills.protocol.guide", "input_blobs": ["{blob}"]},
    ),
    "run_code": (
        {**CODE, "input_blobs": ["{blob}"]},
        {**CODE, "mount_skills": ["{skill}"]},
        {**CODE, "input_blobs": ["{blob}"], "idempotency_key": KEY},
    ),
    "create_blob": ({"content": "{blob}", "kind": "none"},),
    "read_blob": ({"blob_id": "{blob}"}, {"blob_id": "{blob}", "mode": "full"}),
    "blobs.list": ({}, {"cursor": "{blob}"}, {"all": True}),
    "blobs.stat": ({"blob_id": "{blob}"},),
    "blobs.delete": ({"blob_id": "{blob}"},),
    "runs.list": ({}, {"cursor": "{run}"}, {"cursor": "{going}"}, {"status": "running"}, {"all": True}),
    "runs.show": ({"run_id": "{run}"}, {"run_id": "{going}"}),
    "runs.logs": ({"run_id": "{run}"}, {"run_id": "{going}"}, {"run_id": "{run}", "offset": 3}),
    "runs.wait": ({"run_id": "{run}"}, {"run_id": "{going}"}, {"run_id": "{run}", "wait_ms": 0}),
    "runs.events": ({"run_id": "{run}"}, {"run_id": "{going}"}, {"run_id": "{run}", "wait_ms": 1000}),
    "runs.cancel": ({"run_id": "{run}"}, {"run_id": "{going}"}, {"run_id": "{going}", "reason": "x"}),
    "runs.set_network": ({"run_id": "{run}", "network": []}, {"run_id": "{going}", "network": ["x.com"]}),
    "policy.explain": ({"targets": ["x.com"]}, {"targets": ["x.com"], "skill": "{skill}"}),
    "policy.show": ({},),
    "server.drain": ({"undo": True}, {"undo": True, "wait_ms": 1}),
    "rpc.discover": ({},),
    "catalogue.versions": ({"name": "{skill}"}, {"name": "{skill}", "history": 1}),
    "catalogue.diff": ({"name": "{skill}", "from": "0.1.0"}, {"name": "{skill}", "from": "0.1.0", "to": "9.9.9"}),
    "catalogue.review": ({"name": "{skill}"}, {"name": "{skill}", "version": "0.1.0"}),
    "catalogue.problems": ({},),
    "catalogue.withdraw": ({"name": "{skill}", "version": "0.1.0"},),
    "catalogue.restore": ({"name": "{skill}", "version": "0.1.0"},),
    "catalogue.pin": ({"name": "{skill}", "version": "0.1.0"},),
    "catalogue.unpin": ({"name": "{skill}"},),
    "catalogue.needs": ({"name": "{skill}"}, {"name": "{skill}", "version": "0.1.0"}),
    "catalogue.approve": ({"name": "{skill}"},),
    "catalogue.revoke": ({"name": "{skill}"},),
    "catalogue.approvals": ({}, {"name": "{skill}"}),
    "environments.list": ({},),
    "environments.show": ({"skill": "{skill}"}, {"skill": "{skill}", "version": "0.1.0"}),
    "environments.build": ({"skill": "{skill}"}, {"skill": "{skill}", "version": "0.1.0", "wait": False}),
    "environments.wheels": ({"skill": "{skill}"},),
    "environments.remove": ({"skill": "{skill}"},),
    "skills.list": ({}, {"namespace": "{skill}"}),
    "skills.load": ({"skill_name": "{skill}"}, {"skill_name": "{skill}", "path": "../x"}),
    "skills.activate": ({"skill_name": "{skill}"}, {"skill_name": "{skill}", "version": "0.1.0"}),
    "skills.run_cmd": (
        {"skill_name": "{skill}", "command": "true"},
        {
            "skill_name": "skills.protocol.guide",
            "command": "true",
            "inputs": [{"artifact_id": "{blob}", "mount_path": "x"}],
        },
    ),
    "skills.run_cmd_async": (
        {"skill_name": "{skill}", "command": "true"},
        {
            "skill_name": "skills.protocol.guide",
            "command": "true",
            "inputs": [{"artifact_id": "{blob}", "mount_path": "x"}],
        },
    ),
    "skills.task_status": (
        {"task_id": "{run}"},
        {"task_id": "{task}"},
        {"task_id": "{task}", "tail_bytes": 0},
        {"provider": "cmd", "task_id": "{task}", "query_command": "true"},
        {"provider": "cmd", "skill_name": "{skill}", "query_command": "true"},
    ),
    "skills.task_watch": ({"task_id": "{task}"}, {"task_id": "{task}", "timeout_sec": 1, "dedupe_key": "k"}),
    "skills.task_logs": ({"task_id": "{task}"}, {"task_id": "{task}", "offset": 3, "wait_ms": 1000}),
    "skills.task_cancel": ({"task_id": "{task}"}, {"task_id": "{task}", "reason": "x"}),
    "skills.read_artifact": ({"artifact_id": "{blob}"}, {"artifact_id": "{blob}", "offset": 1}),
    "skills.sessions": ({}, {"agent": "alice"}),
    "skills.end_session": ({"session_id": "work"}, {"session_id": "work", "agent": "alice"}),
    "skills.run_service": (
        {"skill_name": "{skill}", "command": "true"},
        {
            "skill_name": "skills.protocol.guide",
            "command": "true",
            "inputs": [{"artifact_id": "{blob}", "mount_path": "x"}],
        },
    ),
    "skills.open_service": ({"task_id": "{task}", "port": 8000}, {"task_id": "{run}", "port": 8000}),
    "skills.tasks": ({}, {"cursor": "{task}"}, {"limit": 1}),
    "skills.start_job": (
        {"skill_name": "{skill}", "session_id": "work", "steps": [{"command": "true"}]},
        {
            "skill_name": "skills.protocol.guide",
            "session_id": "work",
            "steps": [{"command": "true", "inputs": [{"artifact_id": "{blob}", "mount_path": "x"}]}],
        },
    ),
    "skills.job_status": ({"job_id": "{job}"}, {"job_id": "{job}", "tail_bytes": 100}),
    "skills.job_watch": ({"job_id": "{job}"}, {"job_id": "{job}", "timeout_sec": 1, "dedupe_key": "k"}),
    "skills.job_cancel": ({"job_id": "{job}"}, {"job_id": "{job}", "reason": "x"}),
    "skills.jobs": ({}, {"cursor": "{job}"}, {"limit": 1}),
    "skills.upload": ({"blob_id": "{blob}"},),
    "skills.set_version": ({"skill_name": "{skill}", "version": "0.1.0"},),
    "skills.disable": ({"skill_name": "{skill}"}, {"skill_name": "{skill}", "enabled": True}),
    "skills.delete": ({"skill_name": "{skill}"}, {"skill_name": "{skill}", "version": "0.1.0"}),
    "secrets.list": ({},),
    "secrets.set": ({"name": "KEY", "value": "v", "skills": "{skill}"},),
    "secrets.bind": ({"name": "KEY", "delivery": "env", "skills": "{skill}"},),
    "secrets.rollback": ({"name": "KEY", "version": 1, "skills": "{skill}"},),
    "secrets.delete": ({"name": "KEY", "skills": "{skill}"},),
    "secrets.audit": ({}, {"name": "KEY"}),
    "tools.list": ({}, {"server": "files"}),
    "tools.call": ({"server": "files", "tool": "read", "arguments": {"path": "{blob}"}},),
    "tools.rows": ({}, {"server": "files"}),
    "tools.refresh": ({"server": "files"},),
    "tools.approve": ({"server": "files", "tools": ["read"]},),
    "tools.revoke": ({"server": "files", "tool": "read"},),
    "tools.servers": ({},),
    "tools.stop": ({"server": "files"},),
}
"""Whatever names an object of somebody else, method by method. A new method needs its row."""


NAMES = ("run", "going", "task", "job", "blob", "skill")


@dataclass(frozen=True)
class Things:
    """Ids by the names that CASES gives them; all of alice's, or all made up in the same form."""

    run: str
    going: str
    task: str
    job: str
    blob: str
    skill: str

    def put_into(self, params: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(params)
        for name in NAMES:
            text = text.replace(f"{{{name}}}", getattr(self, name))
        filled: dict[str, Any] = json.loads(text)
        return filled

    def hidden(self, body: bytes) -> bytes:
        for name in NAMES:
            body = body.replace(getattr(self, name).encode(), f"<{name}>".encode())
        return body


@pytest.fixture(scope="module")
def alices(door: Door) -> Iterator[Things]:
    """She has a run that ended and one that goes on, a blob, and the use of a skill."""
    done = door.result("run_code", {**CODE, "idempotency_key": KEY})
    blob = door.result("create_blob", {"content": "private", "kind": "text/plain"})
    going = _start(door)
    assert door.result("execute_skill", {"name": "demo.length", "args": {"text": "abc"}})["status"] == "completed"
    asked = {"skill_name": "skills.protocol.guide", "command": "echo private; sleep 600", "timeout_sec": 700}
    task = door.result("skills.run_cmd_async", asked)["task_id"]
    until(lambda: door.result("skills.task_status", {"task_id": task})["stdout_tail"])
    steps = {"session_id": "steps", "steps": [{"command": "echo private; sleep 600", "timeout_sec": 700}]}
    job = door.result("skills.start_job", {"skill_name": "skills.protocol.guide", **steps})["job_id"]
    until(lambda: door.result("skills.job_status", {"job_id": job})["steps"][0]["stdout_tail"])
    yield Things(done["run_id"], going, task, job, blob["blob_id"], "demo.length")
    assert door.result("skills.job_cancel", {"job_id": job})["canceled"]
    door.result("skills.end_session", {"session_id": "steps"})
    assert door.result("skills.task_cancel", {"task_id": task}) == {
        "task_id": task, "status": "canceled", "canceled": True,
    }  # fmt: skip
    assert door.result("runs.show", {"run_id": going})["run"]["status"] == "running"
    assert door.result("runs.cancel", {"run_id": going})["cancelled"]
    assert door.result("read_blob", {"blob_id": blob["blob_id"]})["preview"] == "private"


def _start(door: Door) -> str:
    """Its caller goes away at once, and it goes on."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": {**WAITING, "detach": True}}
    with door.wire() as wire:
        wire.send(door.post(json.dumps(body).encode()))
        (run,) = until(lambda: door.result("runs.list", {"status": "running"})["runs"])
    until(lambda: "begun" in door.result("runs.logs", {"run_id": run["run_id"]})["content"])
    return str(run["run_id"])


@pytest.fixture(scope="module")
def made_up(alices: Things) -> Things:
    def other(text: str) -> str:
        return text[:-4] + ("0000" if text[-4:] != "0000" else "1111")

    work = other(alices.run), other(alices.going), other(alices.task), other(alices.job)
    return Things(*work, other(alices.blob), "demo.absent")


def test_each_method_has_its_cases() -> None:
    assert CASES.keys() == METHODS.keys()


@pytest.mark.parametrize(("method", "params"), [(m, p) for m, cases in CASES.items() for p in cases])
def test_anothers_is_as_if_it_were_not(
    door: Door, alices: Things, made_up: Things, method: str, params: dict[str, Any]
) -> None:
    theirs = door.call(method, alices.put_into(params), who="mallory")
    absent = door.call(method, made_up.put_into(params), who="mallory")
    assert (theirs.status, _headers(theirs)) == (absent.status, _headers(absent))
    assert alices.hidden(theirs.body) == made_up.hidden(absent.body)
    assert b"private" not in theirs.body
    assert not set(_ids(alices)) & set(theirs.body.decode().split('"')) - set(_ids_in(alices.put_into(params)))


def _headers(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in ("date", "content-length")}


def _ids(things: Things) -> tuple[str, ...]:
    return tuple(getattr(things, name) for name in NAMES)


def _ids_in(params: dict[str, Any]) -> list[str]:
    return json.dumps(params).split('"')


GETS = (
    (),
    ("Range: bytes=0-0",),
    ("Range: bytes=7-",),
    ('If-None-Match: "{sha256}"',),
    ("If-None-Match: *",),
    ('If-Range: "{sha256}"', "Range: bytes=0-0"),
)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("headers", GETS, ids=str)
def test_anothers_blob_is_as_if_it_were_not(
    door: Door, alices: Things, made_up: Things, method: str, headers: tuple[str, ...]
) -> None:
    sha256 = door.result("blobs.stat", {"blob_id": alices.blob})["blob"]["sha256"]
    sent = [header.format(sha256=sha256) for header in headers]
    theirs, absent = (
        door.ask(door.head(f"{method} /blobs/{things.blob}", *sent, who="mallory"), method)
        for things in (alices, made_up)
    )
    assert theirs.status == absent.status == 404
    assert (alices.hidden(theirs.body), _headers(theirs)) == (made_up.hidden(absent.body), _headers(absent))


def test_a_key_belongs_to_whoever_used_it(door: Door, alices: Things) -> None:
    first = door.result("run_code", {**CODE, "idempotency_key": KEY}, who="mallory")
    assert first["run_id"] != alices.run
    assert door.result("run_code", {**CODE, "idempotency_key": KEY}, who="mallory")["run_id"] == first["run_id"]
    assert door.result("run_code", {**CODE, "idempotency_key": KEY})["run_id"] == alices.run
    assert first["run_id"] not in door.call("runs.list", {}).body.decode()


def test_only_the_owner_sees_what_is_counted_of_all(door: Door) -> None:
    for who, status in (("alice", 403), ("mallory", 403), ("reader", 403), ("owner", 200)):
        assert door.ask(door.head("GET /metrics", who=who)).status == status


def test_a_page_mark_of_another_principal_shows_nothing_more(door: Door, alices: Things) -> None:
    mark = door.result("list_skills", {"limit": 1})["next_cursor"]
    assert mark is not None
    seen = door.result("list_skills", {"cursor": mark}, who="mallory")["skills"]
    assert alices.skill not in {row["name"] for row in seen}


@pytest.mark.parametrize(
    "method",
    [
        "runs.show",
        "runs.logs",
        "runs.wait",
        "runs.events",
        "runs.cancel",
        "runs.set_network",
        "skills.task_watch",
        "skills.task_cancel",
        "blobs.stat",
        "read_blob",
        "blobs.delete",
    ],
)
def test_the_time_tells_nothing(door: Door, alices: Things, made_up: Things, method: str) -> None:
    """Of many alternating calls: a look at a file or a sandbox more would show as a multiple."""
    took: dict[Things, list[float]] = {alices: [], made_up: []}
    with door.wire() as wire:
        for _ in range(40):
            for things, times in took.items():
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": things.put_into(CASES[method][-1])}
                request = door.post(json.dumps(body).encode(), who="mallory")
                began = time.perf_counter()
                wire.send(request).response()
                times.append(time.perf_counter() - began)
    # The least of many is what the work takes; a busy host adds to each, and to one side more than to the other.
    theirs, absent = (statistics.fmean(sorted(times)[:8]) for times in took.values())
    assert theirs < 2.5 * absent
    assert absent < 2.5 * theirs
