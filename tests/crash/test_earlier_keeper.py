"""A server that finds a keeper or a gate of another version: by a label, of the next release, of an earlier commit."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skillyard.client.errors import ClientError
from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec, Stream, Terminal
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.keeper.service import Service
from skillyard.sandbox.native.keepers import homes, other_versions
from skillyard.sandbox.native.launch import keeper_lives, version_of
from skillyard.sandbox.native.protocol import PROTOCOL, SINCE
from skillyard.sandbox.native.sandbox import NativeProcess
from tests.crash.leftovers import until
from tests.crash.releases import BEFORE_COMMANDS, earlier_release, next_release
from tests.crash.server import SMALL, Server

WAITS = (
    "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(args['seconds'])\n    return 'done'\n"
)
COUNTS = """
import time
def main(args):
    for number in range(args["steps"]):
        print(number, flush=True)
        time.sleep(0.1)
    return args["steps"]
"""
CALLS = """
import os, time, urllib.request
def main(args):
    me, left = os.urandom(4).hex(), 200
    for step in range(args["steps"]):
        while True:
            try:
                urllib.request.urlopen(f"http://{args['at']}/{me}/{step}", timeout=30).read()
                break
            except OSError:  # the gate is changed over
                left -= 1
                if not left:
                    raise
                time.sleep(0.1)
        time.sleep(0.1)
