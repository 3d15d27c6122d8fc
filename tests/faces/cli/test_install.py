"""``skill install`` and ``skill diff``, in this process, over a data directory of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.bundles import skill_files, tar
from tests.unit.client.yardserver import YardServer
from tests.unit.stores.sources.repository import repository

Cli = Callable[..., Result]
NAME = "acme.words.say"


def directory(home: Path, version: str = "1.0.0", **more: bytes) -> Path:
    for path, data in {**skill_files(version=version), **more}.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(data)
    return home


def test_a_directory_an_archive_and_a_checkout_are_one_version(bare: Cli, tmp_path: Path) -> None:
    plain = directory(tmp_path / "plain")
    first = bare("skill", "install", str(plain), "--json")
    assert first.exit_code == 0, first.stderr
    told = json.loads(first.stdout)
    assert (told["name"], told["version"], told["created"]) == (NAME, "1.0.0", True)
    (tmp_path / "a.tar.gz").write_bytes(tar(skill_files(), prefix="words-main/"))
    again = json.loads(bare("skill", "install", str(tmp_path / "a.tar.gz"), "--json").stdout)
    assert (again["digest"], again["created"]) == (told["digest"], False)
    assert [finding["rule"] for finding in again["findings"]] == ["archive-stripped"]
    assert NAME in bare("skill", "list").stdout
    quiet = bare("skill", "publish", str(tmp_path / "a.tar.gz"))
    assert (quiet.exit_code, "archive-stripped" in quiet.stderr) == (0, False)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_skill_of_a_checkout(bare: Cli, tmp_path: Path) -> None:
    files = {f"skills/say/{path}": data.decode() for path, data in skill_files().items()}
    home = repository(tmp_path / "repo", {**files, "README.md": "x", "skills/other/SKILL.md": "y"})
    (home / "skills/say/untracked").write_text("secret")
    refused = bare("skill", "install", str(home))
    assert refused.exit_code == 2
    assert "skills/other, skills/say" in refused.stderr
    assert "choose one with --path" in refused.stderr
    done = bare("skill", "install", str(home), "--path", "skills/say")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{NAME}@1.0.0\n"
    assert "3 files" in done.stderr


def test_what_is_refused_is_said_by_name_and_leaves_nothing(bare: Cli, tmp_path: Path) -> None:
    (tmp_path / "evil.tar").write_bytes(tar({**skill_files(), "../../evil": b"x"}, mode="w"))
    for arguments in ((), ("--json",)):
        refused = bare("skill", "install", str(tmp_path / "evil.tar"), *arguments)
        assert refused.exit_code == 2
        assert "../../evil" in refused.stdout + refused.stderr
        assert "archive-traversal" in refused.stdout + refused.stderr
    told = json.loads(refused.stdout)["error"]
    assert (told["type"], told["findings"][0]["file"]) == ("BundleRefused", "../../evil")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar"]
    for command in ("install", "publish"):
        url = bare("skill", command, "https://git.example/acme/words")
        assert (url.exit_code, "is a URL" in url.stderr) == (2, True)
    missing = bare("skill", "install", str(tmp_path / "nothing"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (2, True)


@pytest.mark.parametrize("command", ["publish", "install"])
def test_a_directory_with_much_emptiness_is_no_bomb(bare: Cli, tmp_path: Path, command: str) -> None:
    done = bare("skill", command, str(directory(tmp_path / "a", model=bytes(10_000_000))))
    assert done.exit_code == 0, done.stderr


def test_diff_of_what_was_installed(bare: Cli, tmp_path: Path) -> None:
    more = b'\n[permissions]\nnetwork = ["api.example.com"]\n'
    manifest = skill_files(version="1.1.0")["skill.toml"] + more
    assert bare("skill", "install", str(directory(tmp_path / "a"))).exit_code == 0
    new = {"skill.toml": manifest, "x": b"\x1b[31mred\n"}
    assert bare("skill", "install", str(directory(tmp_path / "b", "1.1.0", **new))).exit_code == 0
    shown = bare("skill", "diff", NAME, "1.0.0").stdout
    assert shown.index("! network: api.example.com") < shown.index("changed skill.toml")
    assert "+\\x1b[31mred" in shown
    assert "\x1b" not in shown
    short = bare("skill", "diff", NAME, "1.0.0", "1.1.0", "--stat").stdout
    assert "changed skill.toml" in short
    assert "@@" not in short
    assert bare("skill", "diff", NAME, "1.1.0", "1.1.0").stdout.splitlines()[1] == "the same content"


def test_diff_renders_what_a_server_says(run: Cli, yard: YardServer) -> None:
    need = {
        "need": "secrets",
        "name": "KEY",
        "change": "changed",
        "before": "a",
        "after": "b\n\x1b[0m",
        "widens": False,
    }
    base = {"change": "changed", "old_size": 1, "new_size": 2, "diff": "", "cut": True, "reason": "binary"}
    file = {"path": "x\ny", "old_executable": True, "new_executable": False, **base}
    fact = {"field": "kind", "before": "action", "after": "instruction"}
    answer: dict[str, Any] = {
        "name": "a.b",
        "from": {"version": "1", "digest": ""},
        "to": {"version": "2", "digest": ""},
        "same": False,
        "widens": False,
        "needs": [{**need, "widens": False}],
        "facts": [fact],
        "files": [file],
    }
    yard.methods["catalogue.diff"] = lambda params: answer
    shown = run("skill", "diff", "a.b", "1", "2").stdout
    assert yard.calls[-1][1] == {"name": "a.b", "from": "1", "to": "2"}
    assert shown.splitlines() == [
        "a.b 1 -> 2",
        "",
        "needs",
        "  secrets: KEY: a -> b \\x1b[0m",
        "",
        "manifest",
        "- kind: action",
        "+ kind: instruction",
        "",
        "changed x y (1 B -> 2 B), no longer executable",
        "(no text)",
        "(cut: there is more)",
    ]
    assert json.loads(run("skill", "diff", "a.b", "1", "--json").stdout) == answer
