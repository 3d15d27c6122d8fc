"""``skillyard mcp install`` and ``uninstall``: the configurations of six clients, with everything else kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.faces.cli.mcp import files
from skillyard.faces.cli.mcp.clients import CLIENTS, Unfit, changed, found, is_ours

FILES = {
    "claude-code": ".claude.json",
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
}
PROJECT = {"claude-code": ".mcp.json", "cursor": ".cursor/mcp.json", "vscode": ".vscode/mcp.json"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def skillyard(home: Path, *args: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOME": str(home)}
    command = [sys.executable, "-m", "skillyard", "mcp", *args]
    return subprocess.run(
        command, cwd=home / "work", env=environ, input=answer, capture_output=True, text=True, timeout=60
    )


def servers(client: str, file: Path, home: Path) -> Any:
    text = file.read_text()
    if client == "codex":
        return tomllib.loads(text).get("mcp_servers", {})
    table = json.loads(text)
    if client == "claude-code" and file.name == ".claude.json":
        table = table["projects"][str(home / "work")]
    return table["servers" if client == "vscode" else "mcpServers"]


@pytest.mark.parametrize("client", FILES)
def test_each_client_is_set_up_and_cleared_again(home: Path, client: str) -> None:
    done = skillyard(home, "install", client, "--yes", "--profile", "agents")
    assert done.returncode == 0, done.stderr
    file = home / FILES[client]
    entry = servers(client, file, home)["skillyard"]
    assert entry["args"][-3:] == ["mcp", "--profile", "agents"]
    assert Path(entry["command"]).is_absolute()
    assert entry.get("type") == ("stdio" if client in ("claude-code", "vscode") else None)
    assert file.stat().st_mode & 0o777 == 0o600
    assert "has it already" in skillyard(home, "install", client, "--yes", "--profile", "agents").stdout
    gone = skillyard(home, "uninstall", client, "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "skillyard" not in servers(client, file, home)


@pytest.mark.parametrize("client", PROJECT)
def test_a_project_has_a_file_of_its_own(home: Path, client: str) -> None:
    done = skillyard(home, "install", client, "--yes", "--scope", "project")
    assert done.returncode == 0, done.stderr
    assert "skillyard" in servers(client, home / "work" / PROJECT[client], home)
    assert not (home / FILES[client]).exists()


def test_others_stay_and_the_file_before_is_kept(home: Path) -> None:
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    before = (
        '{\n    "theme": "ü",\n    "mcpServers": {\n        "other": {"command": "x", "env": {"KEY": "1"}}\n    }\n}'
    )
    file.write_text(before)
    file.chmod(0o640)
    done = skillyard(home, "install", "cursor", answer="y\n")
    assert done.returncode == 0, done.stderr
    assert '+        "skillyard": {' in done.stdout
    after = json.loads(file.read_text())
    assert after["mcpServers"].pop("skillyard")
    assert after == json.loads(before)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [kept.read_text() for kept in file.parent.glob("*.bak")] == [before]


def test_tokens_in_a_file_are_shown_to_nobody_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"token": "secret"}')
    file.chmod(0o600)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr("os.fchmod", full)
    with pytest.raises(OSError, match="no space"):
        files.write(file, '{"token": "secret"}', "{}")
    assert {one.stat().st_mode & 0o077 for one in tmp_path.iterdir()} == {0}
    assert file.read_text() == '{"token": "secret"}'


def test_nothing_is_written_unasked(home: Path) -> None:
    refused = skillyard(home, "install", "cursor", answer="n\n")
    assert refused.returncode != 0
    assert "+" in refused.stdout
    printed = skillyard(home, "install", "cursor", "--print")
    assert json.loads(printed.stdout)["mcpServers"]["skillyard"]
    assert not (home / ".cursor").exists()


def test_a_link_stays_a_link(home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text("{}")
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").symlink_to(real)
    assert skillyard(home, "install", "cursor", "--yes").returncode == 0
    assert (home / ".cursor" / "mcp.json").is_symlink()
    assert "skillyard" in real.read_text()


@pytest.mark.parametrize(
    ("client", "text", "why"),
    [
        ("cursor", '{"mcpServers": {} // mine\n}', "comments would be lost"),
        ("cursor", '{"a": 1, "a": 2}', "same name twice"),
        ("cursor", "[]", "not a JSON object"),
        ("cursor", '{"mcpServers": []}', "not a table"),
        ("cursor", '{"mcpServers": {"skillyard": {"command": "other", "args": []}}}', "another server of the name"),
        ("codex", 'mcp_servers = { skillyard = { command = "skillyard", args = ["mcp"] } }', "not a table of its own"),
        ("codex", "a = ", "not TOML"),
    ],
)
def test_what_would_lose_something_is_refused(home: Path, client: str, text: str, why: str) -> None:
    file = home / FILES[client]
    file.parent.mkdir(parents=True)
    file.write_text(text)
    done = skillyard(home, "install", client, "--yes", "--profile", "p")
    assert done.returncode != 0
    assert why in done.stderr
    assert file.read_text() == text
    assert list(file.parent.iterdir()) == [file]


TOML = """# my settings
model = "x"  # the best

[mcp_servers.other]
command = "y"
env = { A = "1" }

[mcp_servers.skillyard]
command = "/old/skillyard"
args = ["mcp"]

[mcp_servers.skillyard.env]
B = "2"

# the end
[profiles.p]
approval = "never"
"""


def test_comments_in_toml_stay() -> None:
    codex = CLIENTS["codex"]
    entry = codex.entry("/new/skillyard", ["mcp"], {"C": 'say "ü"'})
    made = changed(codex, TOML, ("mcp_servers",), "skillyard", entry)
    assert tomllib.loads(made)["mcp_servers"]["skillyard"] == entry
    gone = changed(codex, made, ("mcp_servers",), "skillyard", None)
    for line in ("# my settings", 'model = "x"  # the best', "[profiles.p]", 'env = { A = "1" }'):
        assert line in made
        assert line in gone
    assert "skillyard" not in gone


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.dictionaries(KEYS, st.dictionaries(KEYS, KEYS), max_size=3))
def test_an_entry_goes_in_and_out_and_leaves_the_rest(rest: dict[str, Any], others: dict[str, Any]) -> None:
    kind = CLIENTS["cursor"]
    others.pop("skillyard", None)
    table = {**rest, "mcpServers": others}
    entry = kind.entry("/bin/skillyard", ["mcp"], {})
    made = changed(kind, json.dumps(table), ("mcpServers",), "skillyard", entry)
    assert found(kind, made, ("mcpServers",), "skillyard") == entry
    assert json.loads(changed(kind, made, ("mcpServers",), "skillyard", None)) == table


@given(st.text(max_size=60), st.sampled_from(["cursor", "codex"]))
def test_any_text_is_taken_whole_or_refused(text: str, client: str) -> None:
    kind = CLIENTS[client]
    path = kind.path("user", Path("/"))
    entry = kind.entry("/bin/skillyard", ["mcp"], {})
    try:
        made = changed(kind, text, path, "skillyard", entry)
    except Unfit:
        return
    assert found(kind, made, path, "skillyard") == entry


def test_only_entries_that_start_skillyard_are_ours() -> None:
    assert is_ours({"command": "/a/skillyard", "args": ["mcp"]})
    assert is_ours({"command": "python3", "args": ["-m", "skillyard", "mcp", "--url", "x"]})
    assert not is_ours({"command": "npx", "args": ["mcp"]})
    assert not is_ours({"url": "http://x"})
