"""Servers whose commands run in machines of E2B: kill -9, machines that somebody ends, and a provider that is away."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.errors import Busy, ProtectionMissing, SkillyardError
from skillyard.domain.secret import SecretScope
from skillyard.wiring import make_sealed_stores
from tests.conformance.sandbox import e2b_ground
from tests.conformance.sandbox.e2b_ground import StandIn
from tests.crash import two_tasks
from tests.crash.leftovers import until
from tests.crash.server import SMALL, Server
from tests.crash.two_tasks import SKILL, works
from tests.faces.server.test_parts import readiness
from tests.hosts.e2b_server import API_KEY, NODE

pytestmark = [pytest.mark.timeout(300)]
BOUND_S = 90.0
S3 = """
[skills]
mode = "remote"
timeout_sec_default = 60
reaper_interval_sec = 1
[tools.e2b]
reuse_mode = "{reuse}"
idle_ttl_sec = 1800
hard_ttl_sec = {hard_s}
lock_timeout_sec = {lock_s}
template = "{template}"
api_url = "{url}"
sandbox_url = "{url}"
[e2b]
http_version = "1.1"
[sessions]
grace_s = {grace_s}
"""
USUAL = {"reuse": "none", "template": "base", "hard_s": 21600, "lock_s": 600, "grace_s": 60}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with e2b_ground.stand_in(tmp_path_factory.mktemp("e2b")) as found:
        yield found


@pytest.fixture
def serve(provider: StandIn, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers on one data directory, as S3's table says; at the end the provider holds no machine."""
    data_dir = tmp_path / "data"
    asyncio.run(keep_key(data_dir))

    def start(reuse: str = "none", port: int = provider.port, **others: object) -> Server:
        given = USUAL | {"reuse": reuse, "url": f"http://127.0.0.1:{port}"} | others
        (tmp_path / "s3.toml").write_text(S3.format(**given))
        return Server(data_dir, SKILLYARD_CONFIG=str(tmp_path / "s3.toml"))

    assert provider.machines() == {}
    yield start
    provider.fail()
    left = provider.machines()
    for machine in left:  # other tests begin without them
        provider.lose(machine)
    assert left == {}


async def keep_key(data_dir: Path, key: str = API_KEY) -> None:
    """Puts the provider's key where a server looks for it."""
    settings = load_settings(data_dir=data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    store, _ = make_sealed_stores(settings.secrets, DataDir(data_dir))
    await store.set("E2B_API_KEY", key, SecretScope("skillyard", "skillyard-e2b"))


def test_a_command_has_its_skill_in_a_machine_that_ends_with_it(
    serve: Callable[..., Server], provider: StandIn
) -> None:
    with serve() as server, server.client() as client:
        ready = client.skills_activate(SKILL)
        assert (ready["mode"], ready["dest_dir"]) == ("remote", "/workspace/skill")
        assert provider.machines() == {}, "nothing waits for a call that may not come"
        told = client.run_cmd(SKILL, 'pwd; echo "$HOME/skill"; head -1 SKILL.md; id -u', limits=SMALL)
        assert told["status"] == "succeeded", told
        assert told["stdout"].split() == [ready["dest_dir"], ready["dest_dir"], "---", "65532"]
        assert told["isolation"] == "e2b"
        assert provider.machines() == {}


def test_commands_of_all_four_languages_run(serve: Callable[..., Server], provider: StandIn) -> None:
    template = "node" if NODE.exists() else "base"
    texts = {
        "bash": "echo bash",
        "python": "print('python')",
        "javascript": "console.log('javascript', require('fs').existsSync('SKILL.md'))",
        "typescript": "const word: string = 'typescript'; console.log(word)",
    }
    with serve(template=template) as server, server.client() as client:
        told = {
            name: client.call("skills.run_cmd", {"skill_name": SKILL, "command": text, "language": name})
            for name, text in texts.items()
        }
    if template == "base":
        assert "typescript needs a node that" in told.pop("typescript")["error_message"]
    assert {one["status"] for one in told.values()} == {"succeeded"}, told
    words = {name: one["stdout"] for name, one in told.items()}
    assert words == {name: f"{name} true\n" if name == "javascript" else f"{name}\n" for name in told}


def test_two_first_calls_at_once_make_one_machine(serve: Callable[..., Server], provider: StandIn) -> None:
    with serve("project_agent") as server, server.client() as client, ThreadPoolExecutor(2) as pool:
        provider.fail()
        text = "echo one >> ../calls; cat ../calls"
        calls = [pool.submit(_ran, server, text) for _ in range(2)]
        told = sorted(call.result(BOUND_S)["stdout"] for call in calls)
        assert told == ["one\n", "one\none\n"]
        assert provider.asked().count("POST /v2/sandboxes") == 1
        for row in client.sessions()["sessions"]:
            client.end_session(row["session_id"])


def test_a_call_that_takes_longer_than_a_lock_of_theirs_is_alone_in_its_machine(
    serve: Callable[..., Server], provider: StandIn
) -> None:
    """Ours is held as long as the call works: nobody takes it when a time is over."""
    with serve("project_agent", lock_s=1) as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(_ran, server, "echo begun > ../calls; sleep 4; echo ended >> ../calls")
        until(lambda: client.list_runs(status="running")["runs"] != [], 60, "it works")
        with pytest.raises(Busy):
            client.run_cmd(SKILL, "cat ../calls", limits=SMALL, wait_ms=0)
        assert client.run_cmd(SKILL, "cat ../calls", limits=SMALL, wait_ms=60_000)["stdout"] == "begun\nended\n"
        assert first.result(BOUND_S)["status"] == "succeeded"
        assert len(provider.machines()) == 1
        client.end_session("default")


def test_the_hard_end_of_a_session_cuts_no_command_and_leaves_none_waiting(
    serve: Callable[..., Server], provider: StandIn
) -> None:
    with serve(hard_s=6, grace_s=5) as server, server.client() as client:
        client.skills_activate(SKILL, session_id="a")
        until(lambda: len(provider.machines()) == 1, 60, "it has a machine")
        works = client.run_cmd_async(SKILL, "echo kept > ../kept.txt; sleep 7; echo end", session_id="a")
        waits = client.run_cmd_async(SKILL, "ls ..", session_id="a", wait_ms=60_000)
        ended = client.task_watch(works["task_id"], timeout_sec=60)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "end\n"), ended
        told = client.task_watch(waits["task_id"], timeout_sec=60)
        assert (told["status"], "kept.txt" in told["stdout_tail"]) == ("succeeded", False), "it has another machine"
        assert [row["ended_by"] for row in client.sessions(ended=True)["sessions"]] == ["", "hard"]
        client.end_session("a")
        until(lambda: provider.machines() == {}, 60, "the machine is ended")


