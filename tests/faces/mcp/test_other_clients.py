"""Other clients than ours: the SDKs of TypeScript, the Inspector, and the suite of conformance.

``.ci/setup`` installs them; where it did not, they are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.faces.mcp.stdio_bridge import bridged
from tests.faces.mcp.test_processes import Served, environ, serving

PLACE = Path("/usr/local/lib/skillyard-ci/mcp-clients")
NODE = PLACE / "node_modules" / "node" / "bin" / "node"
MODULES = PLACE / "node_modules" / "@modelcontextprotocol"
EXAMPLES = Path(__file__).parents[3] / "src" / "skillyard" / "bundled" / "examples"
BOUND_S = 110

pytestmark = pytest.mark.skipif(not (PLACE / "packages").is_file(), reason=f"needs {PLACE}, which .ci/setup installs")

SHORT = ("server-session-lifecycle", "tools-list", "caching")
SCENARIOS = (
    "server-initialize",
    "logging-set-level",
    "ping",
    "completion-complete",
    "resources-list",
    "sep-2164-resource-not-found",
    "sep-2640-skills-directory",
    "sep-2640-skills-enumeration",
    "sep-2640-skills-manifest",
    "prompts-list",
    "dns-rebinding-protection",
    "http-header-validation",
    "server-sse-multiple-streams",
    "input-required-result-unsupported-methods",
)
"""With the short ones, those that need no prepared server; docs/mcp.md tells of the others."""
OF_HTTP = {
    "server-session-lifecycle",
    "dns-rebinding-protection",
    "http-header-validation",
    "server-sse-multiple-streams",
}
OVER_STDIO = [name for name in (*SHORT, *SCENARIOS) if name not in OF_HTTP]

HERE = Path(__file__).parent
PREPARED = (
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-error",
    "json-schema-2020-12",
)
"""Scenarios of tools that ``prepared/`` has, as a server of the gateway; the bridge takes its name from theirs.

Resources within answers become text there (docs/mcp.md), which two further scenarios count as a failure.
"""

OF_TASKS = ("tasks-wire-fields", "tasks-capability-negotiation", "tasks-request-state-removal")
MANIFEST = """name = "{name}"
version = "1.0.0"
description = "Of the suite."
kind = "action"

