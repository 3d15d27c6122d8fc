"""What ``skillyard mcp wrap`` reads in configurations of clients, which somebody hostile may have written."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from skillyard.faces.cli.mcp.clients import Unfit
from skillyard.faces.cli.mcp.group import mcp
from skillyard.faces.cli.mcp.install import program
from skillyard.faces.cli.mcp.wrap.entries import LeftAlone, stdio
from skillyard.faces.cli.mcp.wrap.pieces import Form
from skillyard.faces.cli.mcp.wrap.proposals import proposed

JSON, TOML = Form(toml=False), Form(toml=True)
KEYS = ("mcpServers", "x")
CODEX = """# mine
model = "o"

[mcp_servers.files]
command = "node"  # the usual one
args = [
  "/srv/files.js",
  "/srv/data",  # of the team
]
env = { A = "1" }

[mcp_servers.files.env2]
args = ["another's"]

[mcp_servers."odd name"]
  command = 'true'
"""


def _wrapped(form: Form, text: str, keys: tuple[str, ...]) -> str:
    """Wraps an entry and gives it back, by the source that it had; returns the text between."""
    before = form.raw(text, keys)
    made = form.replaced(text, keys, {"command": '"skillyard"', "args": '["jail", "--", "ü"]'})
    entry: Any = form.read(made)
    for key in keys:
        entry = entry[key]
    assert (entry["command"], entry["args"]) == ("skillyard", ["jail", "--", "ü"])
    assert form.replaced(made, keys, before) == text
    return made


def test_every_other_byte_of_a_file_stays() -> None:
    text = '{\r\n\t"a" : [1,2 ], "mcpServers":{"x":{ "command"\t: "a\\u00fc" ,"args":["b"\n], "env":{}}}}  \n'
    made = _wrapped(JSON, text, KEYS)
    assert made.replace('"skillyard"', '"a\\u00fc"').replace('["jail", "--", "ü"]', '["b"\n]') == text
    bare = '{"mcpServers": {\n    "x": {\n      "env": {"args": []},\n      "command": "a"\n    }\n  }}'
    assert '"command": "skillyard",\n      "args": ["jail"' in _wrapped(JSON, bare, KEYS)


def test_comments_of_toml_stay_beside_a_wrapped_entry() -> None:
    made = _wrapped(TOML, CODEX, ("mcp_servers", "files"))
    assert "# mine" in made
    assert "another's" in made
    for text in (CODEX, CODEX.replace("\n", "\r\n")):
        again = _wrapped(TOML, text, ("mcp_servers", "odd name"))
        assert tomllib.loads(again)["mcp_servers"]["files"] == tomllib.loads(CODEX)["mcp_servers"]["files"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=6), VALUES, max_size=3),
    st.lists(st.text(max_size=5), max_size=3) | st.none(),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_the_way_back_is_exact(rest: dict[str, Any], args: list[str] | None, indent: Any, ascii_only: bool) -> None:
    entry = {**rest, "command": "c", **({} if args is None else {"args": args})}
    if args is None:
        entry.pop("args", None)
    text = json.dumps({"r": rest, "mcpServers": {"x": entry}}, indent=indent, ensure_ascii=ascii_only)
    _wrapped(JSON, text, KEYS)


@given(st.text(max_size=80), st.booleans())
def test_any_text_is_read_or_refused(text: str, toml: bool) -> None:
    form = Form(toml)
    try:
        for keys, entry in form.servers(text).items():
            stdio(keys, entry)
            form.raw(text, keys)
    except (Unfit, LeftAlone):
        return


def test_texts_that_are_made_to_harm_are_refused() -> None:
    deep = '{"mcpServers": ' * 100_000
    for text in (deep, "[" * 100_000, '{"mcpServers": {"x": 1, "x": 2}}', "nul", "[]"):
        with pytest.raises(Unfit):
            JSON.servers(text)
    with pytest.raises(Unfit):
        TOML.servers("x = " + "[" * 100_000)
    inline = 'mcp_servers = { x = { command = "a" } }'
    with pytest.raises(Unfit, match="a table of its own"):
        TOML.raw(inline, ("mcp_servers", "x"))
    hidden = '[mcp_servers.x]\nnote = """\ncommand = "other"\n"""\ncommand = "a"\nargs = []\n'
    assert TOML.raw(hidden, ("mcp_servers", "x")) == {"command": '"a"', "args": "[]"}
    other = f'[other]\nnote = """\n[mcp_servers.x]\ncommand = \'b\'\n"""\n{hidden}'
    with pytest.raises(Unfit):
        TOML.raw(other, ("mcp_servers", "x"))


