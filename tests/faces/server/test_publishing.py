"""Publishing, from a directory to a run: the command line and the clients against a real server that is restarted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skillyard import Runtime
from skillyard.client import Client, SyncClient
from skillyard.client.errors import BadArgument, BundleRefused, Forbidden, SkillNotFound, VersionTaken
from skillyard.domain import errors as domain_errors
from skillyard.engine.skills.publishing import UPLOADS
from tests.bundles import a_skill, note_files, skill_files, tar, unpacked, zipped
from tests.crash.server import Server, log_of
from tests.waiting import until

NAME = "acme.words.say"
Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("publishing") / "data") as server:
        yield server


@pytest.fixture
def cli(server: Server) -> Cli:
    """``skillyard …`` in this process, with the owner's token."""

    def invoke(*args: str, stdin: bytes = b"", token: str = "") -> Result:
        from skillyard.faces.cli.main import cli

        env = {"SKILLYARD_URL": server.url, "SKILLYARD_TOKEN": token or server.token, "SKILLYARD_DEBUG": None}
        return CliRunner().invoke(cli, args, input=stdin, env=env)

    return invoke


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with server.client() as client:
        yield client


def on_disk(home: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return home


def test_from_a_directory_to_a_run_and_back(cli: Cli, tmp_path: Path) -> None:
    name = "acme.disk.source"
    source = on_disk(tmp_path / "any-name", skill_files(name))
    on_disk(source, {".git/config": b"secret", ".env": b"KEY=secret", "__pycache__/x.pyc": b"x"})
    made = cli("skill", "publish", str(source))
    assert (made.exit_code, made.stdout) == (0, f"{name}@1.0.0\n"), made.output
    assert "published: 3 files" in made.stderr
    again = json.loads(cli("skill", "publish", str(source), "--json").stdout)
    assert (again["created"], again["version"]) == (False, "1.0.0")
    done = cli("run", name, "--args", "{}", "--json")
    assert json.loads(done.stdout)["output"] == {"said": "hello"}, done.output
    for form in ("tar.gz", "zip"):
        out = cli("skill", "export", name, "--out", str(tmp_path), "--format", form)
        assert out.stdout == f"{tmp_path}/{name}-1.0.0.{form}\n", out.output
        assert unpacked((tmp_path / f"{name}-1.0.0.{form}").read_bytes()) == skill_files(name)
    piped = cli("skill", "export", f"{name}@1.0.0", "--out", "-").stdout_bytes
    assert unpacked(piped) == skill_files(name)
    assert json.loads(cli("skill", "publish", "-", "--json", stdin=piped).stdout)["digest"] == again["digest"]


def test_findings_are_told_with_file_and_line(cli: Cli, tmp_path: Path) -> None:
    bad = skill_files() | {"skill.toml": b'name = "acme.words.say"\nversion = "one"\n'}
    source = on_disk(tmp_path / "bad", bad)
    refused = cli("skill", "publish", str(source))
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert f"{source}/skill.toml:2: error: " in refused.stderr
    as_json = cli("skill", "publish", str(source), "--json")
    assert as_json.exit_code == 2
    told = json.loads(as_json.stdout)["error"]
    assert told["type"] == "BundleRefused"
    assert any(finding["line"] == 2 for finding in told["findings"])


def test_what_cannot_be_packed_is_not_sent(cli: Cli, tmp_path: Path) -> None:
    source = on_disk(tmp_path / "linked", skill_files())
    (source / "passwords").symlink_to("/etc/passwd")
    refused = cli("skill", "publish", str(source))
    assert refused.exit_code == 2
    assert "leaves the skill's directory" in refused.stderr
    assert cli("skill", "publish", str(tmp_path / "absent")).exit_code == 2


def test_versions_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    name = "acme.many.versions"
    for version in ("1.0.0", "1.1.0"):
        archive = tmp_path / f"{version}.zip"
        archive.write_bytes(zipped(skill_files(name, version)))
        assert cli("skill", "publish", str(archive)).exit_code == 0
    pinned = cli("skill", "pin", f"{name}@1.0.0")
    assert (pinned.exit_code, pinned.stdout) == (0, "")
    assert f"{name} means 1.0.0" in pinned.stderr
    listed = cli("skill", "list", name, "--versions").stdout
    assert "latest, pinned" in listed.splitlines()[2]
    gone = cli("skill", "withdraw", f"{name}@1.0.0", "--reason", "it leaks")
    assert "no longer pinned" in gone.stderr
    told = json.loads(cli("skill", "list", name, "--versions", "--json").stdout)[0]
    assert [(v["version"], v["state"]) for v in told["versions"]] == [("1.1.0", "published"), ("1.0.0", "withdrawn")]
    refused = cli("run", f"{name}", "--version", "1.0.0", "--args", "{}")
    assert refused.exit_code == 2
    assert "it leaks" in refused.stderr
    assert "is served again" in cli("skill", "restore", f"{name}@1.0.0").stderr
    assert f"{name} was not pinned; it means 1.1.0" in cli("skill", "unpin", name).stderr
    everything = cli("skill", "list", "--versions").stdout
    assert name in everything
    assert "skills.protocol.guide" in everything


USAGE = (
    ("skill", "withdraw", NAME),
    ("skill", "pin", f"{NAME}@"),
    ("skill", "restore", "@1.0.0"),
    ("skill", "list", NAME),
    ("skill", "list", NAME, "--versions", "--namespace", "acme"),
    ("skill", "export", f"{NAME}@1.0.0", "--version", "2.0.0"),
    ("skill", "export", NAME, "--format", "rar"),
)


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_usage(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words).exit_code == 2


def test_errors_of_the_client(client: SyncClient, tmp_path: Path) -> None:
    client.publish_skill(a_skill())
    with pytest.raises(VersionTaken) as taken:
        client.publish_skill(a_skill(word="other"))
    assert taken.value.data["stored_digest"] != taken.value.data["offered_digest"]
    with pytest.raises(BundleRefused):
        client.publish_skill(b"no archive")
    with pytest.raises(SkillNotFound):
        client.export_skill("acme.absent", tmp_path / "x")
    with pytest.raises(BadArgument):
        client.export_skill(NAME, tmp_path / "x", form="rar")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


TOKENS = {"usual": (), "publisher": ("--scopes", "discover,publish", "--project", "crm")}
"""The scopes that a token has by default do not publish."""


def test_of_many_who_publish_one_version_at_once_one_wins(server: Server) -> None:
    name = "acme.at.once"

    def send(number: int) -> str | None:
        try:
            with server.client() as mine:
                return mine.publish_skill(tar(skill_files(name, word=f"word {number}"))).digest
        except VersionTaken:
            return None

    with ThreadPoolExecutor(UPLOADS[1]) as pool:
        digests = list(pool.map(send, range(12)))
    (won,) = set(filter(None, digests))
    assert digests.count(won) == 1
    with server.client() as client:
        (version,) = client.skill_versions(name)["versions"]
        assert version["digest"] == won
        assert client.execute_skill(name, {}).output == {"said": f"word {digests.index(won)}"}


def test_a_token_publishes_for_its_project_only_with_the_scope(server: Server, client: SyncClient) -> None:
    usual, publisher = (token(server, name, *words) for name, words in TOKENS.items())
    with SyncClient(server.url, usual) as other, pytest.raises(Forbidden, match="publish"):
        other.publish_skill(tar(skill_files("acme.of.crm")))
    with SyncClient(server.url, publisher) as other:
        other.publish_skill(tar(skill_files("acme.of.crm")))
        assert other.skill_versions("acme.of.crm")["project"] == "crm"
        client.publish_skill(tar(note_files("of-default", "1.0.0")))
        with pytest.raises(Forbidden, match="another project"):
            other.withdraw_skill("of-default", "1.0.0")


def token(server: Server, *words: str) -> str:
    command = [sys.executable, "-m", "skillyard", "token", "create", *words]
    environ = {**os.environ, "SKILLYARD_DATA_DIR": str(server.data_dir)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_all_of_it_outlives_the_server(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    log = log_of(data_dir)
    with Server(data_dir) as server, server.client() as client:
        first = client.publish_skill(a_skill(version="1.0.0", word="first"))
        client.publish_skill(a_skill(version="2.0.0", word="second"))
        client.withdraw_skill(NAME, "2.0.0", reason="it leaks")
        assert client.execute_skill(NAME, {}).output == {"said": "first"}
        until(lambda: '"withdrawn"' in log.read_text(), 60)
        server.kill()
    with Server(data_dir) as server, server.client() as client:
        assert client.list_skills()["skills"][0] == {"name": NAME, "version": "1.0.0"}
        assert client.execute_skill(NAME, {}).output == {"said": "first"}
        with pytest.raises(SkillNotFound, match="it leaks"):
            client.execute_skill(NAME, {}, version="2.0.0")
        client.restore_skill(NAME, "2.0.0")
        client.pin_skill(NAME, "1.0.0")
        assert not client.publish_skill(a_skill(version="1.0.0", word="first")).created
        assert client.export_skill(NAME, tmp_path / "out.tar.gz").digest == first.digest
        until(lambda: '"pinned"' in log.read_text(), 60)
    changes = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "catalogue changed"]
    told = [(line["act"], line["version"], line["principal"]) for line in changes]
    who = changes[0]["principal"]
    acts = [("published", "1.0.0"), ("published", "2.0.0"), ("withdrawn", "2.0.0"), ("restored", "2.0.0")]
    assert told == [(*act, who) for act in (*acts, ("pinned", "1.0.0"))]
    assert changes[0]["digest"] == first.digest


@pytest.mark.anyio
async def test_in_process_and_without_blocking_the_loop(tmp_path: Path, server: Server) -> None:
    source = on_disk(tmp_path / "source", skill_files("acme.inside.process"))
    async with Runtime(tmp_path / "data") as runtime:
        made: Any = await runtime.publish_skill(source)
        assert made.created
        out = await runtime.export_skill("acme.inside.process", tmp_path / "out.zip", form="zip")
        assert out.digest == made.digest
        with pytest.raises(domain_errors.BundleRefused):
            await runtime.publish_skill(b"no archive")
        assert (await runtime.skill_versions("acme.inside.process"))["latest"] == "1.0.0"
    async with Client(server.url, server.token) as client:
        sent = await client.publish_skill(tmp_path / "out.zip")
        assert sent.digest == made.digest
        got = await client.export_skill("acme.inside.process", tmp_path / "back.tar.gz", version="1.0.0")
        assert (got.digest, got.version) == (made.digest, "1.0.0")
    assert unpacked((tmp_path / "back.tar.gz").read_bytes()) == skill_files("acme.inside.process")
