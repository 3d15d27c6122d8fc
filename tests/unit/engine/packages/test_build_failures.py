"""What is said of builds that fail, and of isolations that cannot build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillyard.config.packages import PYPI, PackagesSettings
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput, SandboxFault
from skillyard.domain.network.policy import parse_rules
from skillyard.domain.package.environment import Wanted
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.packages.build import MOST_BYTES, BuildLog
from skillyard.engine.packages.building import SandboxBuilder
from skillyard.engine.packages.environment import BuildFailed
from skillyard.engine.packages.steps import MOST, explained
from tests.unit.engine.conftest import Rig

CONFIG = PackagesSettings(memory_mb=100, disk_mb=200, timeout_s=30)
FAILED = Ending(Outcome.EXIT, code=2)
UNKNOWN = """error: No solution found when resolving dependencies
  cause: Because acme was not found in the package registry and you require acme, we can conclude that your \
requirements are unsatisfiable.
"""
AWAY = """error: Failed to fetch: http://index.test/simple/acme/
  cause: error sending request for url (http://index.test/simple/acme/)
  cause: client error (Connect)
  cause: dns error
"""


def refused(host: str, reason: str) -> dict[str, Any]:
    return {"connections": [{"allowed": False, "host": host, "port": 443, "reason": reason, "last_ms": 1.0}]}


@pytest.mark.parametrize(
    ("ending", "text", "said"),
    [
        (Ending(Outcome.MEMORY), "", "memory of 100 MiB (packages.memory_mb)"),
        (FAILED, "memory allocation of 65536 bytes failed", "memory of 100 MiB (packages.memory_mb)"),
        (FAILED, "error: write failed: No space left on device (os error 28)", "disk of 200 MiB (packages.disk_mb)"),
        (Ending(Outcome.OUTPUT), "", "disk of 200 MiB (packages.disk_mb)"),
        (Ending(Outcome.TIMEOUT), "", "longer than 30 s (packages.timeout_s)"),
        (FAILED, UNKNOWN, f"there is no package 'acme' in the index {PYPI}"),
        (FAILED, AWAY, "the index cannot be read: http://index.test/simple/acme/: dns error"),
        (FAILED, "", "ended with code 2 and said nothing"),
        (Ending(Outcome.SIGNAL, signal=9), "", "ended by signal 9"),
        (Ending(Outcome.LOST, reason="its keeper ended"), "", "its keeper ended"),
        (
            Ending(Outcome.LOST, reason="its keeper ended"),
            "Resolving a",
            "sandbox ended: its keeper ended: Resolving a",
        ),
        (FAILED, "one\ntwo\nerror: something odd\n  cause: deep\n", "error: something odd cause: deep"),
    ],
)
def test_each_is_explained(ending: Ending, text: str, said: str) -> None:
    assert said in explained(CONFIG, ending, text, {})


def test_a_refused_host_is_named_with_the_setting() -> None:
    said = explained(CONFIG, FAILED, AWAY, refused("cdn.test", "no operator rule allows cdn.test"))
    assert said.startswith("the build may not reach cdn.test:443: no operator rule allows cdn.test.")
    assert "packages.network" in said
    closed = refused("10.0.0.5", "10.0.0.5 is private: closed unless the operator names the address in network.rules")
    assert "names the address in packages.network" in explained(CONFIG, FAILED, AWAY, closed)


def test_a_refusal_that_was_not_why_is_not_blamed() -> None:
    said = explained(CONFIG, FAILED, UNKNOWN, refused("telemetry.test", "no operator rule allows telemetry.test"))
    assert "there is no package 'acme'" in said


def test_foreign_words_are_calm_and_short() -> None:
    said = explained(CONFIG, FAILED, "error: \x1b[31mred\x07 " + "x" * 10_000, {})
    assert "\x1b" not in said
    assert len(said.encode()) <= MOST


def test_a_log_keeps_its_head_and_its_end_and_shows_the_last_line() -> None:
    log = BuildLog()
    log.say("first")
    for _ in range(3):
        log.add(b"y" * MOST_BYTES)
    log.add(b"\n\x1b[1mlast\x1b[0m\r\n\n")
    whole = log.whole()
    assert whole.startswith(b"first\n")
    assert b"bytes left out]" in whole
    assert len(whole) <= 2 * MOST_BYTES
    assert log.line == "last"


@pytest.mark.anyio
async def test_where_nothing_has_a_way_out_the_offline_mode_is_named(rig: Rig) -> None:
    with pytest.raises(BuildFailed, match=r"isolation 'twin' gives a build no network .*packages\.offline = true"):
        await SandboxBuilder(rig.app.steps).resolve(_wanted(), BuildLog())


async def _asked_for(rig: Rig) -> SandboxSpec:
    """The sandbox that a build wants."""
    asked = []

    async def create(spec: SandboxSpec, key: str) -> Any:
        asked.append(spec)
        raise SandboxFault("no room")

    rig.backend.create = create  # type: ignore[method-assign]
    with pytest.raises(BuildFailed, match="the build has no sandbox: no room"):
        await SandboxBuilder(rig.app.steps).resolve(_wanted(), BuildLog())
    return asked[0]


@pytest.mark.anyio
async def test_an_offline_build_has_no_network(rig: Rig, tmp_path: Path) -> None:
    gate = rig.with_network()
    rig.configure(packages=PackagesSettings(wheels=tmp_path, offline=True))
    spec = await _asked_for(rig)
    assert spec.egress is None
    assert gate.sessions == {}
    assert {mount.target for mount in spec.mounts} == {"/skills/uv", "/blobs/wheels"}


@pytest.mark.anyio
async def test_a_build_may_reach_the_index_and_nothing_that_runs_may(rig: Rig) -> None:
    gate = rig.with_network(rules=parse_rules(["internal.test"]), run_code=parse_rules(["api.test"]))
    rig.configure(packages=PackagesSettings(network=parse_rules(["index.test"]), memory_mb=77, disk_mb=88))
    spec = await _asked_for(rig)
    assert spec.egress is not None
    assert (spec.limits.memory_mb, spec.limits.disk_mb) == (77, 88)
    [session] = gate.sessions.values()
    assert [layer.texts() for layer in session.plan.policy.layers] == [["index.test"]]
    assert session.closes == 1


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"index": "ftp://x"}, "packages.index"),
        ({"index": "https://user:word@x/simple"}, "must not hold credentials"),
        ({"index": "https://x/simple?a=b"}, "packages.index"),
        ({"network": ["*"]}, "must name the hosts"),
        ({"network": ["http://x"]}, "packages.network"),
        ({"offline": True}, "needs packages.wheels"),
        ({"wheels": "/nonexistent"}, "there is no directory"),
        ({"source": ["numpy>=2"]}, "must be the name of a package"),
        ({"secret": "TOKEN", "index": "http://x/simple"}, "needs an index with an https URL"),
        ({"secret": "TOKEN", "index": "https://10.0.0.5/simple"}, "needs an index with an https URL"),
        ({"allow": ["not a name"]}, "packages.allow"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, packages: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said.replace(".", r"\.")):
        load_settings(data_dir=tmp_path, packages=packages)


def test_named_environments_hold_requirements_only(tmp_path: Path) -> None:
    for text in ("six @ https://x/six.whl", "-r more.txt", "./six"):
        with pytest.raises(InvalidInput, match=r"environments\.packages: must be requirements"):
            load_settings(data_dir=tmp_path, environments={"mine": {"packages": [text]}})


def test_an_index_opens_its_own_host_and_port_alone(tmp_path: Path) -> None:
    def rules(**packages: Any) -> list[str]:
        return [rule.text for rule in load_settings(data_dir=tmp_path, packages=packages).packages.reach]

    assert rules() == ["pypi.org", "files.pythonhosted.org"]
    assert rules(index="pypi") == rules(index=PYPI) == rules()
    assert rules(index="https://packages.internal/simple") == ["packages.internal:443"]
    assert rules(index="http://[::1]:3141/root/pypi") == ["[::1]:3141"]
    assert rules(index="https://x.test/simple", network=["x.test", "cdn.test"]) == ["x.test", "cdn.test"]


def _wanted() -> Wanted:
    return Wanted.of(["acme"])
