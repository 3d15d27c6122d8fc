"""The battery over the shipped walls: everything is contained, and what is benign works. As whoever runs the tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from skillyard.config.settings import load_settings
from skillyard.domain.sandbox.guarantees import PROTECTIONS
from skillyard.runtime import Runtime
from skillyard.sandbox.registry import nature
from skillyard.testing.attacks.attack import FAILURES, Attack, Verdict
from skillyard.testing.attacks.canaries import PREFIX, Canaries, planted, planted_file
from skillyard.verify.battery import Finding, fight
from skillyard.verify.families import everything
from skillyard.verify.home import SKILL, own_runtime
from skillyard.verify.site import Site, at_home
from tests.conformance.sandbox.gvisor_ground import absent
from tests.hosts.landlock.host import TOO_OLD

pytestmark = pytest.mark.anyio
ATTACKS = everything()
MAY_NOT_APPLY = {"benign-numpy", "namespaces-shared-uid", "memory-kernel-memory"}
"""The environment has no numpy; an ordinary user has one id to give, and nobody who counts the kernel's memory."""


SOME = {
    "files-places", "files-climbing", "proc-settings", "writing-names", "special-files-host-devices",
    "privileges-other-ids", "privileges-filter", "namespaces-new", "processes-stay", "processes-touch",
    "network-families", "network-meet-by-ports", "syscalls-tracing", "memory-anonymous", "disk-bytes-tmp",
    "limits-fork", "limits-time-sleep", "leftovers-files", "secrets-leaving", "canaries-files", "canaries-listeners",
    "benign-asyncio", "benign-sockets", "benign-event-loop", "benign-files", "benign-skill", "benign-subprocess",
}  # fmt: skip
NEEDS_NAMESPACES = {"benign-asyncio", "benign-sockets"}
NEEDS_A_WAY_OUT = {attack.name for attack in ATTACKS if attack.family == "egress"}
"""Isolations that give no run a network have nothing to get round."""
NEEDS_PORTS = {attack.name for attack in ATTACKS if attack.family in ("answers", "callers", "floods")}
"""Isolations that forward no ports expose no services."""
TELLS_NOTHING_IN_GVISOR = {
    *(f"namespaces-shared-{kind}" for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")),
    "disk-inodes", "disk-directories", "disk-hard-links", "privileges-mapped-ids", "processes-peer-number",
}  # fmt: skip
"""Its numbers and ids are those of a kernel of the sandbox's own, and its files are that kernel's memory."""


def _told(findings: list[Finding]) -> list[str]:
    return [f"{f.attack.name}: {f.judgement.verdict}: {f.judgement.why}" for f in findings]


async def fought(isolation: str, place: Path, attacks: Sequence[Attack]) -> set[str]:
    """Nothing fails; the names of those that do not apply."""
    with planted() as canaries:
        settings = load_settings(data_dir=place / "unused", policy={"isolation": isolation})
        async with own_runtime(settings, place) as runtime:
            with planted_file(canaries, runtime.data_dir.home):
                site = Site(runtime, None, runtime, canaries)
                await at_home(site)
                findings = await fight(site, attacks, at_once=2)
                assert await canaries.harm() == []
    assert _told([f for f in findings if f.judgement.verdict in FAILURES]) == []
    assert [f.attack.name for f in findings] == [attack.name for attack in attacks]
    return {f.attack.name for f in findings if f.judgement.verdict is Verdict.NOT_APPLICABLE}


@pytest.mark.timeout(300)
async def test_every_attack_is_contained_and_benign_programs_work(tmp_path: Path) -> None:
    assert await fought("native", tmp_path, ATTACKS) <= MAY_NOT_APPLY


@pytest.mark.timeout(120)
async def test_some_of_each_wall_at_the_landlock_level(tmp_path: Path) -> None:
    if TOO_OLD:
        pytest.skip("this kernel's Landlock is too old for the level")
    # an ordinary user's chmod of its own server's files answers success and changes nothing, which errors cannot tell
    some = SOME if os.geteuid() == 0 else SOME - {"canaries-files"}
    assert await fought("landlock", tmp_path, [a for a in ATTACKS if a.name in some]) == NEEDS_NAMESPACES


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_every_attack_at_the_landlock_level(tmp_path: Path) -> None:
    if TOO_OLD:
        pytest.skip("this kernel's Landlock is too old for the level")
    unmet = await fought("landlock", tmp_path, ATTACKS)
    assert (
        unmet
        <= {a.name for a in ATTACKS if set(a.rests_on) & nature("landlock").without}
        | {a.name for a in ATTACKS if a.walls and set(a.walls) <= nature("landlock").without}
        | MAY_NOT_APPLY
        | NEEDS_A_WAY_OUT
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_every_attack_in_gvisor(tmp_path: Path) -> None:
    if reason := absent():
        pytest.skip(reason)
    assert (
        await fought("gvisor", tmp_path, ATTACKS)
        <= MAY_NOT_APPLY | TELLS_NOTHING_IN_GVISOR | NEEDS_A_WAY_OUT | NEEDS_PORTS
    )


async def test_no_session_of_an_attack_outlives_the_battery(tmp_path: Path) -> None:
    """A session goes on without its server, and the battery's directory has no next one."""
    settings = load_settings(data_dir=tmp_path / "unused")
    async with own_runtime(settings, tmp_path) as runtime:
        ran = {"skill_name": SKILL, "command": "true", "session_id": "left"}
        assert (await runtime.call("skills.run_cmd", ran))["status"] == "succeeded"
    async with Runtime(tmp_path / "data", warm=False) as after:
        assert (await after.call("skills.sessions"))["sessions"] == []
        [session] = (await after.call("skills.sessions", {"ended": True}))["sessions"]
    assert (session["session_id"], session["ended_by"] != "lost") == ("left", True)


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
    assert nature("landlock").without < set(PROTECTIONS)
