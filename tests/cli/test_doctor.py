"""``doctor`` on this very host, and its verdict on others."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from skillyard.domain.protection import PROTECTIONS, Level, Probe, Protection
from skillyard.faces.cli.doctor import mandatory_missing, report

Cli = Callable[..., Result]


def probe(missing: set[str]) -> Probe:
    offered = {
        name: Protection(Level.MISSING, why="no such kernel", mend="get one") if name in missing
        else Protection(Level.KERNEL, by="the kernel")
        for name in PROTECTIONS
    }  # fmt: skip
    return Probe("native", True, offered, {})


@pytest.mark.parametrize(
    ("missing", "fatal"),
    [(set(), []), ({"own_uid", "uts_namespace"}, []), ({"own_uid", "seccomp", "pids"}, ["seccomp", "pids"])],
)
def test_only_mandatory_protections_are_fatal(missing: set[str], fatal: list[str]) -> None:
    found = probe(missing)
    assert mandatory_missing(found) == fatal
    told = report(found, fatal)
    assert {name for name, p in told["protections"].items() if p["level"] == "missing"} == missing
    assert told["protections"]["seccomp"]["mandatory"]
    assert not told["protections"]["own_uid"]["mandatory"]


def test_it_tells_of_every_protection_and_exits_by_what_it_found(bare: Cli) -> None:
    told = bare("doctor", "--json")
    found = json.loads(told.stdout)
    assert set(found["protections"]) == set(PROTECTIONS)
    assert told.exit_code == (0 if found["ready"] and not found["mandatory_missing"] else 1)
    for protection in found["protections"].values():
        assert protection["by"] or protection["why"]


def test_the_table_has_a_line_for_each(bare: Cli) -> None:
    lines = bare("doctor").stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(PROTECTIONS)]] == list(PROTECTIONS)
