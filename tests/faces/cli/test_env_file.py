"""``--env-file``: a command takes the variables of a ``.env`` as they stand there, and no line is passed over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.client.yardserver import TOKEN, YardServer

LAST = "SKILLFLAW_SKILL_SANDBOX_OPENSANDBOX_REQUEST_TIMEOUT_SECONDS"
"""It is read after the list."""


def _started(file: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SKILLYARD_", "SKILLFLAW_"))}
    command = [sys.executable, "-m", "skillyard", "--env-file", str(file), *words]
    return subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, timeout=60)


def test_a_command_has_the_variables_and_those_of_the_environment_go_before(yard: YardServer, tmp_path: Path) -> None:
    yard.methods["runs.list"] = lambda params: {"runs": [], "next_cursor": None}
    file = tmp_path / ".env"
    file.write_text(f"# the server\nexport SKILLYARD_URL='{yard.url}'\nSKILLYARD_TOKEN={TOKEN} # its owner's\n")
    done = _started(file, "runs", "list", "--json")
    assert done.returncode == 0, done.stderr
    done = _started(file, "runs", "list", SKILLYARD_TOKEN="that-of-somebody-else-0123456789ab")
    assert done.returncode != 0
    assert "token" in done.stderr


def test_a_list_keeps_its_quotes(tmp_path: Path) -> None:
    """A shell that reads the same file takes them away."""
    file = tmp_path / ".env"
    file.write_text(f'SKILLFLAW_SKILL_SANDBOX_ENV_ALLOWLIST=["LANG"]\n{LAST}=none\n')
    done = _started(file, "policy", "show", SKILLYARD_DATA_DIR=str(tmp_path / "data"))
    assert f"{LAST}: must be a number" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("NAME VALUE", "line 2 is not NAME=VALUE"),
        ("NAME='open", "line 2 is not NAME=VALUE"),
        ("NAME", "'NAME' is not a variable with a value"),
        ("NAME='a\0b'", "'NAME' is not a variable with a value"),
        ("'A=B'=C", "'A=B' is not a variable with a value"),
    ],
)
def test_a_line_that_sets_nothing_is_refused(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(f"FIRST=1\n{line}\n")
    done = _started(file, "version")
    assert done.returncode == 2
    assert said in done.stderr
