"""Each wall is needed, and each attack can fail: a wall that is taken away lets named attacks escape."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from skillyard.domain.sandbox.guarantees import PROTECTIONS
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.root import compiled_part
from skillyard.testing.attacks.attack import Verdict
from skillyard.verify.battery import face
from skillyard.verify.families import everything
from skillyard.verify.site import Site
from tests.attacks.verify.catalogue import MUTANTS, NO_MUTANT
from tests.attacks.verify.mutants import TABLE, Claims, Mutant, weakened

pytestmark = pytest.mark.anyio
ATTACKS = {attack.name: attack for attack in everything()}
WHO = "root" if os.geteuid() == 0 else "ordinary"
TRIES, SOME = 3, 2
"""A busy machine may not give an attack what it could take; and how many attacks the short form tries."""
MANY_FILES = 12_000
"""The descriptors that ``limits-descriptors`` tries to open."""
APPLY = [mutant for mutant in MUTANTS if mutant.who in (WHO, "both")]


@pytest.fixture(scope="module")
async def claims(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Claims]:
    """What the unharmed backend enforces here."""
    backend = NativeBackend(tmp_path_factory.mktemp("claims") / "run")
    yield (await backend.probe()).protections
    await backend.close()


@pytest.mark.parametrize("mutant", [mutant for mutant in APPLY if mutant.short], ids=str)
async def test_without_it_attacks_escape(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: Claims
) -> None:
    await _escapes(mutant, mutant.escapes[:SOME], tmp_path, monkeypatch, claims)


@pytest.mark.long
@pytest.mark.parametrize("mutant", APPLY, ids=str)
async def test_without_it_all_of_them_escape(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: Claims
) -> None:
    await _escapes(mutant, mutant.escapes, tmp_path, monkeypatch, claims)


def _processors_to_take() -> float:
    """How many processors two busy processes get here at this moment."""
    spin = (
        "import time\nuntil = time.monotonic() + 0.5\nwhile time.monotonic() < until: pass\nprint(time.process_time())"
    )
    busy = [subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(2)]
    return sum(float(process.communicate()[0]) for process in busy) / 0.5


async def _escapes(
    mutant: Mutant, names: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: Claims
) -> None:
    if TABLE in mutant.inside and compiled_part() is None:
        pytest.skip("the compiled part was not built: python hatch_build.py")
    if "cpus" in mutant.without and _processors_to_take() < 1.2:
        pytest.skip("this machine has no processors to take now")
    if "limits-descriptors" in names and resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY_FILES:
        pytest.skip("the host's own limit of descriptors stands below what the attack opens")
    places = asyncio.Semaphore(len(names) if mutant.at_once else 1)
    async with weakened(mutant, tmp_path, monkeypatch, claims) as site:
        found = await asyncio.gather(*(_why_not(site, name, places) for name in names))
    assert [why for why in found if why] == []


async def _why_not(site: Site, name: str, places: asyncio.Semaphore) -> str:
    """Returns why an attack does not escape in any of its tries."""
    async with places:
        for _ in range(TRIES):
            judgement = (await face(site.fresh(), ATTACKS[name])).judgement
            if judgement.verdict is Verdict.ESCAPED:
                return ""
    return f"{name}: {judgement}"


def test_each_protection_has_a_mutant() -> None:
    assert set(PROTECTIONS) == {name for mutant in MUTANTS for name in mutant.without if not name.startswith("rule: ")}


def test_each_attack_escapes_somewhere_or_says_why_not() -> None:
    hostile = {name for name, attack in ATTACKS.items() if not attack.benign}
    shown = {name for mutant in MUTANTS for name in mutant.escapes}
    assert shown <= hostile
    assert hostile - shown == set(NO_MUTANT)
