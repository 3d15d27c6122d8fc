"""kill -9 at each step of what E2B's SDK asks: of the server, its keeper, and all that is in the sandbox.

The client sees a failure of its SDK's, the next server finds one true record, and nothing else is left.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from tests.crash import e2b_dies_at
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import Server, end_kept
from tests.crash.store import contradictions

pytest.importorskip("e2b", reason="the extra 'e2b' is not installed")
from e2b import Sandbox, SandboxException

from tests.faces.e2b.conftest import ENV, Yard

pytestmark = [pytest.mark.timeout(300)]
KEY = "one"
OLD, NEW = "old" * 100, "new" * 400_000
CREATE = [
    ("records", "insert", "before"),
    ("records", "insert", "while"),
    ("records", "insert", "after"),
    ("backend", "create", "before"),
    ("backend", "create", "while"),
    ("backend", "create", "after"),
    ("records", "change", "before"),
    ("records", "change", "while"),
    ("records", "change", "after"),
]
FILES = [
    ("files", "write", "before"),
    ("files", "write", "while"),
    ("files", "write", "after"),
    ("files", "stat", "before"),
    ("files", "stat", "after"),
    ("programs", "call", "before"),
    ("programs", "call", "while"),
    ("programs", "call", "after"),
]
SHORT = {
    ("server", "backend", "create", "while"),
    ("server", "files", "write", "while"),
    ("keeper", "backend", "create", "while"),
    ("sandbox", "files", "write", "while"),
}


def steps(who: str, *lists: list[tuple[str, str, str]]) -> list[Any]:
    found = [(who, *step) for each in lists for step in each]
    return [pytest.param(s, id="-".join(s), marks=() if s in SHORT else pytest.mark.long) for s in found]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    end_kept()


def serving(place: Path, step: tuple[str, ...] = ()) -> Server:
    """Starts a server that ends what a step says."""
    python = sys.executable
    more = dict(ENV)
    if step:
        script = place.with_name("python")
        script.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {e2b_dies_at.__file__} "$@"\n')
        script.chmod(0o755)
        python, more = str(script), {
            **more, e2b_dies_at.VARIABLE: " ".join(step), "SKILLYARD_TEST_DATA": str(place)
        }  # fmt: skip
    return Server(place, python=python, **cast("Any", more))


def ask(made: Any, step: tuple[str, ...]) -> None:
    """Has the SDK ask for what the step is a part of."""
    if step[1:3] == ("files", "stat"):
        made.files.read("file")
    elif step[1] == "files":
        made.files.write("file", NEW)
    else:
        made.files.rename("file", "moved")


def is_of_the_sdk(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("e2b", "httpx", "httpcore")


def records(server: Server) -> list[dict[str, Any]]:
    with server.client() as client:
        return list(client.list_runs()["runs"])


def over(server: Server, footprint: Footprint, place: Path) -> None:
    """Waits until no sandbox is left, and holds the store to what it says."""
    yard = Yard(server)
    until(lambda: yard.api("GET", "/v2/sandboxes").json() == [], 60, "no sandbox is left")
    until(lambda: all(run["ended_at"] is not None for run in records(server)), 60, "each record has an end")
    idle(footprint, 60)
    until(lambda: not contradictions(place), 60, f"the store agrees with itself: {contradictions(place)}")


@pytest.mark.parametrize("step", steps("server", CREATE))
def test_a_server_killed_while_it_makes_a_sandbox(place: Path, step: tuple[str, ...]) -> None:
    first = serving(place, step)
    footprint = Footprint(place)
    with pytest.raises(Exception, match=r".") as failed:
        Yard(first).create(idempotency_key=KEY)
    assert is_of_the_sdk(failed.value), failed.value
    assert first._process.wait(60) == -signal.SIGKILL
    first.kill()
    with serving(place) as server:
        before = records(server)
        assert len(before) <= 1
        made = Yard(server).create(idempotency_key=KEY)
        assert made.commands.run("echo works").stdout == "works\n"
        [run] = records(server)
        assert run["run_id"].endswith(made.sandbox_id)
        assert [each["run_id"] for each in before] in ([], [run["run_id"]])
        assert made.kill()
        over(server, footprint, place)
        assert [each["outcome"] for each in records(server)] == ["cancelled"]
    gone(footprint, 60)


@pytest.mark.parametrize("step", steps("server", FILES))
def test_a_server_killed_while_it_works_on_files(place: Path, step: tuple[str, ...]) -> None:
    with serving(place) as early:
        made = Yard(early).create(timeout=600)
        made.commands.run(f"printf {OLD} > file")
    first = serving(place, step)
    footprint = Footprint(place)
    until(lambda: Yard(first).api("GET", f"/sandboxes/{made.sandbox_id}").status_code == 200, 60, "it is found")
    with pytest.raises(Exception, match=r".") as failed:
        ask(Sandbox.connect(made.sandbox_id, **Yard(first).opts), step)
    assert is_of_the_sdk(failed.value), failed.value
    assert first._process.wait(60) == -signal.SIGKILL
    first.kill()
    with serving(place) as server:
        yard = Yard(server)
        until(lambda: yard.api("GET", f"/sandboxes/{made.sandbox_id}").status_code == 200, 60, "it is found")
        again = Sandbox.connect(made.sandbox_id, **yard.opts)
        names: set[str] = set()

        def is_attached() -> bool:
            with suppress(SandboxException):  # it is found before that
                names.update(each.name for each in again.files.list("."))
            return bool(names)

        until(is_attached, 60, "it is attached")
        assert len(names & {"file", "moved"}) == 1, names
        assert again.files.read((names & {"file", "moved"}).pop()) in (OLD, NEW)
        assert not {name for name in names if name not in ("file", "moved")}, "nothing half written is left"
        again.files.write("file", "after")
        assert again.files.read("file") == "after"
        assert again.kill()
        over(server, footprint, place)
        assert [run["outcome"] for run in records(server)] == ["cancelled"]
    gone(footprint, 60)


@pytest.mark.parametrize("step", [*steps("keeper", CREATE, FILES), *steps("sandbox", CREATE[5:], FILES)])
def test_a_keeper_or_a_sandbox_killed_meanwhile(place: Path, step: tuple[str, ...]) -> None:
    with serving(place, step) as server:
        yard, footprint = Yard(server), Footprint(place)
        made, failure = None, None
        try:
            made = yard.create(timeout=600)
            made.commands.run(f"printf {OLD} > file")
            ask(made, step)
        except Exception as error:  # noqa: BLE001 - it is looked at
            failure = error
        assert failure is None or type(failure).__module__.startswith("e2b"), failure
        assert server.alive, "it outlives both"
        if made is not None and failure is None:
            with suppress(Exception):  # a keeper that ends before it made one is followed by the next
                made.kill()
        if made is not None:
            until(lambda: not made.is_running(), 60, "the SDK is told that it is gone")
        over(server, footprint, place)
        assert {run["outcome"] for run in records(server)} <= {"lost", "cancelled"}, records(server)

        later: list[Any] = []

        def works() -> bool:
            with suppress(Exception):
                later.append(yard.create())
            return bool(later)

        until(works, 60, "the next one is made")
        assert later[0].commands.run("echo works").stdout == "works\n"
        assert later[0].kill()
        over(server, footprint, place)
    gone(footprint, 60)
