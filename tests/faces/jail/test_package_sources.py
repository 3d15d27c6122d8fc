"""What a package's build takes of the operator: the npm cache, wheels, an index and its credentials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path

from tests.conformance.gate.programs.authority import Authority
from tests.faces.jail.conftest import BOUND_S, Jails
from tests.faces.jail.test_packages import needs_npm, registry
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
    added = jails.run("add", "tool", "--", "npx", "jailed-tool", env=offline)
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
    added = jails.run("add", "tiny", "--", "uvx", "tiny", "one", env=env)
    assert added.returncode == 0, added.stderr
    assert b"tiny==1.0" in added.stdout
    assert b"its build" not in added.stdout
    assert json.loads(jails.run("run", "tiny", "--", "two").stdout) == ["one", "two"]


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
        missing = jails.run("add", "tiny", "--", "uvx", "tiny")
        assert b"packages.secret names 'INDEX', which is not stored" in missing.stderr
        words = [*jails.words()[:-1], "secret", "set", "INDEX"]
        subprocess.run(words, input=b"correct-horse", env=jails.env, check=True, timeout=BOUND_S)
        added = jails.run("add", "tiny", "--", "uvx", "tiny")
        assert added.returncode == 0, added.stderr
    kept = jails.home / "jails" / "packages" / "tiny"
    assert not any(b"correct-horse" in path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert b"correct-horse" not in added.stdout + added.stderr
    assert jails.run("run", "tiny").stdout == b"[]\n"


@needs_npm
def test_a_registry_beside_the_index_gets_its_credentials(jails: Jails, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    login = "Bearer correct-horse"
    with registry(tmp_path / "none", install=_HUNT, tls=authority.context("index.test"), login=login) as address:
        jails.more = {
            "npm_config_registry": address,
            "SKILLYARD_PACKAGES__INDEX": f"{address}simple",
            "SKILLYARD_PACKAGES__SECRET": "INDEX",
            "SKILLYARD_NETWORK__HOSTS": '{"index.test": ["127.0.0.1"]}',
            "SKILLYARD_NETWORK__CA_FILE": str(authority.ca_file),
        }
        words = [*jails.words()[:-1], "secret", "set", "INDEX"]
        subprocess.run(words, input=b"correct-horse", env=jails.env, check=True, timeout=BOUND_S)
        added = jails.run("add", "tool", "--", "npx", "jailed-tool")
    assert added.returncode == 0, added.stderr
    built = next((jails.home / "jails" / "packages" / "tool").rglob("built.json")).read_text()
    assert json.loads(built) == {"token": False, "cache": False, "copied": False}
    assert b"correct-horse" not in added.stdout + added.stderr
