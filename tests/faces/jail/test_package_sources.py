"""What a package's build takes of the operator: the npm cache, wheels, an index and its credentials."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from base64 import b64encode
from pathlib import Path

import pytest

from tests.conformance.gate.programs.authority import Authority
from tests.faces.jail.conftest import BOUND_S, Jails
from tests.faces.jail.test_packages import needs_npm, registry
from tests.faces.jail.test_wrap import SERVER
from tests.unit.engine.packages.index import Index
from tests.unit.engine.packages.wheels import make_wheel, wheel_name

_HUNT = """
const fs = require("fs");
const seen = (path) => { try { return fs.readFileSync(path, "utf8"); } catch { return ""; } };
const told = process.argv.slice(2).map(seen).join("") + JSON.stringify(process.env);
fs.writeFileSync(__dirname + "/built.json", JSON.stringify({
  token: /npm_OF_THE_OPERATOR|correct-horse|_auth/.test(told), cache: fs.existsSync("/blobs/npm"),
  copied: fs.existsSync("/workspace/cache/_cacache"),
}));
"""
_TINY = {
    "tiny/__init__.py": b"import json, sys\ndef main():\n    print(json.dumps(sys.argv[1:]))\n",
    "tiny-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntiny = tiny:main\n",
}


_ASK = """
import socket
from contextlib import suppress
for host in ("api.example.com", "169.254.169.254"):
    with suppress(OSError):
        socket.create_connection((host, 80), timeout=5)
"""


@needs_npm
def test_the_cache_of_npm_enters_read_only_and_no_install_script_sees_it(jails: Jails, tmp_path: Path) -> None:
    """With the cache a package is fetched though its registry is away; the cache stays as it was."""
    npm = shutil.which("npm")
    assert npm is not None
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    tmp_path.chmod(0o755)
    (home / ".npmrc").write_text("//127.0.0.1/:_authToken=npm_OF_THE_OPERATOR\n")
    with registry(home / ".npmrc", install=_HUNT) as address:
        jails.more = {"HOME": str(home), "npm_config_registry": address, "npm_config_cache": str(cache)}
        own = ["--no-audit", "--no-save", "--prefix", str(tmp_path / "own")]
        words = [npm, "install", "--ignore-scripts", *own, "jailed-tool"]
        subprocess.run(words, env={**os.environ, **jails.more}, check=True, timeout=BOUND_S, capture_output=True)
    before = _tree(cache / "_cacache")
    assert any("content-v2" in path for path in before)
    (tmp_path / "wheels").mkdir()
    offline = {"SKILLYARD_PACKAGES__OFFLINE": "true", "SKILLYARD_PACKAGES__WHEELS": str(tmp_path / "wheels")}
    added = jails.run("add", "--no-try", "tool", "--", "npx", "jailed-tool", env=offline)
    assert added.returncode == 0, added.stderr
    assert b"its build reached" not in added.stdout
    done = jails.run("run", "tool")
    assert json.loads(json.loads(done.stdout)["built"]) == {"token": False, "cache": False, "copied": False}
    assert _tree(cache / "_cacache") == before


def _tree(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): path.stat().st_mtime_ns for path in top.rglob("*") if path.is_file()}


def test_wheels_alone_are_enough_offline(jails: Jails, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    tmp_path.chmod(0o755)
    (wheels / wheel_name("tiny")).write_bytes(make_wheel("tiny", files=_TINY))
    env = {"SKILLYARD_PACKAGES__OFFLINE": "true", "SKILLYARD_PACKAGES__WHEELS": str(wheels)}
    added = jails.run("add", "--no-try", "tiny", "--", "uvx", "tiny", "one", env=env)
    assert added.returncode == 0, added.stderr
    assert b"tiny==1.0" in added.stdout
    assert b"its build" not in added.stdout
    assert json.loads(jails.run("run", "tiny", "--", "two").stdout) == ["one", "two"]


def test_a_package_is_started_once_and_what_it_asks_for_is_shown(jails: Jails, tmp_path: Path) -> None:
    """The client's variables may not be there yet: then it is not tried, and added all the same."""
    code = "".join("    " + line + "\n" for line in (_ASK + SERVER).splitlines())
    files = {
        "tiny/__init__.py": f"def main():\n{code}".encode(),
        "tiny-1.0.dist-info/entry_points.txt": _TINY["tiny-1.0.dist-info/entry_points.txt"],
    }
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    tmp_path.chmod(0o755)
    (wheels / wheel_name("tiny")).write_bytes(make_wheel("tiny", files=files))
    jails.more = {"SKILLYARD_PACKAGES__OFFLINE": "true", "SKILLYARD_PACKAGES__WHEELS": str(wheels)}
    said = jails.run("add", "tiny", "--", "uvx", "tiny").stdout.decode()
    assert "started once, it listed 2 tools: look, write" in said
    assert "it asked for api.example.com, and was refused; --allow api.example.com gives it" in said
    assert "it asked for 169.254.169.254, a private address, and was refused" in said
    done = jails.run("add", "keyed", "--env", "OF_THE_CLIENT", "--", "uvx", "tiny")
    assert b"it was not tried: env: is not a variable" in done.stdout, done.stderr
    assert done.returncode == 0
    assert b"started once" not in jails.run("add", "--no-try", "again", "--", "uvx", "tiny").stdout
    assert jails.run("list").stdout.count(b"tiny==1.0") == 3


