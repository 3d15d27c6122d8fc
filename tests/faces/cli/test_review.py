"""``skill review`` and the mends of ``skill validate``: on disk, in archives, and of what is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from skillyard.bundled import EXAMPLES
from tests.unit.client.yardserver import YardServer
from tests.unit.stores.skills.skilldirs import action, write

Cli = Callable[..., Result]


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A skill with a danger, a warning and notes."""
    return write(
        action(tmp_path, main="import pickle\n\ndef main(args): ...\n"),
        {"SKILL.md": "---\nname: count\ndescription: A skill\n---\nUse\U000e0041 it.\n", "run.sh": "#!/bin/sh\n"},
    )


def told(found: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    return [(f["level"], f["rule"], f["file"], f["line"]) for f in found["findings"]]


def test_a_directory(bare: Cli, odd: Path) -> None:
    done = bare("skill", "review", str(odd), "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["name"], found["version"], len(found["digest"])) == ("acme.text.count", "1.0.0", 64)
    assert told(found) == [
        ("danger", "hidden-characters", "SKILL.md", 5),
        ("warning", "import", "code/main.py", 1),
        ("note", "script", "run.sh", 1),
    ]
    assert [f["rule"] for f in found["validation"]] == ["invisible"]


def test_for_people(bare: Cli, odd: Path) -> None:
    done = bare("skill", "review", str(odd), "--level", "danger")
    assert "SKILL.md:5: danger: 1 tag characters" in done.stdout
    assert "\n    mend: " in done.stdout
    assert "warning" not in done.stdout
    assert done.stderr.strip() == "1 danger, 1 warning, 1 note"
    assert "note: is a script" in bare("skill", "review", str(odd)).stdout
    assert done.stdout.isascii()


def test_an_archive(bare: Cli, odd: Path, tmp_path: Path) -> None:
    directory = json.loads(bare("skill", "review", str(odd), "--json").stdout)
    for form in ("zip", "gztar"):
        archive = shutil.make_archive(str(tmp_path / f"a-{form}"), form, odd)
        found = json.loads(bare("skill", "review", archive, "--json").stdout)
        assert told(found) == told(directory)
        assert found["digest"] == directory["digest"]


def test_what_is_no_skill(bare: Cli, tmp_path: Path) -> None:
    assert bare("skill", "review", str(tmp_path / "absent")).exit_code == 2
    write(tmp_path / "b", {"a.txt": "x", "lib.so": b"\x7fELF" + bytes(90)})
    done = bare("skill", "review", str(tmp_path / "b"), "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert told(found) == [("danger", "program", "lib.so", 0)]
    assert [f["rule"] for f in found["validation"]] == ["required"]
    write(tmp_path / "c", {"a.txt": "x"})
    assert bare("skill", "review", str(tmp_path / "c")).exit_code == 2
    write(tmp_path, {"x.zip": "PK"})
    assert bare("skill", "review", str(tmp_path / "x.zip")).exit_code == 2


def test_an_honest_skill_passes(bare: Cli) -> None:
    assert bare("skill", "review", str(EXAMPLES / "examples.csv.summarize")).exit_code == 0


def test_what_is_served(run: Cli, yard: YardServer) -> None:
    answer = {
        "name": "a.b",
        "version": "1.0.0",
        "digest": "0",
        "needs": {"network": ["x.com"], "secrets": []},
        "imports": {"standard": ["os"]},
        "hosts": [],
        "counts": {"danger": 0, "warning": 1, "note": 0},
        "findings": [{"level": "warning", "file": "a", "line": 3, "rule": "call", "message": "x\x1b[2J", "mend": "y"}],
        "validation": [],
    }
    yard.methods["catalogue.review"] = lambda params: answer
    done = run("skill", "review", "a.b@1.0.0")
    assert done.exit_code == 0, done.output
    assert yard.calls[-1][1] == {"name": "a.b", "version": "1.0.0"}
    assert "needs network  x.com" in done.stdout
    assert "a:3: warning: x\\x1b[2J [call]\n    mend: y\n" in done.stdout
    assert json.loads(run("skill", "review", "a.b", "--json").stdout) == answer
    assert yard.calls[-1][1] == {"name": "a.b"}


def test_validation_says_what_mends(bare: Cli, tmp_path: Path) -> None:
    directory = write(action(tmp_path), {"code/main.py": "def other(): ...\n"})
    done = bare("skill", "validate", str(directory))
    assert done.exit_code == 2
    assert done.stdout.splitlines() == [
        f"{directory}/code/main.py: error: must define the function 'main' at its top level [export-missing]",
        "    mend: add def main(args): at its top level",
    ]
    [verdict] = json.loads(bare("skill", "validate", str(directory), "--json").stdout)
    assert verdict["findings"][0]["mend"] == "add def main(args): at its top level"
