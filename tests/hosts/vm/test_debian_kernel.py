"""The native backend on a Debian kernel with cgroup version 2 alone, under emulation: its conformance suite as root
and as a user with a delegated group, what doctor says of services and of closed user namespaces, and the compiled part
on another processor."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.vm import machine
from tests.hosts.vm.image import Image
from tests.hosts.vm.machine import Outcome

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
SUITE_S = 3600.0
BOOT_S = 600.0
LIMITS = ("memory", "pids", "cpus")
FEW_SKIPPED = 10


@pytest.mark.parametrize("who", ["root", "user"])
def test_conformance_with_control_groups_of_version_2(machine_image: Image, tmp_path: Path, who: str) -> None:
    outcome = machine.run(machine_image, who, tmp_path, timeout_s=SUITE_S)
    _counted_by_version_2(_doctor(outcome))
    passed, skipped, failed = _results(outcome.text("suite.xml"))
    print(f"{who}: {passed} passed, {len(skipped)} skipped, {len(failed)} failed in {outcome.seconds:.0f} s")
    assert not failed, outcome.text("output.txt")[-8000:]
    assert passed > 100
    assert len(skipped) <= FEW_SKIPPED, skipped


def test_the_compiled_part_runs_on_another_processor(arm_image: Image, tmp_path: Path) -> None:
    """Beside the interpreter's own steps, by the same tests."""
    outcome = machine.run(arm_image, "root_first", tmp_path, timeout_s=SUITE_S)
    found = _doctor(outcome)
    _counted_by_version_2(found)
    assert found["facts"]["walls"] == "made in C", found["facts"]
    passed, skipped, failed = _results(outcome.text("suite.xml"))
    print(f"aarch64: {passed} passed, {len(skipped)} skipped, {len(failed)} failed in {outcome.seconds:.0f} s")
    assert not failed, outcome.text("output.txt")[-8000:]
    assert passed > 20
    assert not skipped, skipped


@pytest.mark.parametrize("who", ["root", "user"])
def test_what_version_2_charges_to_nobody_is_bounded(machine_image: Image, tmp_path: Path, who: str) -> None:
    outcome = machine.run(machine_image, f"{who}_objects", tmp_path, timeout_s=SUITE_S)
    _counted_by_version_2(_doctor(outcome))
    found = json.loads(outcome.text("verify.json"))
    verdicts = {each["name"]: each["verdict"] for each in found["programs"]}
    assert len(verdicts) >= 6
    assert set(verdicts.values()) == {"contained"}, found


def test_a_service_divides_the_group_that_it_is_given(machine_image: Image, tmp_path: Path) -> None:
    """Delegate=yes with User=: the server begins in that very group, and a group with processes has no children."""
    outcome = machine.run(machine_image, "service", tmp_path, timeout_s=BOOT_S)
    _counted_by_version_2(_doctor(outcome))
    assert outcome.text("groups.txt").split() == ["skillyard-server"], "nothing else is left of ours"


def test_a_service_of_root_stays_within_its_group(machine_image: Image, tmp_path: Path) -> None:
    outcome = machine.run(machine_image, "root_service", tmp_path, timeout_s=BOOT_S)
    _counted_by_version_2(_doctor(outcome))
    assert outcome.text("groups.txt").split() == ["skillyard-server"]


def test_limits_are_watched_where_nothing_is_delegated(machine_image: Image, tmp_path: Path) -> None:
    found = _doctor(machine.run(machine_image, "undelegated", tmp_path, timeout_s=BOOT_S))
    assert found["ready"], found
    memory = found["protections"]["memory"]
    assert memory["level"] == "supervised", memory
    assert "Delegate=yes" in memory["mend"], memory


@pytest.mark.parametrize(
    ("scenario", "switch"),
    [("userns_switch", "kernel.unprivileged_userns_clone=1"), ("no_userns", "user.max_user_namespaces=")],
)
def test_closed_user_namespaces_are_named_with_their_switch(
    machine_image: Image, tmp_path: Path, scenario: str, switch: str
) -> None:
    outcome = machine.run(machine_image, scenario, tmp_path, timeout_s=BOOT_S)
    found = _doctor(outcome)
    assert not found["ready"], found
    assert switch in found["protections"]["user_namespace"]["mend"], found
    assert outcome.text("doctor-status.txt").strip() == "1"


def _doctor(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome.text("doctor.json"))
    return found


def _counted_by_version_2(found: dict[str, Any]) -> None:
    assert found["ready"], found
    levels = {name: (found["protections"][name]["level"], found["protections"][name]["by"]) for name in LIMITS}
    assert all(level == "kernel" and by.startswith("cgroup v2") for level, by in levels.values()), levels
    assert found["protections"]["landlock"]["level"] == "kernel", found["protections"]["landlock"]


def _results(junit: str) -> tuple[int, list[str], list[str]]:
    """How many passed, and who was skipped and who failed."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))
    skipped = [_name(case) for case in cases if case.find("skipped") is not None]
    failed = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases) - len(skipped) - len(failed), skipped, failed


def _name(case: ElementTree.Element) -> str:
    return str(case.get("name"))