def test_all_tables_of_servers_are_found() -> None:
    one = {"command": "a"}
    table = {
        "mcpServers": {"a": one}, "servers": {"b": one}, "mcp": {"servers": {"c": one}},
        "projects": {"/p": {"mcpServers": {"d": one}}, "/q": 1}, "other": {"mcpServers": {"e": one}},
    }  # fmt: skip
    assert [keys[-1] for keys in JSON.servers(json.dumps(table))] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"url": "https://x/mcp"}, "over HTTP"),
        ({"type": "http", "serverUrl": "https://x/mcp"}, "over HTTP"),
        ({}, "no command"),
        ([], "not a table"),
        ({"command": ["a"]}, "must be texts"),
        ({"command": "a", "args": "b"}, "must be texts"),
        ({"command": "a", "args": [1]}, "must be texts"),
        ({"command": "a\0"}, "must be texts"),
        ({"command": "a", "args": ["\ud800"]}, "must be texts"),
        ({"command": "a", "args": ["x"] * 2000}, "must be texts"),
        ({"command": "a", "env": {"A": 1}}, "table of texts"),
        ({"command": "a", "env": {"A=B": "1"}}, "no variable"),
        ({"command": "a", "cwd": 1}, "cwd"),
        ({"command": "docker", "args": ["run", "mcp/x"]}, "daemon"),
        ({"command": program()[0], "args": [*program()[1:], "jail", "--", "x"]}, "jailed already: jail -- x"),
        ({"command": program()[0], "args": [*program()[1:], "jail"], "env": {"PATH": "/x"}}, "astray"),
        ({"command": program()[0], "args": [*program()[1:], "mcp"], "envFile": "x"}, "envFile"),
        ({"url": "https://x/mcp", "headersHelper": "/x"}, "runs bare"),
        ({"command": program()[0], "args": [*program()[1:], "mcp"]}, "skillyard itself"),
        ({"command": "a", "envFile": "x"}, "envFile"),
    ],
)
def test_entries_that_are_left_alone(entry: Any, why: str) -> None:
    with pytest.raises(LeftAlone, match=why):
        stdio(KEYS, entry)


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PATH", "HOME", "SKILLYARD_CONFIG", "GCONV_PATH", "LD_AUDIT",
        "skillyard_gvisor__runsc", "Skillyard_Policy__isolation", "npm_config_registry", "SSLKEYLOGFILE",
    ],
)  # fmt: skip
def test_no_variable_of_an_entry_steers_the_jail_itself(name: str) -> None:
    """The client gives the variables to the process that makes the walls."""
    with pytest.raises(LeftAlone, match="env"):
        stdio(KEYS, {"command": "a", "env": {"GOOD": "1", name: "/srv/evil"}})


def test_a_program_that_only_has_our_name_is_not_taken_for_ours(place: Path) -> None:
    fake = place / "skillyard"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    server = stdio(KEYS, {"command": str(fake), "args": ["jail", "--", "x"]})
    assert proposed(server, server, []).words == (str(fake), "jail", "--", "x")


