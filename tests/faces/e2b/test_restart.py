"""Sandboxes and their programs outlive a server that is stopped or killed; an end is kept without one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from e2b import Sandbox, SandboxNotFoundException, SandboxState
from e2b.exceptions import SandboxException

from skillyard.sandbox.native.keepers import homes
from tests.crash.server import Server, _kill_behind, end_kept
from tests.faces.e2b.conftest import ENV, Yard

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    end_kept()


def serving(place: Path) -> Yard:
    return Yard(Server(place, **cast("Any", ENV)))


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_server_that_ends_takes_nothing_along(place: Path, end: signal.Signals, until: Until) -> None:
    yard = serving(place)
    made = yard.create(metadata={"kept": "yes"}, envs={"SHARED": "seen"}, timeout=300)
    made.files.write("kept.txt", "kept")
    loop = "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.2; done"
    ticking = made.commands.run(loop, background=True)
    reading = made.commands.run("read line; echo got $line $SHARED", background=True, stdin=True)
    assert next(iter(ticking))[0] == "tick 1\n"
    still = yard.create(timeout=300)
    still.files.write("kept.txt", "kept while it is paused")
    assert still.pause()
    token, before = made._envd_access_token, made.get_info()
    if end is signal.SIGKILL:
        yard.server.kill()
    else:
        assert yard.server.stop() == 0
        yard.server.kill()
    with serving(place).server as server:
        yard = Yard(server)
        until(lambda: yard.api("GET", f"/sandboxes/{made.sandbox_id}").status_code == 200)
        again = Sandbox.connect(made.sandbox_id, timeout=10, **yard.opts)
        assert again._envd_access_token == token
        told = again.get_info()
        assert (told.metadata, told.started_at) == ({"kept": "yes"}, before.started_at)
        assert abs((told.end_at - before.end_at).total_seconds()) < 5
        assert again.files.read("kept.txt") == "kept"
        assert {each.pid for each in again.commands.list()} >= {ticking.pid, reading.pid}
        ended = again.commands.connect(reading.pid)
        again.commands.send_stdin(reading.pid, "a line\n")
        assert ended.wait().stdout == "got a line seen\n"
        found = again.commands.connect(ticking.pid)
        assert next(iter(found))[0].startswith("tick ")
        assert found.kill()
        assert again.commands.run("echo $SHARED").stdout == "seen\n"
        new = again.commands.run("sleep 100", background=True)
        assert new.pid not in (ticking.pid, reading.pid)
        until(lambda: Sandbox.get_info(still.sandbox_id, **yard.opts).state is SandboxState.PAUSED)
        woken = Sandbox.connect(still.sandbox_id, timeout=60, **yard.opts)
        assert woken.files.read("kept.txt") == "kept while it is paused"
        assert again.kill()


def test_a_time_that_is_over_meanwhile_ends_it(place: Path, until: Until) -> None:
    yard = serving(place)
    made = yard.create(timeout=3)
    yard.server.kill()
    time.sleep(3)
    with serving(place).server as server:
        yard = Yard(server)
        until(lambda: not Sandbox.list(**yard.opts).next_items())
        with pytest.raises(SandboxNotFoundException):
            Sandbox.connect(made.sandbox_id, **yard.opts)


@pytest.mark.parametrize(
    "after_s", [pytest.param(0.0, marks=pytest.mark.long), 0.1, pytest.param(0.4, marks=pytest.mark.long)]
)
def test_a_server_that_is_killed_while_it_pauses_leaves_none_standing(
    place: Path, until: Until, after_s: float
) -> None:
    yard = serving(place)
    made = yard.create(timeout=300)
    made.commands.run("n=0; while :; do n=$((n+1)); echo $n > /tmp/ticks; sleep 0.05; done", background=True)
    until(lambda: made.files.exists("/tmp/ticks"))
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(yard.api, "POST", f"/sandboxes/{made.sandbox_id}/pause", json={})
        time.sleep(after_s)
        yard.server.kill()
        assert pausing.exception() or pausing.result().status_code == 204
    with serving(place).server as server:
        yard = Yard(server)
        until(lambda: yard.api("GET", f"/sandboxes/{made.sandbox_id}").status_code == 200)
        again = Sandbox.connect(made.sandbox_id, timeout=100, **yard.opts)
        seen = again.files.read("/tmp/ticks")
        until(lambda: again.files.read("/tmp/ticks") not in ("", seen))
        assert again.get_info().state is SandboxState.RUNNING
        assert again.kill()


@pytest.mark.long
def test_a_keeper_that_is_killed_takes_its_sandboxes_along(place: Path, until: Until) -> None:
    with serving(place).server as server:
        yard = Yard(server)
        made = yard.create()
        handle = made.commands.run("sleep 100", background=True)
        for home in homes(place / "run"):
            _kill_behind(home / "keeper.sock")
        with pytest.raises(Exception, match=r".") as lost:
            handle.wait()
        assert type(lost.value).__module__ == "e2b.exceptions"
        until(lambda: not made.is_running())
        later: list[Any] = []

        def works() -> bool:
            try:
                later.append(yard.create())
            except SandboxException:  # the next keeper is not there yet
                return False
            return True

        until(works)
        assert later[0].commands.run("echo new").stdout == "new\n"
        later[0].kill()
