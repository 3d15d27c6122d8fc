"""``skillyard mcp wrap`` and ``unwrap`` over configurations of three clients, with servers that run jailed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.faces.jail.conftest import BOUND_S, Jails
from tests.faces.jail.test_packages import needs_npm, registry
from tests.faces.jail.test_reach import serving

SERVER = """
import json, os, sys, urllib.request
told = []
for url in filter(None, os.environ.get("ASK", "").split()):
    try:
        told.append(urllib.request.urlopen(url, timeout=5).read().decode())
    except OSError:
        told.append("refused")
if "refused" in told and os.environ.get("NEEDED"):
    sys.exit("I need my host")
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "notes", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("look", "write")]}
    elif "id" in message:
        error = {"code": -32601, "message": "no"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}


@pytest.fixture
def server(place: Path) -> Path:
    file = place / "program" / "server.py"
    file.parent.mkdir()
    (place / "notes").mkdir()
    file.write_text(SERVER)
    return file


def wrap(jails: Jails, *args: str, answer: str = "", verb: str = "wrap") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "skillyard", "mcp", verb, *args]
    return subprocess.run(
        words, env=jails.env, input=answer, capture_output=True, text=True, timeout=2 * BOUND_S, check=False
    )


def started(jails: Jails, entry: dict[str, Any]) -> Any:
    """Starts an entry as its client does, and returns the answer to its greeting."""
    env = {**jails.env, **entry.get("env", {})}
    process = subprocess.run(
        [entry["command"], *entry["args"]],
        input=json.dumps(INITIALIZE).encode() + b"\n",
        env=env,
        capture_output=True,
        timeout=BOUND_S,
        check=False,
    )
    return json.loads(process.stdout)["result"], process.stderr


def test_the_file_of_claude_desktop_goes_into_jails_and_out_again(jails: Jails, server: Path, place: Path) -> None:
    heard: list[str] = []
    with serving(heard) as port:
        file = place / "claude_desktop_config.json"
        ask = f"http://127.0.0.1:{port}/start https://api.example.com/x http://169.254.169.254/latest"
        table: dict[str, Any] = {
            "globalShortcut": "Ü",
            "mcpServers": {
                "notes": {
                    "command": "python3",
                    "args": [str(server), str(place / "notes")],
                    "env": {"ASK": ask, "NOTES_TOKEN": "t0ken-of-the-file"},
                },
                "web": {"type": "http", "url": "https://mcp.example.com"},
                "broken": {"command": "python3", "args": ["-c", "print('hello')"]},
                "evil": {"command": "python3", "args": [str(server)], "env": {"LD_PRELOAD": str(server)}},
            },
        }
        before = json.dumps(table, indent=3, ensure_ascii=True)
        file.write_text(before)
        file.chmod(0o600)
        done = wrap(jails, str(file), "--yes", "--write", str(place / "notes"))
    assert done.returncode == 0, done.stderr
    assert "web is left as it is: it is reached over HTTP" in done.stderr
    assert "broken is left as it is: jailed so, it sent a line" in done.stderr
    assert "LD_PRELOAD" in done.stderr
    assert "started jailed, with 2 tools: look, write" in done.stdout
    assert "asked for api.example.com, and was refused; --allow api.example.com allows it" in done.stdout
    assert "asked for 169.254.169.254, a private address" in done.stdout
    assert "NOTES_TOKEN looks like a credential" in done.stdout
    assert "t0ken-of-the-file" not in done.stdout + done.stderr
    assert heard == []
    after = json.loads(file.read_text())
    entry = after["mcpServers"].pop("notes")
    assert entry["args"][: entry["args"].index("--data-dir")] == [
        "jail", "--read", str(server.parent), "--write", str(place / "notes"), "--env", "ASK", "--env", "NOTES_TOKEN",
    ]  # fmt: skip
    assert entry["args"][-3:] == ["python3", str(server), str(place / "notes")]
    assert after["mcpServers"] == {name: table["mcpServers"][name] for name in ("web", "broken", "evil")}
    assert [kept.read_text() for kept in place.glob("*.bak")] == [before]
    assert file.stat().st_mode & 0o777 == 0o600
    told, _ = started(jails, entry)
    assert told["serverInfo"]["name"] == "notes"
    assert "nothing is to be changed" in wrap(jails, str(file), "--yes", "--no-try", "--server", "notes").stdout
    back = wrap(jails, str(file), "--yes", verb="unwrap")
    assert back.returncode == 0, back.stderr
    assert file.read_text() == before
    assert "was wrapped here" in wrap(jails, str(file), "--yes", verb="unwrap").stdout


