"""Many sandboxes at once, each with a policy of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.gate.programs.attempts import program
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.web import Answer, Asked
from tests.conformance.gate.programs.yard import Told

PATIENCE_S = 200
OWN = """
    port, mine = args["port"], args["mine"]
    deadline = time.monotonic() + args["patience_s"]
    while "all here" not in (said := told(http, f"{mine}:{port}", "/together")):
        if time.monotonic() > deadline:
            return {"alone": said}
        time.sleep(0.2)
    found = {}
    for name in (mine, *args["others"]):
        found[name] = [told(direct, name, port), told(http, f"{name}:{port}"), told(connect, f"{name}:{port}"),
                       told(socks, 3, name, port)]
    return {name: ["works" if "hello" in said else said[:60] for said in all] for name, all in found.items()}
"""


@pytest.mark.timeout(120)
def test_twenty_reach_each_their_own(place: Place) -> None:
    _each_its_own(place, 20)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_reach_each_their_own(place: Place) -> None:
    _each_its_own(place, 200)


def _each_its_own(place: Place, count: int) -> None:
    """All of them are there before any of them tries."""
    world, here, lock = place.world, set[str](), threading.Lock()

    def together(asked: Asked) -> Answer:
        with lock:
            here.add(asked.headers["host"])
        return 200, {}, b"all here" if len(here) == count else b"wait"

    world.routes["/together"] = together
    world.seen.clear()
    port = world.ports["http"]

    def go(number: int) -> Told:
        others = [f"s{(number + step) % count}.yard.test" for step in (1, count // 2)]
        args = {"port": port, "mine": f"s{number}.yard.test", "others": others, "patience_s": PATIENCE_S}
        limits = {"memory_mb": 64, "disk_mb": 16, "pids": 16, "timeout_ms": 2 * PATIENCE_S * 1000}
        return place.yard.go(program(OWN), [f"s{number}.yard.test:{port}"], args, limits=limits)

    with ThreadPoolExecutor(count) as threads:
        results = list(threads.map(go, range(count)))
    for number, told in enumerate(results):
        mine = f"s{number}.yard.test"
        assert told.output[mine] == ["works"] * 4, (mine, told.output)
        assert [name for name, said in told.output.items() if name != mine and "works" in said] == []
        assert {one["host"] for one in told.allowed()} == {mine}
        assert {one["host"] for one in told.refused()} == set(told.output) - {mine}
    assert len({asked.headers["host"] for asked in world.seen}) == count