def test_directories_come_from_the_servers_own_arguments(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    for made in (home / ".ssh", home / "notes", data, place / "pkg" / "build", place / "db", place / "in" / "deeper"):
        made.mkdir(parents=True)
    for file in (place / "pkg" / "package.json", place / "pkg" / "build" / "main.js", home / ".ssh" / "id"):
        file.write_text("{}")
    (place / "link").symlink_to(place / "db")
    monkeypatch.setenv("HOME", str(home))

    def read(*args: str, **more: Any) -> list[Path]:
        server = stdio(KEYS, {"command": "node", "args": list(args), **more})
        return sorted(proposed(server, server, [data]).read)

    assert read(f"{place}/pkg/build/main.js", f"{place}/db") == [place / "db", place / "pkg"]
    assert read(f"--root={place}/in", f"{place}/in/deeper", f"{place}/new.db") == [place]
    assert read(f"file://{place}/db", "/no/such/place", "/usr/lib", "relative", "") == [place / "db"]
    assert read("./db", cwd=str(place)) == [place / "db"]
    assert read(env={"FILE": f"{place}/db/x.json"}) == [place / "db"]
    assert read(f"{home}/notes") == [home / "notes"]
    for closed in ("/", str(home), str(data), f"{home}/.ssh", f"{home}/.ssh/id", "/etc", "/proc/1", "/" + "a" * 5000):
        assert read(closed) == [], closed
    server = stdio(KEYS, {"command": "node", "args": [f"{place}/link"]})
    found = proposed(server, server, [])
    assert found.read == [place / "db"]
    assert f"name {place}/db in its arguments" in found.notes[0]


def test_references_are_those_of_clients() -> None:
    server = stdio(KEYS, {"command": "a", "args": ["${A}/x", "${env:B}", "${C:-d}"], "env": {"T": "${input:token}"}})
    with pytest.raises(LeftAlone, match="input:token"):
        server.known({"A": "1", "B": "2"})
    known = stdio(KEYS, {"command": "a", "args": ["${A}/x", "${env:B}", "${C:-d}"]}).known({"A": "1", "B": "2"})
    assert known.words == ("a", "1/x", "2", "d")


def _command(tmp_path: Path, *args: str) -> Result:
    env = {"HOME": str(tmp_path), "SKILLYARD_DATA_DIR": str(tmp_path / "data")}
    return CliRunner(env=env).invoke(mcp, args)


def test_print_runs_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    text = '{"mcpServers": {"a": {"command": "python3", "args": ["-c", "1"], "env": {"MY_TOKEN": "\\u001b[31m"}}}}'
    file.write_text(text)
    done = _command(tmp_path, "wrap", str(file), "--print")
    args = json.loads(done.stdout)["mcpServers"]["a"]["args"]
    assert (args[0], args[-4:]) == ("jail", ["--", "python3", "-c", "1"])
    assert file.read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mcp.json"]


@pytest.mark.parametrize("env", [{"${A:-OTHER_TOKEN}": "1"}, {"LD_X": "1"}])
def test_no_client_changes_a_grant_and_no_name_steers_a_terminal(place: Path, env: dict[str, str]) -> None:
    decoy = place / "${A:-..}" / "keys"
    decoy.mkdir(parents=True)
    named = f"{place}/${{B:-$}}{{A:-..}}/keys"
    entries = {"a": {"command": "python3", "args": [named]}, "b\nc": {"command": "\x1b[2J", "env": env}}
    (place / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    done = _command(place, "wrap", str(place / "mcp.json"), "--print")
    assert json.loads(done.stdout)["mcpServers"] == entries
    assert "a is left as it is: its client would put something else into" in done.stderr
    assert "b\\x0ac is left as it is" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_profile_gives_no_server_the_file_itself(place: Path) -> None:
    data = place / "data"
    data.mkdir()
    (data / "config.toml").write_text(f'[jail.profiles.p]\nwrite = ["{place}"]\n')
    (place / "mcp.json").write_text('{"mcpServers": {"a": {"command": "python3"}}}')
    done = _command(place, "wrap", str(place / "mcp.json"), "--print", "--server", "a", "--profile", "p")
    assert done.exit_code != 0
    assert "could free itself" in str(done.exception)


def test_files_that_are_none_and_grants_without_a_server_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "mcp.json").write_text("{}")
    for args, said in (
        ([str(tmp_path / "pipe")], "is not a file"),
        ([str(tmp_path / "none")], "does not exist"),
        ([str(tmp_path / "mcp.json"), "--env", "A"], "are for one server"),
        ([str(tmp_path / "mcp.json"), "--server", "x"], "there is no x"),
        ([str(tmp_path / "mcp.json"), "--write", str(tmp_path)], "could free itself"),
    ):
        done = _command(tmp_path, "wrap", *args, "--yes")
        assert said in f"{done.exception}{done.output}", args
