"""Programs that know nothing of the gate but where to find it and what to trust."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from skillyard.gate.trust import TRUST_ENV
from tests.conformance.gate.intercepted import BOUND_S, TOKEN, Gate, Outside
from tests.conformance.gate.programs.git_server import PREFIX, git_repository, git_route

NODE = """
const net = require('net'), tls = require('tls'), https = require('https');
const [port, name, far, key] = process.argv.slice(1);
const asked = `CONNECT ${name}:${far} HTTP/1.1\\r\\nHost: ${name}:${far}\\r\\n\\r\\n`;
const raw = net.connect(port, '127.0.0.1', () => raw.write(asked));
raw.once('data', () => {
  const socket = tls.connect({socket: raw, servername: name});
  const headers = {authorization: `Bearer ${key}`};
  https.get({createConnection: () => socket, host: name, port: far, path: '/echo', headers}, answer => {
    let body = '';
    answer.on('data', piece => body += piece).on('end', () => { console.log(answer.statusCode, body); process.exit() });
  });
});
"""
PYTHON = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""
HTTPX2 = """
import sys, httpx2
print(httpx2.get(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]}).text)
"""


@pytest.fixture
def gate(outside: Outside) -> Iterator[Gate]:
    outside.seen.clear()
    with outside.gate() as gate:
        yield gate


@pytest.fixture
def env(gate: Gate, tmp_path: Path) -> Mapping[str, str]:
    trust = tmp_path / "ca.pem"
    trust.write_bytes(gate.trust)
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), gate.proxy)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        **proxies,
        **dict.fromkeys(TRUST_ENV, str(trust)),
        "HOME": str(tmp_path),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def ran(env: Mapping[str, str], *command: str) -> str:
    if (program := shutil.which(command[0])) is None:
        pytest.skip(f"needs {command[0]}")
    ended = subprocess.run([program, *command[1:]], env=env, capture_output=True, timeout=BOUND_S, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


def check(gate: Gate, outside: Outside, told: str) -> None:
    assert outside.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert gate.placeholder("KEY") in told
    assert TOKEN not in told


def test_curl(gate: Gate, outside: Outside, env: Mapping[str, str]) -> None:
    field = f"Authorization: Bearer {gate.placeholder('KEY')}"
    check(gate, outside, ran(env, "curl", "-sS", "-H", field, outside.url("api.test")))
    body = f"key={gate.placeholder('KEY')}"
    assert "is in the body" in ran(env, "curl", "-sS", "-d", body, outside.url("api.test"))


@pytest.mark.parametrize("program", [PYTHON, HTTPX2])
def test_python(gate: Gate, outside: Outside, env: Mapping[str, str], program: str) -> None:
    check(gate, outside, ran(env, sys.executable, "-c", program, outside.url("api.test"), gate.placeholder("KEY")))


def test_node(gate: Gate, outside: Outside, env: Mapping[str, str]) -> None:
    where = (str(gate.port), "api.test", str(outside.https.port))
    check(gate, outside, ran(env, "node", "-e", NODE, *where, gate.placeholder("KEY")))


def test_git(gate: Gate, outside: Outside, env: Mapping[str, str], tmp_path: Path) -> None:
    """Debian's git speaks TLS with GnuTLS."""
    git_repository(tmp_path / "repositories")
    outside.routes[PREFIX] = git_route(tmp_path / "repositories")
    basic = base64.b64encode(f"user:{gate.placeholder('KEY')}".encode()).decode()
    url = outside.url("api.test", f"{PREFIX}project.git")
    ran(env, "git", "-c", f"http.extraHeader=Authorization: Basic {basic}", "clone", "-q", url, str(tmp_path / "clone"))
    assert (tmp_path / "clone" / "README").read_text() == "from git\n"
    sent = [asked.headers["authorization"].removeprefix("Basic ") for asked in outside.seen]
    assert {base64.b64decode(each) for each in sent} == {f"user:{TOKEN}".encode()}
