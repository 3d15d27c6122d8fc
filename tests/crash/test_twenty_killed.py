"""kill -9 in the middle of twenty detached runs that have networks, and secrets that the gate delivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.detached import begun_mark, check, ended, is_lost, kinds, start, steps_of
from tests.crash.ledger import strange_files
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import Server
from tests.crash.store import contradictions
from tests.crash.witness import Witness, leaks

VICTIMS = ("server", "gate", "server and gate", "keeper", "server and keeper")
CASES = [
    ("server", 20),
    *[(victims, 6) for victims in VICTIMS[1:]],
    *[pytest.param(victims, 20, marks=pytest.mark.long) for victims in VICTIMS[1:]],
]


def _kill(victims: str, server: Server, footprint: Footprint) -> None:
    """The server first, so that it learns of nothing."""
    if "server" in victims:
        server.kill()
    if "gate" in victims:
        assert footprint.kill_gates(), "there is a gate"
    if "keeper" in victims:
        footprint.kill_keeper()


@pytest.mark.parametrize(("victims", "count"), CASES)
@pytest.mark.timeout(300)
def test_runs_with_network_and_secrets(tmp_path: Path, victims: str, count: int) -> None:
    """Each calls a service through the gate, most with a secret that the gate delivers. The service counts."""
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Witness(tmp_path) as witness:
        places = [witness.plain_at if number % 7 == 3 else witness.at for number in range(count)]
        wanted = [{**steps_of(number), "steps": 16, "pause": 0.4, "at": at} for number, at in enumerate(places)]
        with witness.server(data_dir) as first:
            runs = [start(first, args) for args in wanted]
            marks: list[str | None] = [begun_mark(first, run_id) for run_id in runs[: count // 2]]
            until(lambda: witness.calls[str(count // 2 - 1), "0"], 60, "runs reach the service")
            footprint.look()
            _kill(victims, first, footprint)
            if first.alive:
                _check_all(first, witness, runs, marks + [None] * (count // 2), wanted, victims)
                assert first.stop() == 0, first.log()
        if "server" in victims:
            with witness.server(data_dir) as second:
                _check_all(second, witness, runs, marks + [None] * (count // 2), wanted, victims)
                idle(footprint)
                assert second.stop() == 0, second.log()
        assert witness.strangers == []
    gone(footprint)
    assert contradictions(data_dir) == []
    assert leaks(data_dir) == []
    assert strange_files(data_dir) == []


def _check_all(
    server: Server,
    witness: Witness,
    runs: list[str],
    marks: list[str | None],
    wanted: list[dict[str, Any]],
    victims: str,
) -> None:
    lost = cut = 0
    for run_id, mark, args in zip(runs, marks, wanted, strict=True):
        run = ended(server, run_id)
        if "keeper" in victims and is_lost(run):
            lost += 1
        else:
            assert mark is None or "keeper" not in victims, "its keeper was killed, so it is lost"
            check(server, run_id, mark, args)
            cut += not run["network"]["complete"]
        assert len(witness.starts[str(args["seed"])]) <= 1, "it was started twice"
    assert bool(cut) == ("gate" in victims), "records say where something of the network may be missing"
    if "keeper" in victims:
        assert lost >= len(runs) // 2
    if "server" in victims:
        assert sum("resumed" in kinds(server, run_id) for run_id in runs) >= len(runs) // 2, (
            "it was killed in the middle"
        )
    if victims == "server":
        assert set(witness.calls.values()) == {1}, "a run was started twice"
    again = {**steps_of(0), "seed": len(runs), "pause": 0, "at": witness.at}
    check(server, start(server, again), None, again)
