"""Sandboxes are paused with their memory, and go on where they were."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from e2b import Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import SandboxException, SandboxNotRunningException

from tests.faces.e2b.conftest import Yard

Until = Callable[[Callable[[], object]], None]
TICK = "n=0; while :; do n=$((n+1)); echo $n > /tmp/ticks; sleep 0.05; done"


def ticks(sandbox: Any) -> int:
    return int(sandbox.commands.run("cat /tmp/ticks").stdout or 0)


def test_a_paused_sandbox_stands_still_and_goes_on(yard: Yard, until: Until) -> None:
    made = yard.create(metadata={"pausing": "1"}, timeout=100)
    ticking = made.commands.run(TICK, background=True)
    made.commands.run("sleep 1000 & kill -STOP $!; echo $! > /tmp/stood", background=True)
    until(lambda: made.files.exists("/tmp/ticks") and ticks(made) > 2)
    assert made.pause()
    assert not made.pause()
    assert made.get_info().state is SandboxState.PAUSED
    assert not made.is_running()
    assert made.get_metrics() == []
    query = SandboxQuery(metadata={"pausing": "1"}, state=[SandboxState.PAUSED])
    assert [each.sandbox_id for each in Sandbox.list(query=query, **yard.opts).next_items()] == [made.sandbox_id]
    with pytest.raises(SandboxNotRunningException):
        made.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        made.files.read("/tmp/ticks")
    with pytest.raises(SandboxException, match="is paused"):
        made.set_timeout(10)
    again = Sandbox.connect(made.sandbox_id, timeout=60, **yard.opts)
    assert again.is_running()
    seen = ticks(again)
    until(lambda: ticks(again) > seen)
    assert "T" in again.commands.run("cut -d' ' -f3 /proc/$(cat /tmp/stood)/stat").stdout, "it stood still before"
    assert ticking.pid in {each.pid for each in again.commands.list()}
    assert again.kill()


FLEES = """
import os, time
seen = os.open("/tmp/seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    os.write(seen, b"%f\\n" % time.monotonic())
    if os.fork():
        os._exit(0)
"""
"""It is another process all the time, and writes down when it lives."""


def test_no_process_gets_away(yard: Yard, until: Until) -> None:
    made = yard.create(timeout=100)
    made.files.write("flees.py", FLEES)
    made.commands.run("while :; do kill -CONT -1; done", background=True)
    made.commands.run("exec python3 flees.py", background=True)
    until(lambda: made.files.exists("/tmp/seen"))
    assert made.pause()
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 0.5)
    ended = time.monotonic()
    assert made.connect(timeout=60, **yard.opts).is_running()

    def seen() -> list[float]:
        return [float(each) for each in made.files.read("/tmp/seen").split()]

    until(lambda: seen()[-1] > ended)
    assert not [each for each in seen() if began < each < ended]
    assert made.pause()
    assert made.kill(), "a paused sandbox can be ended"
    assert not made.is_running()


def test_the_end_of_its_time_pauses_it_and_a_request_wakes_it(yard: Yard, until: Until) -> None:
    made = yard.create(timeout=3, lifecycle={"on_timeout": "pause", "auto_resume": True})
    told = made.get_info().lifecycle
    assert (told["on_timeout"], told["auto_resume"]) == ("pause", True)
    made.files.write("kept", "kept")
    until(lambda: made.get_info().state is SandboxState.PAUSED)
    assert made.files.read("kept") == "kept"
    assert made.get_info().state is SandboxState.RUNNING
    assert made.kill()


def test_files_alone_are_never_kept(yard: Yard, sandbox: Any) -> None:
    with pytest.raises(SandboxException, match="with their memory"):
        sandbox.pause(mode="filesystem")
    with pytest.raises(SandboxException, match="with their memory"):
        yard.create(lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}})


def test_nobody_pauses_or_wakes_the_sandbox_of_another(yard: Yard) -> None:
    made = yard.create(timeout=60)
    token = yard.token_of("sleeper")
    path = f"/sandboxes/{made.sandbox_id}"
    assert yard.api("POST", f"{path}/pause", token, json={}).status_code == 404
    assert made.is_running()
    assert made.pause()
    for call in ("connect", "resume"):
        assert yard.api("POST", f"{path}/{call}", token, json={"timeout": 5}).status_code == 404
    headers = {"E2b-Sandbox-Id": made.sandbox_id, "X-Access-Token": "x"}
    assert yard.ask("POST", "/process.Process/List", headers, json={}).status_code == 401
    assert made.get_info().state is SandboxState.PAUSED
    assert yard.api("POST", f"{path}/connect", json={"timeout": 5, "memory": False}).status_code == 400
    assert yard.api("POST", f"{path}/resume", json={"autoPause": True}).status_code == 400
    assert yard.api("POST", f"{path}/resume", json={"timeout": 30}).status_code == 201
    assert yard.api("POST", f"{path}/resume", json={}).status_code == 409
    made.kill()