def test_credentials_of_a_private_index_stay_at_the_gate(jails: Jails, tmp_path: Path) -> None:
    """The build holds a placeholder. The value is nowhere in what comes out of it."""
    authority = Authority(tmp_path)
    with Index(authority.context("index.test"), "index.test") as private:
        private.put(wheel_name("tiny"), make_wheel("tiny", files=_TINY))
        private.login = "Basic " + b64encode(b"__token__:correct-horse").decode()
        jails.more = {
            "SKILLYARD_PACKAGES__INDEX": private.url,
            "SKILLYARD_PACKAGES__SECRET": "INDEX",
            "SKILLYARD_NETWORK__HOSTS": '{"index.test": ["127.0.0.1"]}',
            "SKILLYARD_NETWORK__CA_FILE": str(authority.ca_file),
        }
        missing = jails.run("add", "--no-try", "tiny", "--", "uvx", "tiny")
        assert b"packages.secret names 'INDEX', which is not stored" in missing.stderr
        words = [*jails.words()[:-1], "secret", "set", "INDEX"]
        subprocess.run(words, input=b"correct-horse", env=jails.env, check=True, timeout=BOUND_S)
        added = jails.run("add", "--no-try", "tiny", "--", "uvx", "tiny")
        assert added.returncode == 0, added.stderr
    kept = jails.home / "jails" / "packages" / "tiny"
    assert not any(b"correct-horse" in path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert b"correct-horse" not in added.stdout + added.stderr
    assert jails.run("run", "tiny").stdout == b"[]\n"


_BACKEND = """
import base64, glob, json, os, re, ssl, sys, urllib.error, urllib.request, zipfile

def tried(url, login, method, **fields):
    context = ssl.create_default_context(cafile="/run/egress/ca.pem")
    data = b"a package" if method in ("POST", "PUT") else None
    basic = base64.b64encode(login.encode()).decode()
    asked = urllib.request.Request(url, data, {"Authorization": "Basic " + basic, **fields}, method=method)
    try:
        return urllib.request.urlopen(asked, timeout=20, context=context).status
    except urllib.error.HTTPError as error:
        return error.code

def build_wheel(directory, config_settings=None, metadata_directory=None):
    words = b" ".join(open(path, "rb").read() for path in glob.glob("/proc/[0-9]*/cmdline"))
    found = re.search(rb"https://([^:/ @]+:skillyard-secret-[0-9a-f]+)@([^/ ]+)", words)
    login, place = found[1].decode(), "https://" + found[2].decode()
    told = {"read": tried(place + "/simple/sourced/", login, "GET"), "post": tried(place + "/legacy/", login, "POST"),
            "put": tried(place + "/sourced", login, "PUT"), "delete": tried(place + "/sourced", login, "DELETE"),
            "hidden": tried(place + "/simple/sourced/", login, "GET", **{"X-HTTP-Method-Override": "PUT"})}
    code = f"import json\\ndef main():\\n    print(json.dumps({told!r}))\\n"
    metadata = "Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.0\\n"
    files = {"sourced/__init__.py": code, "sourced-1.0.dist-info/METADATA": metadata,
             "sourced-1.0.dist-info/entry_points.txt": "[console_scripts]\\nsourced = sourced:main\\n",
             "sourced-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    files["sourced-1.0.dist-info/RECORD"] = "".join(f"{name},,\\n" for name in files)
    with zipfile.ZipFile(os.path.join(directory, "sourced-1.0-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "sourced-1.0-py3-none-any.whl"
"""
_PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "sourced"
version = "1.0"
"""


def _sdist() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        files = {"backend.py": _BACKEND, "pyproject.toml": _PYPROJECT}
        files["PKG-INFO"] = "Metadata-Version: 2.1\nName: sourced\nVersion: 1.0\n"
        for name, text in files.items():
            entry = tarfile.TarInfo(f"sourced-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def test_what_is_built_from_source_cannot_publish_with_the_login(jails: Jails, tmp_path: Path) -> None:
    """Its build script is foreign, and finds the placeholder. The gate puts the login into requests that read alone."""
    authority = Authority(tmp_path)
    with Index(authority.context("index.test"), "index.test") as private:
        private.put("sourced-1.0.tar.gz", _sdist())
        private.login = "Basic " + b64encode(b"me:correct-horse").decode()
        jails.more = {
            "SKILLYARD_PACKAGES__INDEX": private.url,
            "SKILLYARD_PACKAGES__SECRET": "INDEX",
            "SKILLYARD_PACKAGES__SOURCE": '["sourced"]',
            "SKILLYARD_NETWORK__HOSTS": '{"index.test": ["127.0.0.1"]}',
            "SKILLYARD_NETWORK__CA_FILE": str(authority.ca_file),
        }
        words = [*jails.words()[:-1], "secret", "set", "INDEX"]
        subprocess.run(words, input=b"me:correct-horse", env=jails.env, check=True, timeout=BOUND_S)
        added = jails.run("add", "--no-try", "sourced", "--", "uvx", "sourced")
        assert added.returncode == 0, added.stderr
        assert private.published == []
    told = json.loads(jails.run("run", "sourced").stdout)
    assert told == {"read": 200, "post": 403, "put": 403, "delete": 403, "hidden": 403}
    kept = jails.home / "jails" / "packages" / "sourced"
    assert not any(b"correct-horse" in path.read_bytes() for path in kept.rglob("*") if path.is_file())


@needs_npm
@pytest.mark.parametrize(
    ("secret", "login"),
    [
        (b"correct-horse", "Bearer correct-horse"),
        (b"me:correct-horse", "Basic " + b64encode(b"me:correct-horse").decode()),
    ],
    ids=["a token", "a user with a password"],
)
def test_a_registry_beside_the_index_gets_its_credentials(
    jails: Jails, tmp_path: Path, secret: bytes, login: str
) -> None:
    authority = Authority(tmp_path)
    with registry(tmp_path / "none", install=_HUNT, tls=authority.context("index.test"), login=login) as address:
        jails.more = {
            "npm_config_registry": address,
            "SKILLYARD_PACKAGES__INDEX": f"{address}simple",
            "SKILLYARD_PACKAGES__SECRET": "INDEX",
            "SKILLYARD_NETWORK__HOSTS": '{"index.test": ["127.0.0.1"]}',
            "SKILLYARD_NETWORK__CA_FILE": str(authority.ca_file),
        }
        words = [*jails.words()[:-1], "secret", "set", "INDEX"]
        subprocess.run(words, input=secret, env=jails.env, check=True, timeout=BOUND_S)
        added = jails.run("add", "--no-try", "tool", "--", "npx", "jailed-tool")
    assert added.returncode == 0, added.stderr
    built = next((jails.home / "jails" / "packages" / "tool").rglob("built.json")).read_text()
    assert json.loads(built) == {"token": False, "cache": False, "copied": False}
    assert b"correct-horse" not in added.stdout + added.stderr
