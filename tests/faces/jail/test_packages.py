"""Packages for jails: fetched where the registry alone is reached, sealed, and run without it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import ssl
import stat
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.faces.cli.jail.packages import Package, check_name, parse
from tests.faces.jail.conftest import Jails

needs_npm = pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm here (.ci/setup installs it)")


@pytest.mark.parametrize(
    ("command", "package"),
    [
        (["npx", "-y", "@scope/server@1.2.3", "/dir"], Package("npm", "@scope/server", "1.2.3", "server", ("/dir",))),
        (["npx", "--package=@a/b@1.0.0-rc.1", "tool"], Package("npm", "@a/b", "1.0.0-rc.1", "tool")),
        (["/usr/bin/npx", "plain", "--flag"], Package("npm", "plain", "", "plain", ("--flag",))),
        (["uvx", "mcp-server-git==2.1", "-v"], Package("pypi", "mcp-server-git", "2.1", "mcp-server-git", ("-v",))),
        (["uvx", "--from", "pkg[cli]@1.0", "tool"], Package("pypi", "pkg[cli]", "1.0", "tool")),
        (["pipx", "run", "--spec", "pkg", "tool"], Package("pypi", "pkg", "", "tool")),
    ],
)
def test_commands_name_a_package(command: list[str], package: Package) -> None:
    assert parse(command) == package


@pytest.mark.parametrize(
    "command",
    [
        [], ["node", "x.js"], ["npx"], ["npx", "-y"], ["npx", "git+https://x/y"], ["npx", "../here"],
        ["npx", "--registry=http://x", "a"], ["npx", "-c", "sh"], ["npx", "a@latest || b"], ["npx", "a@file:/etc"],
        ["uvx", "pkg @ file:///etc"], ["uvx", "--index", "http://x", "a"], ["pipx", "install", "a"], ["uvx", "-x"],
    ],
)  # fmt: skip
def test_other_commands_are_refused(command: list[str]) -> None:
    with pytest.raises(InvalidInput):
        parse(command)


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", ".hidden", "a" * 65, "a\n"])
def test_names_are_those_of_directories(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_name(name)


_PROGRAM = """#!/usr/bin/env node
const fs = require("fs");
const tried = (call) => { try { call(); return "done"; } catch { return "refused"; } };
console.log(JSON.stringify({
  args: process.argv.slice(2), built: fs.readFileSync(__dirname + "/built.json", "utf8"),
  write: tried(() => fs.writeFileSync(__dirname + "/new", "")), main: require.main === module,
}));
"""
_INSTALL = """
const fs = require("fs");
const seen = (path) => { try { return fs.readFileSync(path, "utf8"); } catch { return ""; } };
const npmrc = seen(process.argv[2]) + seen(process.env.HOME + "/.npmrc") + JSON.stringify(process.env);
fs.writeFileSync(__dirname + "/built.json", JSON.stringify({ token: npmrc.includes("npm_OF_THE_OPERATOR") }));
"""


@contextmanager
def registry(
    npmrc: Path,
    program: str = _PROGRAM,
    install: str = _INSTALL,
    tls: ssl.SSLContext | None = None,
    login: str = "",
) -> Iterator[str]:
    """A registry on the loopback with one package, whose install script looks for the operator's token."""
    manifest = {
        "name": "jailed-tool",
        "version": "1.2.0",
        "bin": {"jailed-tool": "main.js"},
        "scripts": {"install": f"node install.js {npmrc}"},
    }
    files = {"package.json": json.dumps(manifest), "main.js": program, "install.js": install}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    raw = packed.getvalue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if login and self.headers.get("Authorization") != login:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            digest = base64.b64encode(hashlib.sha512(raw).digest()).decode()
            dist = {"tarball": f"{here}/jailed-tool/-/jailed-tool-1.2.0.tgz", "integrity": f"sha512-{digest}"}
            versions = {"1.2.0": {**manifest, "hasInstallScript": True, "dist": dist}}
            told = {"name": "jailed-tool", "dist-tags": {"latest": "1.2.0"}, "versions": versions}
            body = raw if self.path.endswith(".tgz") else json.dumps(told).encode()
            self.send_response(200 if "jailed-tool" in self.path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    here = f"http://127.0.0.1:{server.server_port}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        here = f"https://index.test:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{here}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@needs_npm
def test_a_package_is_fetched_once_and_runs_without_its_registry(jails: Jails, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text("//127.0.0.1/:_authToken=npm_OF_THE_OPERATOR\n")
    with registry(home / ".npmrc") as address:
        env = {"HOME": str(home), "npm_config_registry": address}
        added = jails.run("add", "--no-try", "tool", "--", "npx", "-y", "jailed-tool", "fixed", env=env)
        assert added.returncode == 0, added.stderr
    said = added.stdout.decode()
    assert "jailed-tool@1.2.0" in said
    assert "its build reached 127.0.0.1" in said
    assert "an install script ran in the build: node_modules/jailed-tool" in said
    done = jails.run("run", "tool", "--", "more", env=env)
    told = json.loads(done.stdout)
    assert told == {
        "args": ["fixed", "more"], "built": '{"token":false}', "write": "refused", "main": True
    }, done.stderr  # fmt: skip
    tree = jails.home / "jails" / "packages" / "tool" / "tree"
    assert all(not path.stat().st_mode & stat.S_IWOTH for path in tree.rglob("*"))
    [row] = json.loads(jails.run("list", "--json").stdout)
    assert (row["name"], row["package"]) == ("tool", "jailed-tool@1.2.0")
    taken = jails.run("add", "--no-try", "tool", "--", "npx", "jailed-tool", env=env)
    assert b"is taken" in taken.stderr
    assert jails.run("remove", "tool").returncode == 0
    assert os.listdir(jails.home / "jails" / "packages") == []


@needs_npm
def test_a_package_that_cannot_be_fetched_leaves_nothing(jails: Jails, tmp_path: Path) -> None:
    with registry(tmp_path / "none") as address:
        failed = jails.run("add", "other", "--", "npx", "not-there", env={"npm_config_registry": address})
    assert failed.returncode != 0
    assert b"could not be fetched" in failed.stderr
    assert os.listdir(jails.home / "jails" / "packages") == []