def test_tasks_and_sessions_go_on_in_the_next_server(serve: Callable[..., Server], provider: StandIn) -> None:
    with serve() as first:
        with first.client() as client:
            tasks = two_tasks.started(client)
        before = set(provider.machines())
        assert len(before) == 2
        first.kill()
    with serve() as second, second.client() as client:
        two_tasks.ended_well(client, *tasks)
        assert set(provider.machines()) <= before, "no machine was made anew"
        client.end_session("a")
        until(lambda: provider.machines() == {}, 60, "the machines are ended")


@pytest.mark.long
def test_jobs_and_services_go_on_in_the_next_server(serve: Callable[..., Server], provider: StandIn) -> None:
    listens = "python3 -m http.server 8000 --bind 127.0.0.1 --directory /workspace/skill"
    with serve() as first:
        with first.client() as client:
            steps = [{"command": "sleep 2; echo one > ../one"}, {"command": "cat ../one; echo two"}]
            job = client.start_job(SKILL, "jobs", steps, limits=SMALL)
            service = client.run_service(SKILL, listens, expose_ports=[8000], limits=SMALL)
            until(partial(works, client, service), 60, "the service runs")
            until(lambda: client.job_status(job["job_id"])["steps"][0]["status"] == "running", 60, "the job works")
        before = set(provider.machines())
        first.kill()
    with serve() as second, second.client() as client:
        ended = client.job_watch(job["job_id"], timeout_sec=60)
        assert ended["status"] == "succeeded", ended
        assert ended["steps"][1]["stdout_tail"] == "one\ntwo\n", ended
        until(partial(_answers, second, service["task_id"]), 60, "the service answers again")
        assert set(provider.machines()) <= before, "no machine was made anew"
        client.task_cancel(service["task_id"])
        client.end_session("jobs")
        until(lambda: provider.machines() == {}, 60, "the machines are ended")


def test_a_run_of_a_killed_server_is_lost_and_its_machine_ended(
    serve: Callable[..., Server], provider: StandIn
) -> None:
    with serve() as first, ThreadPoolExecutor(1) as pool:
        call = pool.submit(_ran, first, "sleep 1000")
        with first.client() as client:
            until(lambda: client.list_runs(status="running")["runs"] != [], 60, "it runs")
        until(lambda: len(provider.machines()) == 1, 60, "it has a machine")
        first.kill()
        assert call.exception(60) is not None
    with serve() as second, second.client() as client:
        [row] = client.list_runs()["runs"]
        assert row["outcome"] == "lost", row
        until(lambda: provider.machines() == {}, 60, "its machine is ended")


def test_a_machine_that_somebody_ends_is_said_to_be_lost(serve: Callable[..., Server], provider: StandIn) -> None:
    with serve() as server, server.client() as client:
        client.run_cmd(SKILL, "echo kept > ../kept.txt", session_id="a", limits=SMALL)
        task = client.run_cmd_async(SKILL, "echo begun; sleep 1000", session_id="a", limits=SMALL)
        until(lambda: "begun" in client.task_status(task_id=task["task_id"])["stdout_tail"], 60, "it works")
        [machine] = provider.machines()
        provider.lose(machine)
        ended = client.task_watch(task["task_id"], timeout_sec=60)
        assert (ended["status"], ended["reason"]) == ("failed", "lost"), ended
        told = client.run_cmd(SKILL, "ls ..", session_id="a", limits=SMALL, wait_ms=60_000)
        assert "kept.txt" not in told["stdout"], "it is another machine, and the answer does not claim the old files"
        client.end_session("a")


