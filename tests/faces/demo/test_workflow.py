"""The minimal workflow of a skills service, as ``examples/workflow`` does it against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.workflow.__main__ import NAME, SETTINGS
from skillyard.config.settings import load_settings

pytestmark = pytest.mark.timeout(180)
PROJECT = Path(__file__).parents[3]


def test_an_agent_with_seven_tools_does_short_and_long_work() -> None:
    command = [sys.executable, "-m", "examples.workflow"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=170, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    uploaded, loaded, ran, task, refused, job, counts, lengths = done.stdout.splitlines()
    assert uploaded.startswith(f"uploaded {NAME} ")
    assert loaded.startswith("loaded SKILL.md of ")
    assert loaded.endswith(f"local in /skills/{NAME}")
    assert ran == "run_cmd succeeded with exit code 0: 3 the"
    assert task == "task succeeded with exit code 0: 6 lines"
    assert refused == "refused: the profile 'orchestrator' of this token does not allow the tool 'read_blob'"
    assert job == "job succeeded: bring succeeded, count succeeded: 14"
    assert counts.startswith("artifact counts.txt, 142 bytes: ['3', 'the', '2', 'dog'")
    assert lengths == "artifact lengths.csv, 33 bytes: ['length,words', '2,1', '3,7', '4,2', '5,3', '6,1']"


def test_its_settings_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.commands.max_timeout_s == 120
    assert "skills.start_job" in settings.profiles["orchestrator"].tools