[runtime]
language = "python"
entrypoint = "main.py"
export = "main"
"""
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
SKILLS = {
    "greet": "def main(args):\n    return {'said': 'Hello, ' + args['name'] + '!'}\n",
    "slow.compute": "import time\ndef main(args):\n    time.sleep(args['seconds'])\n    return {'label': 1}\n",
    "failing.job": "def main(args):\n    raise ValueError('it fails')\n",
}

SCRIPT = """
const code = {language: 'python', code: 'def main(args): return {x: 1}'.replace('x:', '"x":')};
for (const [Client, transport] of await clients()) {
    const client = new Client({name: 'test', version: '1'});
    await client.connect(transport);
    const tools = (await client.listTools()).tools.map((tool) => tool.name);
    const done = await client.callTool({name: 'run_code', arguments: code});
    console.log(JSON.stringify({tools, output: done.structuredContent.output, failed: done.isError ?? false}));
    await client.close();
}
"""
FIRST = """
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
async function clients() {
    const [url, command, ...args] = process.argv.slice(2);
    return [
        [Client, new StreamableHTTPClientTransport(new URL(url))],
        [Client, new StdioClientTransport({command, args, env: process.env})],
    ];
}
"""
SECOND = """
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
async function clients() {
    return [[Client, new StreamableHTTPClientTransport(new URL(process.argv[2]))]];
}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("open"), "--no-auth", "--skills-dir", str(EXAMPLES)) as server:
        yield server


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a runtime that offers the tools of ``prepared/``."""
    place = tmp_path_factory.mktemp("prepared")
    server = {"command": ["python3", "prepared_server.py"], "source": str(HERE / "prepared"), "approve_first": True}
    env = environ(place / "data") | {"SKILLYARD_MCP__SERVERS": json.dumps({"prepared": server})}
    command = [sys.executable, "-m", "skillyard", "tools", "refresh", "prepared"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    return env


def node(server: Served, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with the later Node, beside the modules that .ci/setup installed."""
    told = {**environ(server.data_dir), "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    command = [str(NODE), *map(str, args)]
    return subprocess.run(command, cwd=PLACE, env=told, capture_output=True, text=True, timeout=BOUND_S)


@pytest.mark.parametrize(("head", "ways"), [(FIRST, 2), (SECOND, 1)], ids=["sdk-1", "client-2"])
def test_the_sdks_of_typescript(served: Served, tmp_path: Path, head: str, ways: int) -> None:
    script = tmp_path / "client.mjs"
    script.write_text(head + SCRIPT)
    (tmp_path / "node_modules").symlink_to(PLACE / "node_modules")
    done = node(served, script, f"{served.url}/mcp", sys.executable, "-m", "skillyard", "mcp")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == ways, done.stderr
    for each in told:
        assert (each["output"], each["failed"], "run_code" in each["tools"]) == ({"x": 1}, False, True)


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_inspector(served: Served, way: str) -> None:
    target = [f"{served.url}/mcp", "--transport", "http"]
    if way == "stdio":
        target = [sys.executable, "-m", "skillyard", "mcp"]
    cli = MODULES / "inspector" / "cli" / "build" / "cli.js"
    done = node(served, cli, "--cli", *target, "--method", "tools/list")
    assert done.returncode == 0, done.stderr
    assert "run_code" in {tool["name"] for tool in json.loads(done.stdout)["tools"]}


@pytest.mark.parametrize("scenario", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in SCENARIOS)])
def test_conformance(served: Served, scenario: str) -> None:
    _conforms(served, f"{served.url}/mcp", scenario)


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in OVER_STDIO]
)
def test_conformance_over_stdio(served: Served, scenario: str) -> None:
    command = [sys.executable, "-m", "skillyard", "mcp"]
    with bridged(command, environ(served.data_dir)) as url:
        _conforms(served, url, scenario)


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=() if name == PREPARED[0] else pytest.mark.long) for name in PREPARED]
)
def test_conformance_of_tools_of_the_gateway(prepared: dict[str, str], served: Served, scenario: str) -> None:
    """What a jailed server answers comes as it is, in the forms of the protocol."""
    with bridged([sys.executable, "-m", "skillyard", "mcp"], prepared, "prepared__") as url:
        _conforms(served, url, scenario)


@pytest.mark.long
@pytest.mark.parametrize("scenario", OF_TASKS)
def test_conformance_of_tasks(tmp_path: Path, served: Served, scenario: str) -> None:
    """Skills are the tools of the suite."""
    for name, code in SKILLS.items():
        place = tmp_path / "skills" / name
        place.mkdir(parents=True)
        (place / "skill.toml").write_text(MANIFEST.format(name=name))
        (place / "SKILL.md").write_text(
            f"---\nname: {name.replace('.', '-')}\ndescription: Of the suite.\n---\nText.\n"
        )
        (place / "main.py").write_text(code)
    env = environ(tmp_path / "data") | {"SKILLYARD_MCP__EXPOSE_SKILLS": '["*"]'}
    command = [sys.executable, "-m", "skillyard", "mcp", "--skills-dir", str(tmp_path / "skills")]
    with bridged(command, env, "skill_") as url:
        # The suite waits for seconds, and the first run waits for imports and a warm interpreter.
        params = {"name": "greet", "arguments": {"name": "you"}, "_meta": MODERN}
        first = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        said = httpx2.post(url, json=first, timeout=BOUND_S, trust_env=False).text
        assert "Hello, you!" in said, said
        _conforms(served, url, scenario)


def _conforms(served: Served, url: str, scenario: str) -> None:
    suite = MODULES / "conformance" / "dist" / "index.js"
    done = node(served, suite, "server", "--url", url, "--scenario", scenario)
    assert done.returncode == 0, done.stdout[-4000:]
    assert ", 0 failed" in done.stdout
