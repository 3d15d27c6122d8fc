"""Hosts that lack something: skillyard's commands, run where a knock-out was laid on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KNOCK_OUT = Path(__file__).with_name("knock_out.py")
BOUND_S = 90.0


class Host:
    """This machine, less what ``knocks`` take away; ``data_dir`` is empty at first."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def command(self, *words: str, knocks: tuple[str, ...] = ()) -> list[str]:
        plain = [sys.executable, "-m", "skillyard", *words]
        return [sys.executable, str(KNOCK_OUT), *knocks, "--", *plain] if knocks else plain

    def run(
        self, *words: str, knocks: tuple[str, ...] = (), stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, knocks=knocks),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            env=self.environment(env),
        )

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SKILLYARD_")}
        return {**clean, "SKILLYARD_DATA_DIR": str(self.data_dir), **(more or {})}

    def doctor(self, *knocks: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        done = self.run("doctor", "--json", knocks=knocks, env=env)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        report["exit"] = done.returncode
        return report

    def execute(
        self, code: str, *options: str, knocks: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``skillyard exec`` in a process of its own."""
        return self.run("exec", "-", *options, knocks=knocks, stdin=code, env=env)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "data")


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What doctor says of this machine as it is. Skips where it cannot make sandboxes anyway."""
    report = Host(tmp_path_factory.mktemp("sound") / "data").doctor()
    if not report["ready"] or report["mandatory_missing"]:
        pytest.skip(f"this machine cannot make sandboxes: {report['facts'].get('why', report['mandatory_missing'])}")
    return report


@pytest.fixture(scope="session")
def may(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Skips where a knock-out itself is not to be had here, as mounts in a container that closes them."""
    known: dict[str, str] = {}

    def check(knock: str) -> None:
        if knock not in known:
            done = subprocess.run(
                [sys.executable, str(KNOCK_OUT), knock, "--", "true"], capture_output=True, text=True, timeout=BOUND_S
            )
            known[knock] = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
        if known[knock]:
            pytest.skip(f"{knock} cannot be made here: {known[knock]}")

    return check
