"""Each limit ends a run with an outcome of its own, and harms nobody else: through a real server, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.client.run import Run
from skillyard.client.sync import SyncClient
from tests.attacks.programs import program
from tests.crash.leftovers import Footprint, idle
from tests.crash.server import Server
from tests.hosts.faults.table import _HOGS, FAULTS, Fault

SMALL = {"memory_mb": 96, "disk_mb": 16, "pids": 48, "timeout_ms": 8_000}
BENIGN = "def main(args):\n    return args"
GROWTH_MB = 192
"""What the server, and its keeper, may hold more than before: a result at its limit takes 16 MiB a few times over."""


class Place:
    """A server whose runs are isolated in one way, and a neighbour who works there."""

    def __init__(self, home: Path, isolation: str) -> None:
        self.server = Server(
            home / "data",
            SKILLYARD_POLICY__ISOLATION=isolation,
            SKILLYARD_GVISOR__READY="0",
            SKILLYARD_OUTPUT__LOG_BYTES=str(1 << 20),
            SKILLYARD_BLOBS__PER_RUN="20",
            SKILLYARD_BLOBS__MAX_BYTES=str(8 << 20),
        )
        self.footprint = Footprint(home / "data")
        self.client = self.server.client()
        try:
            self.enforced = self.benign(self.client)["enforced"]
            self.rss = self.memory()
        except BaseException:
            self.server.kill()
            raise

    def benign(self, client: SyncClient) -> Run:
        run = client.run_code(BENIGN, {"still": "here"}, limits=SMALL)
        assert run.output == {"still": "here"}, dict(run)
        return run

    def memory(self) -> list[int]:
        """Resident MiB of the server and of what it started that is no sandbox."""
        ours = [p.pid for p in self.footprint.look().processes if p.depth <= 2]
        return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20 for pid in ours]

    @property
    def counted(self) -> bool:
        """Whether controllers count memory and processes."""
        return bool(self.enforced["memory"] == "kernel")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    made: dict[str, Place] = {}
    yield made
    for place in made.values():
        place.client.close()
        with place.server:
            pass


def place_of(places: dict[str, Place], isolation: str, home: Path) -> Place:
    if isolation not in places:
        try:
            places[isolation] = Place(home, isolation)
        except AssertionError as error:
            pytest.skip(f"no isolation '{isolation}' here: {error}")
    return places[isolation]


ISOLATIONS = (
    "native",
    pytest.param("landlock", marks=pytest.mark.long),
    pytest.param("gvisor", marks=pytest.mark.long),
)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_ends_its_run_and_nothing_else(
    fault: Fault, isolation: str, places: dict[str, Place], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if isolation in fault.weak:
        pytest.skip(fault.weak[isolation])
    place = place_of(places, isolation, tmp_path_factory.mktemp(isolation))
    beside = Beside(place)
    run = place.client.run_code(_HOGS + program(fault.body), {}, limits={**SMALL, **fault.limits})
    beside.ended()
    ended = (None, None) if run.ok else (run["outcome"], run["error"]["type"])
    assert ended in fault.ends + (() if place.counted else fault.supervised), dict(run)
    idle(place.footprint)
    place.benign(place.client)
    assert max(map(int.__sub__, sorted(place.memory()), sorted(place.rss))) < GROWTH_MB


class Beside:
    """A neighbour's runs, one after the other, for as long as the fault lasts. Each must complete."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._over = threading.Event()
        self._done = 0
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            with self._place.server.client() as client:
                while not self._over.is_set() or not self._done:
                    self._place.benign(client)
                    self._done += 1
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            self._failed.append(error)

    def ended(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert not self._failed, self._failed
