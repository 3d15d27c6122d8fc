"""What a jail gives of variables, secrets and the network, and what it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.faces.jail.conftest import BOUND_S, Jails

_ASK = """
import json, sys, urllib.request
told = []
for url in sys.argv[1:]:
    try:
        data = b"stolen" if url.endswith("/post") else None
        told.append(urllib.request.urlopen(urllib.request.Request(url, data), timeout=5).read().decode())
    except OSError as error:
        told.append(f"refused {getattr(error, 'code', '')}".strip())
print(json.dumps(told))
"""


@contextmanager
def serving(heard: list[str]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}".strip())
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"answer")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_jail_reaches_the_named_host_alone(jails: Jails) -> None:
    heard: list[str] = []
    other: list[str] = []
    with serving(heard) as port, serving(other) as closed:
        urls = [
            f"http://127.0.0.1:{port}/page",
            f"http://127.0.0.1:{closed}/post",
            "http://169.254.169.254/latest/meta-data/",
            "http://192.0.2.1/post",
        ]
        done = jails.run("--allow", f"127.0.0.1:{port}", "--", "python3", "-c", _ASK, *urls)
    told = json.loads(done.stdout)
    assert told[0] == "answer"
    assert all(text.startswith("refused") for text in told[1:]), told
    assert (heard, other) == (["GET /page"], [])
    [record] = jails.records()
    assert record.network is not None
    assert any(c["allowed"] and c["port"] == port for c in record.network["connections"])


def test_without_a_host_there_is_no_network(jails: Jails) -> None:
    heard: list[str] = []
    with serving(heard) as port:
        done = jails.run("--", "python3", "-c", _ASK, f"http://127.0.0.1:{port}/post", "http://169.254.169.254/")
    assert all(text.startswith("refused") for text in json.loads(done.stdout))
    assert heard == []


def test_variables_enter_by_name_alone(jails: Jails) -> None:
    env = {"WANTED": "one", "TOKEN_OF_ANOTHER": "two"}
    done = jails.python("import json, os; print(json.dumps(dict(os.environ)))", "--env", "WANTED", env=env)
    seen = json.loads(done.stdout)
    assert seen["WANTED"] == "one"
    assert "two" not in seen.values()
    assert not any(name.startswith("SKILLYARD") for name in seen)
    missing = jails.run("--env", "NOT_THERE", "--", "true")
    assert b"NOT_THERE" in missing.stderr


def test_a_jail_sees_neither_other_jails_nor_the_clients_files(jails: Jails, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text("PRIVATE KEY")
    (tmp_path / "client.json").write_text('{"mcpServers": {"other": {"env": {"KEY": "of-another"}}}}')
    other = jails.start("--env", "OTHERS", "--", "cat", env={"OTHERS": "of-another"})
    hunt = f"""
import glob, os
found = []
for path in ({str(tmp_path / ".ssh" / "id_ed25519")!r}, {str(tmp_path / "client.json")!r}):
    found.append(os.path.exists(path))
for path in glob.glob("/proc/[0-9]*/environ"):
    try: found.append(b"of-another" in open(path, "rb").read())
    except OSError: pass
print(any(found))
"""
    done = jails.python(hunt, env={"HOME": str(tmp_path)})
    assert done.stdout == b"False\n", done.stderr
    assert other.poll() is None
    other.communicate(timeout=BOUND_S)
    assert {path.name for path in (jails.home / "jails").iterdir()} == {"0", "1"}


def test_the_state_of_jails_is_where_the_variable_of_skillflaw_says(jails: Jails, tmp_path: Path) -> None:
    base = tmp_path / "base"
    jails.more = {"SKILLFLAW_MCP_SANDBOX_BASE_DIR": str(base)}
    done = jails.run("--", "true")
    assert done.returncode == 0, done.stderr
    assert [each.name for each in base.iterdir()] == ["0"]
    assert not (jails.home / "jails").exists()
    for place in (base, base / "0"):
        assert b"which no sandbox may see" in jails.run("--read", str(place), "--", "true").stderr


@pytest.mark.parametrize("words", [("--", "true"), ("run", "tool"), ("list",)], ids=" ".join)
def test_state_that_others_can_change_is_refused(jails: Jails, tmp_path: Path, words: tuple[str, ...]) -> None:
    """The grants of packages lie there. Their writer could give itself the operator's directories."""
    base = tmp_path / "anybody"
    base.mkdir()
    base.chmod(0o777)
    package = base / "packages" / "tool"
    package.mkdir(parents=True)
    (package / "jail.json").write_text("{}")
    jails.more = {"SKILLYARD_JAIL__DIR": str(base)}
    done = jails.run(*words)
    assert b"jail.dir: must be writable for its user alone" in done.stderr
    assert sorted(path.name for path in base.iterdir()) == ["packages"]


def test_forks_end_at_the_limit(jails: Jails) -> None:
    code = """
import os
n = 0
try:
    while True:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        n += 1
except OSError:
    print(n)
"""
    done = jails.python(code, env={"SKILLYARD_JAIL__PIDS": "20"})
    assert 5 < int(done.stdout) < 40
    assert done.returncode == 0


def test_a_secret_is_given_and_its_use_is_noted(jails: Jails) -> None:
    value = "a-value-of-the-store"
    words = [sys.executable, "-m", "skillyard", "secret"]
    subprocess.run([*words, "set", "API_KEY"], input=value.encode(), env=jails.env, check=True, timeout=BOUND_S)
    done = jails.python("import os; print(os.environ['API_KEY'])", "--secret", "API_KEY")
    assert done.stdout.decode().strip() == value, done.stderr
    [record] = jails.records()
    assert record.digests["secrets"].keys() == {"API_KEY"}
    assert value not in json.dumps(record.notes) + json.dumps(record.output)
    audit = subprocess.run([*words, "audit", "--json"], env=jails.env, check=True, timeout=BOUND_S, capture_output=True)
    assert b'"used"' in audit.stdout
    assert os.fsencode(value) not in audit.stdout
    absent = jails.run("--secret", "NOT_STORED", "--", "true")
    assert b"NOT_STORED" in absent.stderr


def test_a_profile_of_the_settings_gives_what_it_names(jails: Jails, place: Path) -> None:
    (place / "file").write_text("shown by a profile")
    jails.home.mkdir(mode=0o700)
    (jails.home / "config.toml").write_text(f'[jail.profiles.notes]\nread = ["{place}"]\nenv = ["WANTED"]\n')
    code = f"import os; print(open({str(place / 'file')!r}).read(), os.environ['WANTED'])"
    done = jails.python(code, "--profile", "notes", env={"WANTED": "one"})
    assert done.stdout == b"shown by a profile one\n", done.stderr
    assert jails.run("--profile", "none", "--", "true").returncode != 0