def test_the_file_of_vs_code_and_an_allowed_host(jails: Jails, server: Path, place: Path) -> None:
    """The operator answers for the host that the server needs; it is tried again with it."""
    heard: list[str] = []
    with serving(heard) as port:
        file = place / ".vscode" / "mcp.json"
        file.parent.mkdir()
        file.write_text(
            f"""{{"servers": {{
  "notes": {{ "type": "stdio", "command": "python3", "args": ["${{workspaceFolder}}/program/server.py"],
             "env": {{"ASK": "http://127.0.0.1:{port}/start", "NEEDED": "1"}} }},
  "other": {{ "command": "python3", "args": ["${{input:path}}"] }} }} }}
"""
        )
        before = file.read_text()
        alone = wrap(jails, str(file), "--server", "notes", answer="n\n")
        assert "I need my host" in alone.stderr
        assert "nothing is to be changed" in alone.stdout
        assert file.read_text() == before
        rule = f"127.0.0.1:{port}"
        done = wrap(jails, str(file), "--server", "notes", "--allow", rule, answer="y\n")
        assert done.returncode == 0, done.stderr
        entry = json.loads(file.read_text())["servers"]["notes"]
        assert ("--allow", rule) == tuple(entry["args"][entry["args"].index("--allow") :][:2])
        assert entry["args"][-1] == "${workspaceFolder}/program/server.py"
        assert heard == ["GET /start"]
    file.write_text(json.dumps(json.loads(file.read_text()), indent=1))  # by the client, in another form
    assert wrap(jails, str(file), "--yes", verb="unwrap").returncode == 0
    assert json.loads(file.read_text()) == json.loads(before)


def test_the_file_of_codex_and_an_entry_that_was_changed_since(jails: Jails, server: Path, place: Path) -> None:
    file = place / "config.toml"
    file.write_text(
        f"# mine\n[mcp_servers.notes]\ncommand = 'python3' # this one\nargs = [\n '{server}',\n]\n[x]\ny = 1\n"
    )
    before = file.read_text()
    done = wrap(jails, str(file), "--yes", "--no-try")
    assert done.returncode == 0, done.stderr
    args = tomllib.loads(file.read_text())["mcp_servers"]["notes"]["args"]
    assert args[:3] == ["jail", "--read", str(server.parent)]
    wrapped = file.read_text()
    file.write_text(wrapped.replace('"--read", ', '"--allow", "a.example.com", "--read", '))
    left = wrap(jails, str(file), "--yes", verb="unwrap")
    assert "changed since it was wrapped" in left.stderr
    file.write_text(wrapped)
    assert wrap(jails, str(file), "--yes", verb="unwrap").returncode == 0
    assert file.read_text() == before


def test_references_tell_which_variables_of_the_operator_a_dry_run_gets(
    jails: Jails, server: Path, place: Path
) -> None:
    file = place / "mcp.json"
    env = {"NOTES": "${OF_THE_OPERATOR}", "LEVEL": "${NOT_SET:-low}", "HOME_OF": "${userHome}"}
    entry = {"command": "python3", "args": [str(server), "${env:ANOTHER}"], "env": env}
    file.write_text(json.dumps({"mcpServers": {"notes": entry}}))
    jails.more = {"OF_THE_OPERATOR": "a-value", "ANOTHER": "another-value", "UNUSED": "x"}
    done = wrap(jails, str(file), "--yes")
    assert done.returncode == 0, done.stderr
    assert "it names ANOTHER, OF_THE_OPERATOR of this command's environment" in done.stdout
    assert done.stdout.index("it names") < done.stdout.index("started jailed")
    assert "a-value" not in done.stdout + done.stderr
    assert "another-value" not in done.stdout + done.stderr


NODE_SERVER = """#!/usr/bin/env node
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const tools = [{ name: process.argv[2], inputSchema: { type: "object" } }];
  const greeting = () => (
    { protocolVersion: params.protocolVersion, capabilities: {}, serverInfo: { name: "node", version: "1" } });
  const known = { "tools/list": () => ({ tools }), initialize: greeting };
  const end = known[method] ? { result: known[method]() } : { error: { code: -32601, message: "no" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...end }));
});
"""


@needs_npm
def test_a_package_is_fetched_once_and_removed_by_the_way_back(jails: Jails, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    before = '{"mcpServers": {"My Tool!": {"command": "npx", "args": ["-y", "jailed-tool", "look"]}}}'
    file.write_text(before)
    with registry(tmp_path / "none", NODE_SERVER) as address:
        jails.more = {"npm_config_registry": address}
        done = wrap(jails, str(file), "--yes")
    assert done.returncode == 0, done.stderr
    assert "fetched jailed-tool@1.2.0" in done.stdout
    assert "an install script ran in the build: node_modules/jailed-tool" in done.stdout
    assert "with 1 tools: look" in done.stdout
    entry = json.loads(file.read_text())["mcpServers"]["My Tool!"]
    assert entry["args"][:2] == ["jail", "run"]
    assert entry["args"][-3:] == ["my-tool", "--", "look"]
    told, said = started(jails, entry)
    assert told["serverInfo"]["name"] == "node", said
    packages = jails.home / "jails" / "packages"
    assert [path.name for path in packages.iterdir()] == ["my-tool"]
    assert "removed the package my-tool" in wrap(jails, str(file), "--yes", verb="unwrap").stdout
    assert file.read_text() == before
    assert list(packages.iterdir()) == []