"""


class Origin:
    """A web server that counts what it was asked for: the witness of what runs did, whatever records say."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        origin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.removeprefix(f"http://{origin.at}")
                origin.asked.append(path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"saw " + path.encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.2", 0), Handler)
        self.at = f"127.0.0.2:{self._http.server_address[1]}"

    def __enter__(self) -> Origin:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


KEEPER = "skillyard.sandbox.native.keeper import main as m; m.PROTOCOL = {}; from {}"
OLD = SINCE["terminal"] - 1
"""A version that lacks an operation for what it holds."""


class Older(NativeBackend):
    """Its keeper says that it is of an earlier version."""

    program = KEEPER.format(OLD, NativeBackend.program)


class Newer(NativeBackend):
    """Its keeper says that it is of the version after this one."""

    program = KEEPER.format(PROTOCOL + 1, NativeBackend.program)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "run"


@pytest.fixture
async def backend(run_dir: Path) -> AsyncIterator[NativeBackend]:
    made = NativeBackend(run_dir)
    yield made
    await made.close()  # so that it looks for all keepers again
    for held in await made.survey():
        await made.destroy(held.handle)
    await made.close()


async def left(kind: type[NativeBackend], run_dir: Path, monkeypatch: pytest.MonkeyPatch, *keys: str) -> list[str]:
    """Returns the handles of sandboxes that a server of another version made before it was killed."""
    version = PROTOCOL + 1 if kind is Newer else OLD
    with monkeypatch.context() as patched:
        patched.setattr("skillyard.sandbox.native.keepers.PROTOCOL", version)
        server = kind(run_dir)
        await server.stats()
        handles = [(await server.create(SandboxSpec(owner=Owner.TASK), key)).handle for key in keys]
        for handle in handles:
            code = "import time; print('begun', flush=True); time.sleep(200)"
            await (await server.attach(handle)).start(Argv(("python3", "-c", code)), id="work")
        assert server._link is not None
        server._link.close()
    assert version_of(run_dir) == version
    return handles


async def begun(process: NativeProcess) -> str:
    """Returns the first words of a program."""
    async for piece in process.output(Stream.STDOUT):
        return piece.decode()
    return ""


def test_each_operation_of_a_keeper_has_a_version() -> None:
    operations = {name.removeprefix("_do_") for name in vars(Service) if name.startswith("_do_")}
    assert operations == set(SINCE)
    assert max(SINCE.values()) <= PROTOCOL


@pytest.mark.anyio
async def test_an_older_keeper_that_holds_nothing_is_replaced(
    run_dir: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left(Older, run_dir, monkeypatch)
    told: list[str] = []
    backend.attend(told.append, told.append, told.append)
    assert (await backend.facts())["protocol"] == PROTOCOL
    [line] = told
    assert f"version {OLD} is ended" in line
    assert [home for home in homes(run_dir) if keeper_lives(home)] == [run_dir]


@pytest.mark.anyio
async def test_an_older_keeper_with_work_is_served_beside_a_new_one(
    run_dir: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, destroyed = await left(Older, run_dir, monkeypatch, "killed", "destroyed")
    told: list[str] = []
    backend.attend(told.append, told.append, told.append)
    fresh = await backend.create(SandboxSpec(owner=Owner.TASK), "fresh")
    assert {held.handle for held in await backend.survey()} == {killed, destroyed, fresh.handle}
    assert list(other_versions(run_dir)) == [run_dir]
    assert "holds 2 sandboxes of detached runs" in backend.older
    sandbox = await backend.attach(killed)
    process = await sandbox.process("work")
    assert "begun" in await begun(process)
    with pytest.raises(SandboxFault, match=f"version {OLD} of its protocol, and 'terminal' came with"):
        await sandbox.start(Argv(("true",), terminal=Terminal()), id="on-a-terminal")
    await process.kill("enough")
    assert (await process.wait()).outcome is Outcome.CANCELLED
    await backend.destroy(killed)
    assert "holds a sandbox of a detached run" in backend.older
    assert keeper_lives(run_dir)
    await backend.destroy(destroyed)
    await asyncio.to_thread(until, lambda: not keeper_lives(run_dir), 10, "the older keeper ends with its last sandbox")
    assert backend.older == ""
    assert [held.handle for held in await backend.survey()] == [fresh.handle]
    assert [text.partition(":")[0] for text in told] == [
        f"a keeper of version {OLD} holds 2 sandboxes of detached runs",
        f"the keeper of version {OLD} held nothing any more, and has ended",
    ]


@pytest.mark.anyio
async def test_a_keeper_beside_is_found_again_and_its_place_goes_with_it(
    run_dir: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    [older] = await left(Older, run_dir, monkeypatch, "older")
    fresh = (await backend.create(SandboxSpec(owner=Owner.TASK), "fresh")).handle
    await backend.close()
    second = NativeBackend(run_dir)
    assert {held.handle for held in await second.survey()} == {older, fresh}
    await second.destroy(older)
    await second.destroy(fresh)
    await second.close()
    await asyncio.to_thread(until, lambda: not any(map(keeper_lives, homes(run_dir))), 10, "both keepers end")
    await backend.facts()
    assert [home for home in homes(run_dir) if keeper_lives(home)] == [run_dir]
    assert list(homes(run_dir)) == [run_dir]


@pytest.mark.anyio
async def test_an_older_keeper_that_dies_takes_its_own_alone(
    run_dir: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    [older] = await left(Older, run_dir, monkeypatch, "older")
    fresh = await backend.create(SandboxSpec(owner=Owner.TASK), "fresh")
    work = await (await backend.attach(older)).process("work")
    still = await fresh.start(Argv(("python3", "-c", "import time; time.sleep(200)")), id="still")
    link = backend._keepers.of(older)
    assert link is not None
    answer, _ = await link.answer({"op": "stats"})
    link.close()  # as if it had died
    assert (await work.wait()).outcome is Outcome.LOST
    assert backend.older == ""
    await still.kill("enough")
    assert (await still.wait()).outcome is Outcome.CANCELLED
    assert answer["lent"] == 1


@pytest.mark.anyio
async def test_a_newer_keeper_is_refused(
    run_dir: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    [kept] = await left(Newer, run_dir, monkeypatch, "kept")
    with pytest.raises(SandboxFault, match=f"version {PROTOCOL + 1} of its protocol, this server {PROTOCOL}: start"):
        await backend.facts()
    with monkeypatch.context() as patched:
        patched.setattr("skillyard.sandbox.native.keepers.PROTOCOL", PROTOCOL + 1)
        after = Newer(run_dir)
        assert [held.handle for held in await after.survey()] == [kept]
        await after.destroy(kept)
        await after.close()


def start(server: Server, code: str, **more: Any) -> str:
    params = {"language": "python", "code": code, "limits": SMALL, "detach": True} | more
    with server.client() as client:
        return str(client.call("run_code", params)["run_id"])


def record(server: Server, run_id: str) -> dict[str, Any]:
    """Returns the record of a run that has ended."""
    with server.client() as client:
        for _ in range(6):
            if client.call("runs.wait", {"run_id": run_id, "wait_ms": 10_000})["ended"]:
                return dict(client.call("runs.show", {"run_id": run_id})["run"])
    raise AssertionError(f"{run_id} did not end; {server.log()}")


def log_of(server: Server, run_id: str) -> str:
    with server.client() as client:
        return str(client.call("runs.logs", {"run_id": run_id, "max_bytes": 1 << 20})["content"])


def readiness(server: Server) -> dict[str, Any]:
    answer = httpx2.get(f"{server.url}/readyz", timeout=10)
    assert answer.status_code == 200
    return dict(answer.json())


def versions_told(server: Server) -> list[str]:
    text = server.data_dir.with_name("server.log").read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line["text"] for line in lines if line["event"] == "part version"]


def test_detached_runs_go_on_under_the_next_release(tmp_path: Path) -> None:
    """Keeper and gate of the next release speak another version. Output, cancel, network and end are as ever."""
    tmp_path.chmod(0o755)
    data, steps = tmp_path / "data", 40
    run_dir = data / "run"
    with Origin() as origin, next_release() as source:
        rules = json.dumps([origin.at])
        env = {"SKILLYARD_NETWORK__RULES": rules, "SKILLYARD_NETWORK__RUN_CODE": rules}
        with Server(data, ready=0, **env) as first:
            counting = [start(first, COUNTS, args={"steps": steps}) for _ in range(2)]
            calling = start(first, CALLS, args={"at": origin.at, "steps": steps})
            waiting = start(first, WAITS, args={"seconds": 200})
            until(lambda: len(origin.asked) > 3, 60, "a run reaches the origin")
            until(lambda: all(log_of(first, run_id) for run_id in (*counting, waiting)), 60, "each run works")
            first.kill()
        with Server(data, ready=0, PYTHONPATH=str(source), **env) as second:
            assert "holds 4 sandboxes of detached runs" in readiness(second)["older"]["keeper"]
            assert version_of(run_dir) == PROTOCOL
            assert version_of(run_dir / f"keeper-{PROTOCOL + 1}") == PROTOCOL + 1
            with second.client() as client:
                assert client.run_code("def main(args): return 2").output == {"result": 2}
                assert client.call("runs.cancel", {"run_id": waiting})["run"]["outcome"] == "cancelled"
            for run_id in counting:
                run = record(second, run_id)
                assert (run["status"], run["outcome"], run["output"]) == ("completed", "exit", {"result": steps})
                assert log_of(second, run_id) == "".join(f"{number}\n" for number in range(steps))
            run = record(second, calling)
            assert run["status"] == "completed", run["error"]
            asked = [path.split("/") for path in origin.asked]
            assert len({me for _, me, _ in asked}) == 1, "it was started twice"
            assert {int(step) for _, _, step in asked} == set(range(steps))
            assert any("it was of version" in each["reason"] for each in run["network"]["connections"])
            assert not run["network"]["complete"]
            until(lambda: not keeper_lives(run_dir), 20, "the older keeper has ended with its last sandbox")
            assert "older" not in readiness(second)
            told = "\n".join(versions_told(second))
            assert re.search("a keeper of version .* holds 4 sandboxes", told)
            assert "held nothing any more, and has ended" in told
            assert "4 sessions of detached runs go on" in told
    assert not any(map(keeper_lives, homes(run_dir)))


def test_a_server_takes_over_from_the_commit_before(tmp_path: Path) -> None:
    """That server has an environment of its own. It is killed while runs work: each record is settled and true."""
    tmp_path.chmod(0o755)
    data = tmp_path / "data"
    with earlier_release() as python:
        old = Server(data, python=python)
        try:
            with old.client() as client:
                done = [client.run_code("def main(args): return args", {"n": n}).run_id for n in range(3)]
                callers = [threading.Thread(target=ended_with_its_server, args=(old,)) for _ in range(4)]
                for caller in callers:
                    caller.start()
                deadline = time.monotonic() + 30
                while len(live := [run for run in client.list_runs()["runs"] if run["status"] == "running"]) < 4:
                    assert time.monotonic() < deadline, live
        finally:
            old.kill()
        for caller in callers:
            caller.join(30)
        with Server(data) as server, server.client() as client:
            assert client.run_code("def main(args): return 2").output == {"result": 2}
            records = {run["run_id"]: run for run in client.list_runs()["runs"]}
            assert [records[run_id]["outcome"] for run_id in done] == ["exit"] * 3
            outputs = [client.call("runs.show", {"run_id": run_id})["run"]["output"] for run_id in done]
            assert outputs == [{"n": n} for n in range(3)]
            assert {records[run["run_id"]]["outcome"] for run in live} == {"lost"}
            assert len(records) == 8
            assert all(run["status"] in ("completed", "failed") for run in records.values())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_detached_runs_of_the_commit_before_commands_go_on(tmp_path: Path) -> None:
    """Output, network and end are as ever, and commands of all kinds work beside them."""
    tmp_path.chmod(0o755)
    data, steps = tmp_path / "data", 120
    with Origin() as origin, earlier_release(BEFORE_COMMANDS) as python:
        rules = json.dumps([origin.at])
        env = {"SKILLYARD_NETWORK__RULES": rules, "SKILLYARD_NETWORK__RUN_CODE": rules}
        with Server(data, ready=0, python=python, **env) as first:
            counting = [start(first, COUNTS, args={"steps": steps}) for _ in range(4)]
            calling = start(first, CALLS, args={"at": origin.at, "steps": steps})
            until(lambda: len(origin.asked) > 3, 60, "a run reaches the origin")
            until(lambda: all(log_of(first, run_id) for run_id in counting), 60, "each run works")
            first.kill()
        with Server(data, ready=0, **env) as second, second.client() as client:
            ran = client.run_cmd("skills.protocol.guide", "echo new > ../kept", session_id="a", limits=SMALL)
            task = client.run_cmd_async("skills.protocol.guide", "cat ../kept", session_id="a", limits=SMALL)
            assert (ran["status"], client.task_watch(task["task_id"], timeout_sec=60)["stdout_tail"]) == (
                "succeeded",
                "new\n",
            )
            for run_id in counting:
                run = record(second, run_id)
                assert (run["status"], run["outcome"], run["output"]) == ("completed", "exit", {"result": steps})
                assert log_of(second, run_id) == "".join(f"{number}\n" for number in range(steps))
            assert record(second, calling)["status"] == "completed"
            asked = [path.split("/") for path in origin.asked]
            assert len({me for _, me, _ in asked}) == 1, "it was started twice"
            assert {int(step) for _, _, step in asked} == set(range(steps))
            client.end_session("a")
    assert not any(map(keeper_lives, homes(data / "run")))


def ended_with_its_server(server: Server) -> None:
    with server.client() as client, pytest.raises(ClientError):
        client.run_code(WAITS, {"seconds": 200})
