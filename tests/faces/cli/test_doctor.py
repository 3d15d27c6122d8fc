"""``doctor`` on this very host, and its verdict on others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from skillyard.config.settings import Settings, load_settings
from skillyard.domain.sandbox.guarantees import (
    ABILITIES,
    ADVISORY,
    GUARANTEES,
    PROTECTIONS,
    WALLS,
    Demand,
    Level,
    Probe,
    Protection,
)
from skillyard.faces.cli.commands.doctor import network_refused, report
from skillyard.sandbox.registry import BACKENDS, nature

Cli = Callable[..., Result]


def probe(missing: set[str]) -> Probe:
    offered = {
        name: Protection(Level.MISSING, why="no such kernel", mend="get one") if name in missing
        else Protection(Level.KERNEL, by="the kernel")
        for name in PROTECTIONS
    }  # fmt: skip
    return Probe("native", True, offered, {})


def test_every_isolation_is_tried_and_compared(bare: Cli) -> None:
    told = bare("doctor", "--all", "--json")
    found = {each["isolation"]: each for each in json.loads(told.stdout)["isolations"]}
    assert list(found) == list(BACKENDS)
    for each in found.values():
        assert each["ready"] == (each["start_ms"] is not None) == (each["why"] == ""), each
        assert not each["ready"] or set(each["attestors"]) == set(GUARANTEES)
    assert told.exit_code == (0 if any(each["ready"] for each in found.values()) else 1)
    table = bare("doctor", "--all").stdout.splitlines()
    assert [line.split()[0] for line in table[1:]] == list(BACKENDS)
    assert bare("doctor", "--all", "--isolation", "native").exit_code == 2


@pytest.mark.parametrize("asked", [("--all",), ("--isolation", "microvm")])
def test_it_looks_for_the_image_of_machines_where_it_is_built(
    asked: tuple[str, ...], bare: Cli, tmp_path: Path
) -> None:
    told = bare("doctor", *asked)
    assert f"{tmp_path / 'data' / 'microvm'} is not an image of machines: No such file or directory" in told.stderr


def test_where_no_sandbox_can_be_made_the_reason_is_all(bare: Cli) -> None:
    told = bare("doctor", "--isolation", "oci")
    assert told.exit_code == 1
    assert "No sandbox can be made here: no image is named; name one in oci.image" in told.stderr
    assert told.stderr.splitlines()[2] == "Runs are refused."
    assert "missing" not in told.stdout


@pytest.mark.parametrize(
    ("missing", "allowed", "short"),
    [
        (set(), set(), []),
        ({"own_uid", "uts_namespace"}, set(), []),
        ({"own_uid", "seccomp", "pids"}, set(), ["seccomp", "pids"]),
        ({"seccomp", "pids"}, {"seccomp"}, ["pids"]),
    ],
)
def test_what_is_demanded_and_missing_is_named(missing: set[str], allowed: set[str], short: list[str]) -> None:
    found, demand = probe(missing), Demand(allow_degraded=frozenset(allowed))
    told = report(found, nature("native"), demand)
    assert told["mandatory_missing"] == short
    assert {name for name, p in told["protections"].items() if p["level"] == "missing"} == missing
    mandatory = {name for name, p in told["protections"].items() if p["mandatory"]}
    assert mandatory == set(PROTECTIONS) - ADVISORY - allowed


def test_it_tells_of_every_protection_and_exits_by_what_it_found(bare: Cli) -> None:
    told = bare("doctor", "--json")
    found = json.loads(told.stdout)
    assert set(found["protections"]) == set(PROTECTIONS)
    network = found["network_refused"] and found["network_demanded"]
    assert told.exit_code == (0 if found["ready"] and not found["mandatory_missing"] and not network else 1)
    assert set(found["guarantees"]) == set(GUARANTEES)
    for guarantee in found["guarantees"].values():
        assert bool(guarantee["evidence"]) == (guarantee["attestor"] != "missing")
    for protection in found["protections"].values():
        assert protection["by"] or protection["why"]
    assert set(found["abilities"]) == set(ABILITIES)
    able = found["abilities"]["egress"]
    assert able["by"] if able["level"] == "kernel" else able["why"]
    assert ("gate" in found["facts"]) == (able["level"] != "missing")


def test_a_backend_that_does_not_speak_of_a_network_has_none() -> None:
    silent = report(probe(set()), nature("native"), Demand())["abilities"]["egress"]
    assert (silent["level"], silent["why"]) == ("missing", "the backend does not offer it")


def test_the_table_has_a_line_for_each(bare: Cli) -> None:
    first, second = [table.splitlines()[1:] for table in bare("doctor").stdout.split("\n\n")[:2]]
    assert [line.split()[0] for line in first] == list(GUARANTEES)
    assert [line.split()[0] for line in second] == list(WALLS)


def _settings(**network: object) -> Settings:
    return load_settings(network=network)


@pytest.mark.parametrize(
    ("backend", "network", "refused", "demanded"),
    [
        ("native", {}, "no sockets can be opened; mend: open them", True),
        ("landlock", {}, "no sockets can be opened; mend: open them", False),
        ("landlock", {"run_code": ["x.com"]}, "no sockets can be opened; mend: open them", True),
        ("native", {"rules": "none"}, "network.rules allow none", False),
    ],
)
def test_what_a_policy_with_a_network_would_get(
    backend: str, network: dict[str, object], refused: str, demanded: bool
) -> None:
    egress = Protection(Level.MISSING, why="no sockets can be opened", mend="open them")
    found = replace(probe(set()), backend=backend, abilities={"egress": egress})
    assert network_refused(found, nature(backend), _settings(**network)) == (refused, demanded)
    able = replace(found, abilities={"egress": Protection(Level.KERNEL, by="the kernel")})
    if "rules" not in network:
        assert network_refused(able, nature(backend), _settings(**network))[0] == ""


def test_the_last_line_and_the_exit_code_tell_of_the_network(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("doctor", "--isolation", "landlock")
    told = bare(*asked)
    last = told.stderr.strip().splitlines()[-1]
    if "is in force" not in last:
        pytest.skip(f"the level does not stand here: {last}")
    assert "Runs that need a network are refused: without a network namespace" in last
    assert told.exit_code == 0
    monkeypatch.setenv("SKILLYARD_NETWORK__RUN_CODE", '["x.com"]')
    assert bare(*asked).exit_code == 1
