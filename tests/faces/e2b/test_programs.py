"""Two agents of others, unchanged, run against this server.

``SKILLYARD_TEST_E2B_PROGRAMS`` names a directory with checkouts of them and a virtual environment, as docs/e2b.md has
it. Their model is a stand-in, which their own variable names.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.faces.e2b.conftest import Yard
from tests.faces.e2b.model import model

PLACE = Path(os.environ.get("SKILLYARD_TEST_E2B_PROGRAMS", ""))
OPENAI = "openai-agents-python/examples/sandbox/extensions/e2b_runner.py"
AGNO = "agno/cookbook/91_tools/e2b_tools.py"
SHELL = ["cat customer.md", "id -un; uname -s"]
CODE = "numbers = [0, 1]\nwhile len(numbers) < 10: numbers.append(sum(numbers[-2:]))\nprint(sum(numbers))"


def ran(yard: Yard, program: str, tmp_path: Path, *words: str) -> str:
    python = PLACE / "venv/bin/python"
    if not os.environ.get("SKILLYARD_TEST_E2B_PROGRAMS") or not (PLACE / program).is_file() or not python.exists():
        pytest.skip(f"SKILLYARD_TEST_E2B_PROGRAMS names no directory with {program} and venv/bin/python")
    with model(SHELL, ("run_python_code", {"code": CODE})) as url:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "COLUMNS": "500",
            "E2B_API_URL": yard.server.url,
            "E2B_SANDBOX_URL": yard.server.url,
            "E2B_API_KEY": yard.server.token,
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": url,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "AGNO_TELEMETRY": "false",
        }
        done = subprocess.run(
            [python, PLACE / program, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_the_agent_of_openai_reads_its_workspace(yard: Yard, tmp_path: Path) -> None:
    said = ran(yard, OPENAI, tmp_path)
    assert "snapshot round-trip ok (e2b, tar)" in said
    assert "Name: Northwind Health" in said
    assert "user\nLinux" in said or "sandbox\nLinux" in said


def test_the_agent_of_agno_computes(yard: Yard, tmp_path: Path) -> None:
    assert "It printed: " in (said := ran(yard, AGNO, tmp_path))
    assert "88" in said
    for made in yard.api("GET", "/v2/sandboxes").json():  # the program leaves its three to their time
        if made["templateID"] == "code-interpreter-v1":
            yard.api("DELETE", f"/sandboxes/{made['sandboxID']}")
