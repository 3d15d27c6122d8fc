"""The battery over the shipped walls: everything is contained, and what is benign works. As whoever runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillyard.domain.isolation import waived
from skillyard.domain.protection import PROTECTIONS
from skillyard.settings import Settings
from skillyard.verify.attack import FAILURES, Verdict
from skillyard.verify.battery import Finding, fight
from skillyard.verify.canaries import PREFIX, Canaries, planted, planted_file
from skillyard.verify.families import everything
from skillyard.verify.home import own_runtime
from skillyard.verify.yard import Yard

pytestmark = pytest.mark.anyio
ATTACKS = everything()
MAY_NOT_APPLY = {"benign-numpy", "namespaces-shared-uid", "memory-kernel-memory"}
"""The environment has no numpy; an ordinary user has one id to give, and nobody who counts the kernel's memory."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _told(findings: list[Finding]) -> list[str]:
    return [f"{f.attack.name}: {f.judgement.verdict}: {f.judgement.why}" for f in findings]


@pytest.mark.timeout(300)
async def test_every_attack_is_contained_and_benign_programs_work(tmp_path: Path) -> None:
    with planted() as canaries:
        async with own_runtime(Settings(data_dir=tmp_path / "unused"), tmp_path) as runtime:
            with planted_file(canaries, runtime.data_dir.home):
                yard = Yard(runtime, None, runtime, canaries)
                findings = await fight(yard, ATTACKS, at_once=2)
                assert await canaries.harm() == []
    assert _told([f for f in findings if f.judgement.verdict in FAILURES]) == []
    unmet = {f.attack.name for f in findings if f.judgement.verdict is Verdict.NOT_APPLICABLE}
    assert unmet <= MAY_NOT_APPLY
    assert [f.attack.name for f in findings] == [attack.name for attack in ATTACKS]


def _break_off(place: Path, seen: list[Canaries]) -> None:
    with planted() as canaries, planted_file(canaries, place):
        seen.append(canaries)
        assert all(Path(path).exists() for path in canaries.files)
        raise RuntimeError("the battery breaks off")


def test_what_was_planted_is_removed(tmp_path: Path) -> None:
    before, seen = dict(os.environ), list[Canaries]()
    with pytest.raises(RuntimeError, match="breaks off"):
        _break_off(tmp_path, seen)
    canaries = seen[0]
    paths = [*canaries.files, canaries.names["path"], canaries.names["fifo"], f"/proc/{canaries.pid}"]
    assert [path for path in paths if Path(path).exists()] == []
    assert list(tmp_path.glob(f".{PREFIX}*")) == []
    assert dict(os.environ) == before


def test_everything_is_told_and_tests_something_that_there_is() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) == len(set(names))
    for attack in ATTACKS:
        assert attack.tries.endswith("."), attack.name
        assert set(attack.walls) <= set(PROTECTIONS), attack.name
        assert attack.benign or attack.invariants, attack.name
        assert set(attack.invariants) <= set(range(1, 11)), attack.name
    assert {number for attack in ATTACKS for number in attack.invariants} == set(range(1, 11))
    assert {wall for attack in ATTACKS for wall in attack.walls} >= set(PROTECTIONS)
    assert waived("landlock") < set(PROTECTIONS)