def test_a_provider_that_is_away_for_a_while_loses_nothing(serve: Callable[..., Server], provider: StandIn) -> None:
    with way_to(provider) as (port, cut, mend), serve(port=port) as server, server.client() as client:
        task = client.run_cmd_async(SKILL, "echo begun; sleep 3; seq 1 50000", limits=SMALL)
        until(lambda: "begun" in client.task_status(task_id=task["task_id"])["stdout_tail"], 60, "it works")
        cut()
        failed = client.run_cmd(SKILL, "true", limits=SMALL)
        assert failed["status"] == "failed", failed
        assert "does not answer" in failed["error_message"], failed
        mend()
        ended = client.task_watch(task["task_id"], timeout_sec=90, tail_bytes=12)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "49999\n50000\n"), ended
        assert client.run_cmd(SKILL, "true", limits=SMALL)["status"] == "succeeded"


def test_a_server_that_starts_while_the_provider_is_away_waits_for_it(
    serve: Callable[..., Server], provider: StandIn
) -> None:
    with way_to(provider) as (port, cut, mend):
        with serve(port=port) as server, server.client() as client:
            task = client.run_cmd_async(SKILL, "echo begun; sleep 3; seq 1 50000", limits=SMALL)["task_id"]
            until(lambda: "begun" in client.task_status(task_id=task)["stdout_tail"], 60, "it works")
            server.kill()
        cut()
        with serve(port=port) as server, server.client() as client:
            until(lambda: "e2b" in str(readiness(server)[1]["dead"]), 60, "the server says that it is away")
            mend()
            until(lambda: readiness(server)[0] == 200, 60, "it is back")
            ended = client.task_watch(task, timeout_sec=90, tail_bytes=12)
            assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "49999\n50000\n"), ended


@pytest.mark.long
def test_a_server_with_a_wrong_key_waits_for_the_right_one(serve: Callable[..., Server], tmp_path: Path) -> None:
    asyncio.run(keep_key(tmp_path / "data", "e2b_fedcba9876543210"))
    with serve() as server, server.client() as client:
        status, told = readiness(server)
        assert status == 503
        assert "cannot be used" in told["dead"]["e2b"]
        until(lambda: "refuses the API key" in server.log(), 60, "the log has the reason")
        assert "e2b_fedcba9876543210" not in server.log()
        with pytest.raises(ProtectionMissing, match="refuses the API key"):
            client.run_cmd(SKILL, "true", limits=SMALL)
        asyncio.run(keep_key(tmp_path / "data"))
        until(lambda: readiness(server)[0] == 200, 90, "it is tried again")
        assert client.run_cmd(SKILL, "true", limits=SMALL)["status"] == "succeeded"


def test_a_provider_that_throttles_or_fails_is_named(serve: Callable[..., Server], provider: StandIn) -> None:
    with serve() as server, server.client() as client:
        provider.fail({"path": "POST /v2/sandboxes", "status": 429, "count": 2})
        assert client.run_cmd(SKILL, "true", limits=SMALL)["status"] == "succeeded", "the SDK waits and asks again"
        provider.fail({"path": "POST /v2/sandboxes", "status": 429, "count": 9})
        told = client.run_cmd(SKILL, "true", limits=SMALL)
        assert "rate limit is reached" in told["error_message"], told
        provider.fail({"path": "POST /files", "status": 507, "count": 9, "message": "no space"})
        told = client.run_cmd(SKILL, "true", limits=SMALL)
        assert "no space" in told["error_message"], told
        assert provider.machines() == {}, "the machine that could not be set up is ended"
        provider.fail()
        assert client.run_cmd(SKILL, "true", limits=SMALL)["status"] == "succeeded"


@pytest.mark.long
def test_a_machine_that_cannot_be_ended_is_ended_later(serve: Callable[..., Server], provider: StandIn) -> None:
    with serve() as server, server.client() as client:
        client.run_cmd(SKILL, "true", session_id="a", limits=SMALL)
        provider.fail({"path": "DELETE /sandboxes", "status": 500, "count": 2})
        with suppress(SkillyardError):
            client.end_session("a")
        until(lambda: provider.machines() == {}, 60, "the reaper tries again")


def _ran(server: Server, text: str) -> dict[str, Any]:
    with server.client() as client:
        told: dict[str, Any] = client.run_cmd(SKILL, text, limits=SMALL, wait_ms=60_000)
        return told


def _answers(server: Server, task_id: str) -> bool:
    url = f"{server.url}/services/{task_id}/8000/SKILL.md"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {server.token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return b"---" in answer.read(3)
    except OSError:
        return False


@contextmanager
def way_to(provider: StandIn) -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
    """A port that leads to the provider, and functions that cut and mend the way."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    way = e2b_ground.Way(provider.port)

    def done(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(BOUND_S)

    done(way.mend())
    try:
        yield way.port, lambda: done(way.cut()), lambda: done(way.mend())
    finally:
        done(way.end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(BOUND_S)
        loop.close()
