"""Detached runs over a real server: answered at once, waited for, followed, and found again after its death."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skillyard.client import Client, errors
from skillyard.client.sync import SyncClient
from tests.crash.server import Server
from tests.faces.server.test_parts import until

COUNTS = """
import time, pathlib
def main(args):
    for number in range(args["to"]):
        print("step", number, flush=True)
        time.sleep(args["pause"])
    return {"counted": args["to"]}
"""
WAITS = {"to": 1, "pause": 600}


class Follower(threading.Thread):
    """Follows a log by offset, from ``offset`` on, until the run has ended or the server has."""

    def __init__(self, server: Server, run_id: str, offset: int = 0) -> None:
        super().__init__()
        self._server, self._run_id = server, run_id
        self.offset, self.said = offset, ""
        self.complete = False
        self.start()

    def run(self) -> None:
        with self._server.client() as client:
            while not self.complete:
                try:
                    page = client.run_logs(self._run_id, offset=self.offset, wait_ms=20_000)
                except (errors.ConnectionFailed, errors.RpcError):
                    return
                self.said += page["content"]
                self.offset, self.complete = page["next_offset"], page["complete"]


def lines(count: int) -> str:
    return "".join(f"step {number}\n" for number in range(count))


def within(seconds: float, call: Callable[[], Any]) -> Any:
    began = time.monotonic()
    value = call()
    assert time.monotonic() - began < seconds
    return value


def test_it_is_answered_at_once_waited_for_and_found(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, server.client() as client:
        args = {"to": 10, "pause": 0.1}
        run = client.run_code(COUNTS, args, detach=True, labels={"team": "crm"}, idempotency_key="k")
        assert (run.ended, run.ok, run.raise_for_status()) == (False, False, run)
        assert run.status in ("queued", "starting", "running")
        again = client.run_code(COUNTS, args, detach=True, labels={"team": "crm"}, idempotency_key="k")
        assert again.run_id == run.run_id
        follower = Follower(server, run.run_id)
        attached = client.run_code(COUNTS, args, idempotency_key="k")
        assert (attached.run_id, attached.output) == (run.run_id, {"counted": 10})
        ended = client.wait_run(run.run_id)
        assert (ended.ended, ended.output, ended["labels"]) == (True, {"counted": 10}, {"team": "crm"})
        follower.join(60)
        assert (follower.said, follower.complete) == (lines(10), True)
        told = client.run_events(run.run_id)
        kinds = [event["kind"] for event in told["events"]]
        assert [kind for kind in kinds if kind in ("queued", "starting", "running", "completed")] == [
            "queued",
            "starting",
            "running",
            "completed",
        ]
        assert told["complete"]
        assert [event["seq"] for event in told["events"]] == list(range(1, len(kinds) + 1))
        assert [line["run_id"] for line in client.list_runs(labels={"team": "crm"})["runs"]] == [run.run_id]
        assert client.list_runs(labels={"team": "erp"})["runs"] == []
        record = client.show_run(run.run_id)["run"]
        assert (record["detached"], record["status"], record["labels"]) == (True, "completed", {"team": "crm"})


@pytest.mark.anyio
async def test_the_other_client_waits_alike(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        async with Client(server.url, server.token) as client:
            run = await client.run_code(COUNTS, {"to": 2, "pause": 0.3}, detach=True)
            assert not (await client.wait_run(run.run_id, timeout_ms=1)).ended
            assert (await client.wait_run(run.run_id, timeout_ms=60_000)).output == {"counted": 2}


def test_a_follower_goes_on_at_the_next_server(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first, first.client() as client:
        run_id = client.run_code(COUNTS, {"to": 40, "pause": 0.1}, detach=True).run_id
        follower = Follower(first, run_id)
        until(lambda: "step 5\n" in follower.said)
        first.kill()
        follower.join(60)
    assert not follower.complete
    with Server(tmp_path / "data") as second, second.client() as client:
        rest = Follower(second, run_id, follower.offset)
        run = client.wait_run(run_id, timeout_ms=60_000)
        rest.join(60)
        assert (run.status, run.output) == ("completed", {"counted": 40})
        assert follower.said + rest.said == lines(40)
        assert run.logs_blob is not None
        kinds = [event["kind"] for event in client.run_events(run_id)["events"]]
        assert kinds[-2:] == ["resumed", "completed"]


def test_waiting_calls_are_bounded_and_a_stop_answers_them(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SKILLYARD_ADMISSION__POLLS_EACH="3")
    answers: list[bool] = []

    def wait(run_id: str) -> None:
        asked = {"run_id": run_id, "wait_ms": 60_000}
        with server.client() as client:
            answers.append(until(lambda: _answer(client, asked))["ended"])

    with server, server.client() as client:
        run_id = client.run_code(COUNTS, WAITS, detach=True).run_id
        waiting = [threading.Thread(target=wait, args=(run_id,)) for _ in range(3)]
        for thread in waiting:
            thread.start()
        until(lambda: _is_busy(client, run_id))
        token = {"Authorization": f"Bearer {server.token}"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "runs.wait", "params": {"run_id": run_id}}
        refused = httpx2.post(f"{server.url}/rpc", headers=token, json=body, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, -32005)
        assert client.run_code(COUNTS, {"to": 1, "pause": 0}).ok
        assert not client.call("runs.wait", {"run_id": run_id, "wait_ms": 0})["ended"]
        assert within(25, server.stop) == 0
        for thread in waiting:
            thread.join(30)
    assert answers == [False] * 3
    with Server(tmp_path / "data") as next_server, next_server.client() as client:
        assert client.cancel_run(run_id)["cancelled"]


def test_a_stop_that_cannot_wait_leaves_detached_runs_at_work(tmp_path: Path) -> None:
    """A run of the server's own outlasts the grace: it is cancelled, and the detached one beside it is not."""
    server = Server(tmp_path / "data", SKILLYARD_SERVER__GRACE_S="0.2")
    with server, server.client() as client:
        detached = client.run_code(COUNTS, {"to": 3, "pause": 1}, detach=True).run_id
        until(lambda: "step 0" in client.run_logs(detached)["content"])
        ended: list[str] = []

        def call() -> None:
            with server.client() as own:
                ended.append(str(own.run_code(COUNTS, WAITS)["outcome"]))

        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: len(client.list_runs(status="running")["runs"]) == 2)
        assert within(25, server.stop) == 0
        caller.join(30)
    assert ended == ["cancelled"]
    with Server(tmp_path / "data") as next_server, next_server.client() as client:
        run = client.wait_run(detached, timeout_ms=60_000)
        assert (run.status, run.output) == ("completed", {"counted": 3})


