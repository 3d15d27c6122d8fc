"""Published skills on a real server, in real sandboxes: what they declare is granted when an operator approved it, and
foreign code comes by nobody else's grants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skillyard.client.errors import RpcError
from skillyard.client.run import Run
from skillyard.client.sync import SyncClient
from skillyard.domain.principal import Principal, Scope
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.tokens import FileTokens
from tests.bundles import skill_files, tar
from tests.faces.server.test_server import Server

VALUE = "xyzzy-0123456789-plugh"
LOOK = """
import os, urllib.request

def look(url):
    try:
        said = urllib.request.urlopen(url, timeout=20).read().decode()
    except OSError as error:
        said = type(error).__name__
    return {"said": said, "key": len(os.environ.get("KEY", ""))}
"""
MAIN = LOOK + "\ndef main(args):\n    return look(args['url'])\n"
TOP = "\ndef main(args):\n    from skills.other.lib import main\n    return main(args)\n"


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_args: Any) -> None:
        return


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"site.test:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class World:
    """A server, an operator ``root`` and an author ``ann`` who may publish."""

    def __init__(self, server: Server, site: str, tokens: dict[str, str]) -> None:
        url = server.ready()
        self.site = site
        self.env = {"SKILLYARD_URL": url, "SKILLYARD_TOKEN": tokens["root"]}
        self.root, self.ann = SyncClient(url, tokens["root"]), SyncClient(url, tokens["ann"])

    def asks(self, *more: str) -> str:
        secrets = 'secrets = [{ name = "KEY", optional = true }]'
        return "\n".join([*more, "[permissions]", f'network = ["{self.site}"]', secrets, "[limits]", "memory_mb = 600"])

    def publish(self, name: str, version: str = "1.0.0", *, code: str = MAIN, more: str = "") -> None:
        """``more`` stands in the manifest: what belongs to no table before its tables."""
        files = skill_files(name, version)
        head, table, rest = files["skill.toml"].decode().partition("[runtime]")
        plain, brackets, tables = more.partition("[permissions]")
        manifest = f"{head}{plain}\n{table}{rest}\n{brackets}{tables}\n"
        self.ann.publish_skill(tar({**files, "skill.toml": manifest.encode(), "code/main.py": code.encode()}))

    def execute(self, name: str, **more: Any) -> Run:
        run = self.ann.execute_skill(name, {"url": f"http://{self.site}/"}, **more)
        assert run.status == "completed", run.raw
        return run

    def needs(self, run: Run) -> dict[str, Any]:
        needs = self.ann.show_run(run.run_id)["run"]["needs"]
        assert isinstance(needs, dict)
        return needs

    def cli(self, *words: str) -> Result:
        from skillyard.faces.cli.main import cli

        result = CliRunner().invoke(cli, words, env=self.env)
        assert result.exit_code == 0, result.output
        return result


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, site: str) -> Iterator[World]:
    data = tmp_path_factory.mktemp("trust") / "data"
    data.mkdir(mode=0o700)
    (data / "config.toml").write_text(
        '[network]\nrun_code = "mounted"\nhosts = {"site.test" = "127.0.0.1"}\n'
        '[policy]\nrun_code_secrets = "mounted"\n[trust]\napprove = ["ruled.* >=1,<2"]\n'
    )
    store = FileTokens(data / "tokens.json", SystemClock())
    people = (Principal("root"), Principal("ann", frozenset(Scope) - {Scope.ADMIN}))
    tokens = {who.name: asyncio.run(store.create(who)) for who in people}
    server = Server(data)
    try:
        world = World(server, site, tokens)
        with world.root, world.ann:
            [native] = [found for found in world.root.show_policy()["isolations"] if found["isolation"] == "native"]
            if native["egress"] == "missing":
                pytest.skip(f"no sandbox of this host can be plugged into a gate: {native['why']}")
            world.root.set_secret("KEY", VALUE)
            yield world
    finally:
        server.close()


LEAST = {"said": "URLError", "key": 0}
ALL = {"said": "hello", "key": len(VALUE)}


def test_an_approval_is_the_difference(world: World) -> None:
    world.publish("acme.look", more=world.asks())
    run = world.execute("acme.look")
    assert (run.output, run.raw["limits"]["memory_mb"]) == (LEAST, 512)
    needs = world.needs(run)
    assert needs["least"] == "'acme.look' 1.0.0 is not approved: `skillyard skill approve acme.look@1.0.0`"
    assert needs["skills"][0]["needs"] == [
        {"need": "network", "asked": world.site, "why": "not approved"},
        {"need": "secret", "asked": "KEY, optional", "why": "not approved"},
        {
            "need": "limit",
            "asked": "memory_mb=600",
            "granted": "memory_mb=512",
            "why": "not approved: the default at most",
        },
    ]
    explained = world.ann.explain_policy([world.site], skill="acme.look")
    assert explained["least"] == needs["least"]
    assert not explained["targets"][0]["allowed"]
    with pytest.raises(RpcError, match="lacks the scope"):
        world.ann.approve_skill("acme.look")

    seen = world.root.skill_needs("acme.look")
    world.root.approve_skill("acme.look", version="1.0.0", digest=seen["digest"], note="read it")
    run = world.execute("acme.look")
    assert (run.output, run.raw["limits"]["memory_mb"]) == (ALL, 600)
    needs = world.needs(run)
    assert (needs["least"], needs["skills"][0]["because"]) == ("", "root")
    assert [row["granted"] for row in needs["skills"][0]["needs"]] == [world.site, "env", "memory_mb=600"]
    assert world.ann.explain_policy([world.site], skill="acme.look")["targets"][0]["allowed"]

    assert world.root.revoke_skill("acme.look")["revoked"] == 1
    assert world.execute("acme.look").output == LEAST


def test_a_newer_version_that_nobody_approved_does_not_inherit(world: World) -> None:
    world.publish("acme.grow", more=world.asks())
    world.root.approve_skill("acme.grow")
    world.publish("acme.grow", "1.1.0", more=world.asks())
    assert world.execute("acme.grow").output == LEAST
    assert world.execute("acme.grow", version="1.0.0").output == ALL


def test_a_library_that_nobody_approved_does_not_run_with_anothers_grants(world: World) -> None:
    """Its author publishes a new version into the range of a skill that has a secret."""
    world.publish("acme.top", code=TOP, more=world.asks('requires = ["other.lib >=1"]'))
    world.publish("other.lib", code="def main(args):\n    return {'said': 'good', 'key': 0}\n")
    for name in ("acme.top", "other.lib"):
        world.root.approve_skill(name)
    world.publish("other.lib", "1.1.0", code=MAIN)
    run = world.execute("acme.top")
    assert run.output == {"said": "good", "key": 0}
    assert {"need": "requires", "asked": "other.lib >=1.0.0", "granted": "other.lib 1.0.0"} in world.needs(run)[
        "skills"
    ][0]["needs"]
    world.root.withdraw_skill("other.lib", "1.0.0")
    run = world.execute("acme.top")
    assert run.output == LEAST, "the only version that is left is foreign: nobody in the sandbox has anything"
    assert "'other.lib' 1.1.0 is not approved" in world.needs(run)["least"]
    world.root.approve_skill("other.lib")
    assert world.execute("acme.top").output == ALL


def test_nor_by_being_mounted_beside_it(world: World) -> None:
    world.publish("acme.good", more=world.asks())
    world.publish("acme.evil")
    world.root.approve_skill("acme.good")
    code = "from skills.acme.evil import main"
    for mounts, expected in ((["acme.good", "acme.evil"], LEAST), (["acme.evil"], LEAST)):
        run = world.ann.run_code(code, {"url": f"http://{world.site}/"}, mount_skills=mounts)
        assert run.output == expected, run.raw
    assert world.execute("acme.good", mount_skills=["acme.evil"]).output == LEAST
    world.root.approve_skill("acme.evil")
    run = world.ann.run_code(code, {"url": f"http://{world.site}/"}, mount_skills=["acme.good", "acme.evil"])
    assert run.output == ALL


def test_rules_and_names_that_look_like_them(world: World) -> None:
    for name, version, expected in (
        ("ruled.look", "1.2.0", ALL),
        ("ruled.look", "2.0.0", LEAST),
        ("ruledx.look", "1.0.0", LEAST),
    ):
        world.publish(name, version, more=world.asks())
        assert world.execute(name).output == expected
    with pytest.raises(RpcError):
        world.publish("rul\u0435d.look", more=world.asks())  # CYRILLIC SMALL LETTER IE


def test_a_secret_that_must_be_there(world: World) -> None:
    world.publish("acme.must", more='[permissions]\nsecrets = ["KEY"]')
    run = world.ann.execute_skill("acme.must", {})
    assert run.error is not None
    assert run.error["type"] == "PolicyRefused"
    assert "`skillyard skill approve acme.must@1.0.0`" in run.error["message"]
    assert VALUE not in json.dumps(run.raw)


def test_the_command_line(world: World, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    for path, data in skill_files("acme.cli").items():
        (bundle / path).parent.mkdir(parents=True, exist_ok=True)
        (bundle / path).write_bytes(data)
    (bundle / "code/main.py").write_text(MAIN)
    manifest = (bundle / "skill.toml").read_text()
    (bundle / "skill.toml").write_text(f"{manifest}\n{world.asks()}\n")
    world.cli("skill", "publish", str(bundle))
    shown = world.cli("skill", "needs", "acme.cli").stdout
    assert "not approved" in shown.splitlines()[0]
    assert ["secret", "KEY,", "optional", "env"] in [line.split() for line in shown.splitlines()]
    run_id = world.execute("acme.cli").run_id
    lines = world.cli("runs", "show", run_id).stdout.splitlines()
    assert ["acme.cli", "network", world.site, "nothing", "not", "approved"] in [line.split() for line in lines]
    assert "acme.cli@1.0.0: not approved" in lines

    approved = world.cli("skill", "approve", "acme.cli@1.0.0", "--note", "mine")
    assert approved.stdout == shown, "first what is approved"
    assert "acme.cli@1.0.0 is approved by root" in approved.stderr
    listed = json.loads(world.cli("skill", "approvals", "acme.cli", "--json").stdout)
    assert [(row["version"], row["note"], row["served"]) for row in listed] == [("1.0.0", "mine", True)]
    assert "acme.cli" in world.cli("skill", "approvals").stdout
    assert world.execute("acme.cli").output == ALL
    assert "1 approval taken back" in world.cli("skill", "revoke", "acme.cli").stderr
    assert world.execute("acme.cli").output == LEAST

    done = json.loads(world.cli("skill", "publish", str(bundle), "--approve", "--json").stdout)
    assert done["approval"]["digest"] == done["digest"]
    assert [row["asked"] for row in done["needs"]] == [world.site, "KEY, optional", "memory_mb=600"]
    assert world.execute("acme.cli").output == ALL
