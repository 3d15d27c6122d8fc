"""While one principal floods, another's runs keep their latency within a factor. docs/limits.md states it.

The latency under the flood is held to the same tenant's latency without it, measured just before and just after, on
the same server. The flood's own client is niced: it stands for other machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from skillyard.client.errors import Busy
from tests.hosts.neighbours.yard import Yard

P50, P95 = 8.0, 100.0
"""The stated factors, for a machine on which nothing else is tested."""
FLOOR_MS = 20.0
"""Latencies below this are not told apart from a busy machine's noise."""
SERVER_MB, KEEPER_MB = 1024, 256
"""What the server and its keeper may hold at most, under any of the floods."""

SHORT = ("memory hogs",)
LONG = (
    "five hundred runs",
    "fork bombs",
    "huge bodies",
    "spinning",
    "many values",
    "slow uploads",
    "huge results",
    "blobs",
    "logs",
)


COUNTED_ONLY = ("fork bombs", "memory hogs", "spinning")
"""Floods within sandboxes: an ordinary user's scheduler knows processes, not tenants."""


USUAL = {"SKILLYARD_ADMISSION__RUNNING": "64", "SKILLYARD_NATIVE__TENANT_PIDS": "0"}
"""A server as its users start it."""


def counts(yard: Yard) -> bool:
    return bool(yard.enforced["cpus"] == yard.enforced["pids"] == yard.enforced["memory"] == "kernel")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"), **USUAL)
    try:
        made.measure(1)
        yield made
    finally:
        made.server.stop()
        made.server.kill()


def factor(under: float, before: float, after: float) -> float:
    return under / max(FLOOR_MS, before, after)


def hold(yard: Yard, flood: str, seconds: float, request: pytest.FixtureRequest) -> dict[str, Any]:
    if flood in COUNTED_ONLY and not counts(yard):
        pytest.skip("no controllers here: what a flood does within its sandboxes is bounded, and not shared out")
    told: dict[str, Any] = {}
    before = yard.quiet or yard.measure(seconds / 2)
    with yard.flood(flood, told):
        yard.measure(0.5, least=1)  # until it is under way
        under = yard.measure(seconds)
        held = yard.rss_mb(), yard.keeper_mb()
    yard.settle()
    after = yard.quiet = yard.measure(seconds / 2)
    _tell(request, f"{flood}: {before} | flood {under} | after {after} | MiB {held[0]:.0f} {held[1]:.0f} | {told}")
    assert factor(under.p50, before.p50, after.p50) <= P50
    assert factor(under.p95, before.p95, after.p95) <= P95
    assert held[0] <= SERVER_MB
    assert held[1] <= KEEPER_MB
    assert told["refused_without_time"] == 0
    return told


def _tell(request: pytest.FixtureRequest, line: str) -> None:
    """For the record, whether the test fails or not."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{line}", flush=True)


@pytest.mark.parametrize("flood", SHORT)
def test_a_flood_leaves_a_neighbour_its_latency(flood: str, yard: Yard, request: pytest.FixtureRequest) -> None:
    hold(yard, flood, 1.5, request)


@pytest.mark.long
@pytest.mark.parametrize("flood", SHORT + LONG)
def test_a_long_flood_leaves_a_neighbour_its_latency(flood: str, yard: Yard, request: pytest.FixtureRequest) -> None:
    hold(yard, flood, 20.0, request)


def test_a_principal_that_holds_all_it_may_leaves_places(yard: Yard) -> None:
    """However long its runs last: they are asked to spin for a minute, and the neighbour never waits for one."""
    if not counts(yard):
        pytest.skip("no cpu controller here")
    with yard.flood("spinning"):
        running = yard.until_running("greedy", 48)
        begun = time.monotonic()
        yard.measure(0, least=5)
        assert time.monotonic() - begun < 30, "no run of the flood ends before a minute"
        assert running == 48, "of 64 places, a quarter stays free"
    yard.settle()


@pytest.mark.long
def test_who_is_refused_is_told_when_to_come_again(yard: Yard) -> None:
    with yard.flood("five hundred sleeping"), yard.client("greedy") as greedy:
        yard.until_waiting(128)
        with pytest.raises(Busy) as caught:
            greedy.run_code("def main(args):\n    return {}")
        assert 100 <= caught.value.retry_after_ms <= 60_000
    yard.settle()
