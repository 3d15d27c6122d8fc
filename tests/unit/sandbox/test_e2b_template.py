"""The template of the isolation e2b: its files fit together, and its start command runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from skillyard.domain.errors import InvalidInput
from skillyard.faces.cli.main import cli
from skillyard.sandbox.e2b import stage
from skillyard.sandbox.e2b.template import guest_name, waiting_place, write_template


def test_the_template_has_guest_stage_and_packages_by_content(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "one.py").write_text("ONE = 1")
    files = write_template(tmp_path / "new", "local/python:1", {"a" * 64: tmp_path / "built"})
    text = (tmp_path / "new" / "e2b.Dockerfile").read_text()
    assert text.startswith("FROM local/python:1\n")
    assert f"COPY skillyard {stage.BAKED}\n" in text
    assert (tmp_path / "new" / "skillyard" / "content" / ("a" * 64) / "one.py").read_text() == "ONE = 1"
    assert (tmp_path / "new" / "skillyard" / "guests" / f"{guest_name()}.pyz") in files
    assert "\nUSER root\n" in text, "the start command is that user's"
    assert waiting_place() in (tmp_path / "new" / "start.sh").read_text()
    assert waiting_place() in (tmp_path / "new" / "ready.sh").read_text()
    assert json.loads((tmp_path / "new" / "skillyard" / "fixed.json").read_text())["guest"].endswith(
        f"{guest_name()}.pyz"
    )


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InvalidInput, match="must be new or empty"):
        write_template(tmp_path, "local/python:1", {})


@pytest.mark.parametrize("base", ["", "a\nRUN evil", "a b"])
def test_a_base_is_one_name(tmp_path: Path, base: str) -> None:
    with pytest.raises(InvalidInput, match="--base"):
        write_template(tmp_path, base, {})


def test_the_command_names_what_it_wrote(tmp_path: Path) -> None:
    told = CliRunner().invoke(cli, ["image", "e2b-template", str(tmp_path / "new"), "--json"])
    assert told.exit_code == 0, told.output
    assert all(Path(name).exists() for name in json.loads(told.output)["files"])


def test_packages_are_named_by_a_built_environment(tmp_path: Path) -> None:
    words = [
        "image",
        "e2b-template",
        str(tmp_path / "new"),
        "--packages",
        "f" * 64,
        "--data-dir",
        str(tmp_path / "data"),
    ]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code != 0
    assert "must be the digest of one built environment" in told.output
    assert not (tmp_path / "new").exists()


def test_the_stage_that_a_template_has_tells_what_it_finds(tmp_path: Path) -> None:
    write_template(tmp_path / "new", "local/python:1", {})
    words = [sys.executable, "-I", "-S", str(tmp_path / "new" / "skillyard" / "stage.py"), "look"]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=30, check=False).stdout)
    assert told["python"] == list(sys.version_info[:2])
    assert told["memory_mb"] > 0