def _answer(client: SyncClient, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Returns None when too many wait."""
    try:
        return client.call("runs.wait", asked)
    except errors.Busy:
        return None


def _is_busy(client: SyncClient, run_id: str) -> bool:
    return _answer(client, {"run_id": run_id, "wait_ms": 1}) is None


@pytest.mark.parametrize("key", [None, "k"])
def test_a_call_that_is_not_detached_still_ends_with_its_caller(tmp_path: Path, key: str | None) -> None:
    more = {} if key is None else {"idempotency_key": key}
    with Server(tmp_path / "data") as server, server.client() as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "run_code"}
        body["params"] = {"language": "python", "code": COUNTS, "args": WAITS, **more}
        token = {"Authorization": f"Bearer {server.token}"}

        def call() -> None:
            with pytest.raises(httpx2.TimeoutException):
                httpx2.post(f"{server.url}/rpc", headers=token, json=body, timeout=5)

        caller = threading.Thread(target=call)
        caller.start()
        run_id = until(lambda: client.list_runs()["runs"])[0]["run_id"]
        if key is not None:
            live = within(4, lambda: client.run_code(COUNTS, WAITS, detach=True, idempotency_key=key))
            assert (live.run_id, live.status) == (run_id, "running")
        caller.join(60)
        run = client.wait_run(run_id, timeout_ms=30_000)
        assert (run.status, run["outcome"]) == ("failed", "cancelled")
