"""``skill``: reading from a scripted server, checking and making on disk."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import skills_ref  # type: ignore[import-untyped]
from click.testing import Result

from tests.unit.client.yardserver import YardServer

Cli = Callable[..., Result]

ROW = {"name": "a.b", "version": "1.0.0", "kind": "action", "description": "does\nthings"}


def test_list_reads_every_page(run: Cli, yard: YardServer) -> None:
    def page(params: dict[str, Any]) -> dict[str, Any]:
        return {"skills": [ROW], "next_cursor": None if "cursor" in params else "more"}

    yard.methods["list_skills"] = page
    assert json.loads(run("skill", "list", "--namespace", "a", "--json").stdout) == [ROW, ROW]
    assert yard.calls[0][1] == {"detail": "summary", "namespace": "a", "limit": 500}
    assert run("skill", "list").stdout.splitlines()[1].split() == ["a.b", "1.0.0", "action", "does", "things"]


def test_show(run: Cli, yard: YardServer) -> None:
    files = [{"path": "SKILL.md", "size_bytes": 7, "sha256": "0"}]
    described = {**ROW, "versions": ["1.0.0"], "files": files, "skill_md": "# Title\n"}
    yard.methods["describe_skill"] = lambda params: {"skill": described}
    assert json.loads(run("skill", "show", "a.b", "--version", "1.0.0", "--json").stdout) == described
    assert yard.calls[-1][1] == {"name": "a.b", "version": "1.0.0", "detail": "full"}
    run("skill", "show", "a.b@1.0.0")
    assert yard.calls[-1][1] == {"name": "a.b", "version": "1.0.0", "detail": "full"}
    text = run("skill", "show", "a.b").stdout
    assert "SKILL.md  (7 bytes)" in text
    assert text.endswith("# Title\n")


@pytest.mark.parametrize(
    ("encoding", "pieces", "expected"),
    [
        ("utf-8", ["one ", "two"], b"one two"),
        ("base64", [base64.b64encode(b"\xff\x00").decode(), base64.b64encode(b"\n").decode()], b"\xff\x00\n"),
    ],
)
def test_a_file_is_shown_whole(run: Cli, yard: YardServer, encoding: str, pieces: list[str], expected: bytes) -> None:
    def read(params: dict[str, Any]) -> dict[str, Any]:
        index = params.get("offset", 0)
        more = index + 1 if index + 1 < len(pieces) else None
        return {"content": pieces[index], "encoding": encoding, "next_offset": more}

    yard.methods["read_skill_file"] = read
    assert run("skill", "show", "a.b", "--file", "x").stdout_bytes == expected


@pytest.mark.parametrize("kind", ["action", "instruction"])
def test_a_new_skill_is_valid(bare: Cli, tmp_path: Path, kind: str) -> None:
    made = bare("skill", "new", "my.first.skill", "--dir", str(tmp_path), "--kind", kind)
    assert made.exit_code == 0, made.stderr
    path = made.stdout.strip()
    assert Path(path) == tmp_path / "my.first.skill"
    checked = bare("skill", "validate", path, "--json")
    assert checked.exit_code == 0, checked.stdout
    assert json.loads(checked.stdout) == [{"path": path, "valid": True, "findings": []}]


def test_a_new_agent_skill_is_valid_for_everybody(bare: Cli, tmp_path: Path) -> None:
    for name in ("pdf-tools", "true", "123"):
        made = bare("skill", "new", name, "--dir", str(tmp_path), "--format", "agent-skills")
        assert made.exit_code == 0, made.stderr
        [verdict] = json.loads(bare("skill", "validate", made.stdout.strip(), "--json").stdout)
        assert (verdict["valid"], verdict["findings"]) == (True, [])
        assert skills_ref.validate(Path(made.stdout.strip())) == []
        found = json.loads(bare("skill", "review", made.stdout.strip(), "--json").stdout)
        assert {f["rule"] for f in found["findings"]} == {"script"}
    assert os.access(tmp_path / "123" / "scripts" / "count.py", os.X_OK)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("acme.count", ("--format", "agent-skills")),
        ("Count", ("--format", "agent-skills")),
        ("count", ("--format", "agent-skills", "--kind", "action")),
        ("pdf-tools", ()),
        ("skills.protocol.guide", ()),
    ],
)
def test_a_name_or_kind_that_does_not_fit(bare: Cli, tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    assert bare("skill", "new", name, "--dir", str(tmp_path), *options).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_new_skill_overwrites_nothing(bare: Cli, tmp_path: Path) -> None:
    (tmp_path / "my.skill").mkdir()
    (tmp_path / "my.skill" / "kept").write_text("x")
    assert bare("skill", "new", "my.skill", "--dir", str(tmp_path)).exit_code == 2
    assert [path.name for path in (tmp_path / "my.skill").iterdir()] == ["kept"]


def test_the_permissions_that_a_new_skill_has_in_comments_are_right(bare: Cli, tmp_path: Path) -> None:
    bare("skill", "new", "my.skill", "--dir", str(tmp_path))
    manifest = tmp_path / "my.skill" / "skill.toml"
    text = manifest.read_text()
    for line in ("[permissions]", "network =", "secrets ="):
        text = text.replace(f"# {line}", line)
    manifest.write_text(text)
    done = bare("skill", "validate", str(tmp_path / "my.skill"), "--json")
    assert (done.exit_code, "api.example.com:443" in text, '"findings": []' in done.stdout) == (0, True, True), (
        done.output
    )


def test_an_invalid_skill_is_told_file_line_and_rule(bare: Cli, tmp_path: Path) -> None:
    made = bare("skill", "new", "my.skill", "--dir", str(tmp_path)).stdout.strip()
    manifest = Path(made) / "skill.toml"
    manifest.write_text(manifest.read_text().replace('kind = "action"', 'kind = "acton"'))
    result = bare("skill", "validate", made, str(tmp_path / "absent"))
    assert result.exit_code == 2
    line = 1 + manifest.read_text().splitlines().index('kind = "acton"')
    assert f"{made}/skill.toml:{line}: error: kind" in result.stdout
    assert f"{made}: invalid" in result.stderr
    assert f"{tmp_path / 'absent'}: invalid" in result.stderr
    assert f"\n{tmp_path / 'absent'}: error: is not a directory that holds a skill" in result.stdout


def test_a_directory_of_skills_is_each_of_them(bare: Cli, tmp_path: Path) -> None:
    for name in ("a.b", "a.c"):
        bare("skill", "new", name, "--dir", str(tmp_path))
    (tmp_path / "a.c" / "SKILL.md").unlink()
    checked = bare("skill", "validate", str(tmp_path), "--json")
    assert checked.exit_code == 2
    found = [(verdict["path"], verdict["valid"]) for verdict in json.loads(checked.stdout)]
    assert found == [(str(tmp_path / "a.b"), True), (str(tmp_path / "a.c"), False)]


def test_problems_are_printed_with_their_mend(run: Cli, yard: YardServer) -> None:
    problem = {"level": "error", "file": "/s/x\x1b/SKILL.md", "line": 3, "rule": "yaml", "message": "bad", "mend": "do"}
    yard.methods["catalogue.problems"] = lambda params: {"problems": [problem], "total": 3}
    assert json.loads(run("skill", "problems", "--json").stdout) == [problem]
    shown = run("skill", "problems")
    assert shown.stdout == "/s/x\\x1b/SKILL.md:3: error: bad [yaml]\n    mend: do\n"
    assert shown.stderr == "and 2 more\n"
