"""Tokens with profiles and agents, through every face of a real server and of a runtime in process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from skillyard import Runtime
from skillyard.client import SyncClient
from skillyard.client.errors import ClientError, Forbidden, SkillNotFound
from skillyard.config.settings import load_settings
from skillyard.domain import errors
from skillyard.domain.principal import Principal
from skillyard.engine.table import METHODS
from tests.bundles import a_skill, note_files, tar, zipped
from tests.crash.server import Server

NAME = "acme.words.say"
AGENT_YAML = """name: skill_orchestrator_agent
allowed_tools:
  - "skills.load"
  - "skills.activate"
  - "skills.run_cmd"
"""
ALL_SCOPES = "discover,execute,run_code,blobs,publish,admin"
PUBLISHER = ("--scopes", "discover,execute,blobs,publish", "--project", "crm")
COUNTED = """[profiles.counted]
allowed_tools = ["*"]
quotas = {calls = 2, calls_window_s = 3600}
"""
TOKENS = {
    "counted": ("--scopes", ALL_SCOPES, "--profile", "counted"),
    "beside": ("--scopes", ALL_SCOPES, "--profile", "counted"),
    "ann": PUBLISHER,
    "adam": (*PUBLISHER, "--agent", "crawler", "--agents", "crawler-*"),
    "eve": ("--scopes", "discover,execute,publish", "--project", "hr"),
    "bounded": ("--scopes", ALL_SCOPES, "--project", "crm", "--profile", "orchestrator"),
    "lost": ("--scopes", ALL_SCOPES, "--profile", "nowhere"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("profiles")
    (home / "data").mkdir()
    (home / "agent.yaml").write_text(AGENT_YAML)
    (home / "data" / "config.toml").write_text(f'[profiles.orchestrator]\nfile = "{home}/agent.yaml"\n{COUNTED}')
    with Server(home / "data") as server:
        yield server


@pytest.fixture(scope="module")
def tokens(server: Server) -> dict[str, str]:
    return {name: token(server, name, *words) for name, words in TOKENS.items()}


def token(server: Server, *words: str) -> str:
    command = [sys.executable, "-m", "skillyard", "token", "create", *words]
    environ = {**os.environ, "SKILLYARD_DATA_DIR": str(server.data_dir)}
    environ["SKILLYARD_PROFILES__NOWHERE__ALLOWED_TOOLS"] = '["skills.*"]'  # the server's settings lack it
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture(scope="module")
def ann(server: Server, tokens: dict[str, str]) -> Iterator[SyncClient]:
    with SyncClient(server.url, tokens["ann"]) as client:
        for version in ("1.0.0", "1.1.0"):
            client.publish_skill(a_skill(version=version, word=version))
        yield client


def test_no_face_gives_what_a_profile_leaves_out(server: Server, ann: SyncClient, tokens: dict[str, str]) -> None:
    allowed = {"skills.load", "skills.activate", "skills.run_cmd", "rpc.discover"} & METHODS.keys()
    blob = ann.put_blob(b"data", "text/plain").blob_id
    with SyncClient(server.url, tokens["bounded"]) as client:
        assert {method["name"] for method in client.call("rpc.discover")["methods"]} == allowed
        assert client.skills_load(NAME)["version"] == "1.1.0"
        for method in METHODS.keys() - allowed:
            with pytest.raises(Forbidden, match=f"profile 'orchestrator' of this token does not allow .*'{method}'"):
                client.call(method)
        with pytest.raises(ClientError, match="none of this name; there are") as unknown:
            client.call("no.such")
        assert "runs.list" not in str(unknown.value)
        for tool, attempt in (
            ("create_blob", lambda: client.put_blob(b"x", "text/plain")),
            ("read_blob", lambda: client.get_blob(blob, Path(os.devnull))),
            ("skills.upload", lambda: client.publish_skill(a_skill("acme.of.bounded"))),
            ("read_skill_file", lambda: client.export_skill(NAME, Path(os.devnull))),
        ):
            with pytest.raises(Forbidden, match=f"profile 'orchestrator' .* the tool '{tool}'"):
                attempt()
    headers = {"authorization": f"Bearer {tokens['bounded']}"}
    for path in ("/metrics", f"/blobs/{blob}", "/blobs/nonsense", f"/skills/{NAME}/latest"):
        assert httpx2.get(server.url + path, headers=headers).status_code == 403, path
    body: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": name, "params": {}} for name in ("runs.list", "skills.list")
    ]
    batch = httpx2.post(f"{server.url}/rpc", json=body, headers=headers).json()
    assert [answer["error"]["data"]["tool"] for answer in batch] == ["runs.list", "skills.list"]


def test_calls_beyond_a_quota_are_told_when_to_come_again(server: Server, tokens: dict[str, str]) -> None:
    headers = {"authorization": f"Bearer {tokens['counted']}"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "runs.list", "params": {}}
    answers = [httpx2.post(f"{server.url}/rpc", json=body, headers=headers) for _ in range(4)]
    assert ["result" in answer.json() for answer in answers] == [True, True, False, False]
    error = answers[-1].json()["error"]
    assert (answers[-1].status_code, error["code"]) == (429, -32005)
    assert error["data"]["limit"] == "profiles.counted.quotas.calls"
    assert 0 < error["data"]["retry_after_ms"] <= 3_600_000
    assert "its profile 'counted' allows no more; come again in" in error["message"]
    with SyncClient(server.url, tokens["beside"]) as beside:
        assert beside.call("runs.list")["runs"] == []


def test_a_command_line_with_such_a_token_is_refused(server: Server, tokens: dict[str, str]) -> None:
    from skillyard.faces.cli.main import cli

    env = {"SKILLYARD_URL": server.url, "SKILLYARD_TOKEN": tokens["bounded"], "SKILLYARD_DEBUG": None}
    done = CliRunner().invoke(cli, ["runs", "list"], env=env)
    assert done.exit_code != 0
    assert "the profile 'orchestrator' of this token does not allow the tool 'runs.list'" in done.stderr


def test_a_token_whose_profile_the_settings_lack_may_do_nothing(server: Server, tokens: dict[str, str]) -> None:
    with SyncClient(server.url, tokens["lost"]) as client:
        for method in ("rpc.discover", "list_skills", "runs.list"):
            with pytest.raises(Forbidden, match=f"{method}: the settings of this server lack the profile 'nowhere'"):
                client.call(method)
        with pytest.raises(Forbidden, match="nowhere"):
            client.put_blob(b"x", "text/plain")


@pytest.mark.anyio
async def test_a_runtime_holds_its_principal_to_the_profile(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path / "data", profiles={"reader": {"allowed_tools": ["skills.l*"]}})
    async with Runtime(settings=settings, principal=Principal("ann", profile="reader")) as runtime:
        assert [row["skill_name"] for row in (await runtime.skills_list())["skills"]] == ["skills.protocol.guide"]
        attempts: list[Any] = [
            runtime.list_skills(),
            runtime.put_blob(b"x", "text/plain"),
            runtime.get_blob("blob:x", tmp_path / "x"),
            runtime.publish_skill(a_skill()),
            runtime.export_skill("skills.protocol.guide", tmp_path / "x"),
        ]
        for attempt in attempts:
            with pytest.raises(errors.Forbidden, match="the profile 'reader' of this token does not allow"):
                await attempt


def test_the_tools_of_the_catalogue_from_upload_to_delete(server: Server, ann: SyncClient) -> None:
    name = "some-note"
    first = ann.skills_upload(zipped(note_files(name, "1.0.0")))
    assert (first["version"], first["created"], first["active_version"]) == ("1.0.0", True, "1.0.0")
    blob = ann.put_blob(tar(note_files(name, "2.0.0", text="more")), "application/gzip").blob_id
    second = ann.skills_upload(blob_id=blob, activate=False)
    assert (second["version"], second["active_version"]) == ("2.0.0", "1.0.0")
    assert ann.skills_set_version(name, "2.0.0")["version_hash"] == second["version_hash"]
    loaded = ann.skills_load(name)
    assert loaded["content"].encode() == note_files(name, "2.0.0", text="more")["SKILL.md"]
    assert (loaded["bytes"], loaded["version_hash"]) == (len(loaded["content"]), second["version_hash"])
    rows = {row["skill_name"]: row for row in ann.skills_list()["skills"]}
    assert (rows[name]["version_hash"], rows[name]["enabled"]) == (second["version_hash"], True)
    ready = ann.skills_activate(name)
    assert (ready["mode"], ready["local_dir"], ready["active_path"]) == ("local", f"/skills/{name}", "skill")
    assert ann.skills_delete(name)["deleted"] == [
        {"version": made["version"], "version_hash": made["version_hash"]} for made in (second, first)
    ]
    with pytest.raises(SkillNotFound):
        ann.skills_load(name)


def test_a_disabled_skill_is_of_no_use_to_its_project_alone(
    server: Server, ann: SyncClient, tokens: dict[str, str]
) -> None:
    with SyncClient(server.url, tokens["adam"]) as adam, SyncClient(server.url, tokens["eve"]) as eve:
        assert ann.skills_disable(NAME)["changed"]
        for use in (adam.skills_load, adam.skills_activate, adam.describe_skill, adam.execute_skill):
            with pytest.raises(SkillNotFound, match="is disabled in the project 'crm'"):
                use(NAME)
        assert NAME not in [row["name"] for row in adam.list_skills()["skills"]]
        assert [row["enabled"] for row in adam.skills_list()["skills"] if row["skill_name"] == NAME] == [False]
        assert eve.skills_load(NAME)["version"] == "1.1.0"
        assert ann.skills_disable(NAME, enabled=True)["changed"]
        assert adam.execute_skill(NAME, {}).output == {"said": "1.1.0"}


def test_the_command_line_disables_activates_and_deletes(
    server: Server, ann: SyncClient, tokens: dict[str, str]
) -> None:
    from skillyard.faces.cli.main import cli

    env = {"SKILLYARD_URL": server.url, "SKILLYARD_TOKEN": tokens["ann"], "SKILLYARD_DEBUG": None}
    name = "acme.by.hand"
    ann.publish_skill(a_skill(name))
    told = []
    for words in (("disable", name), ("enable", name), ("activate", name), ("delete", f"{name}@1.0.0")):
        done = CliRunner().invoke(cli, ["skill", *words], env=env)
        assert done.exit_code == 0, done.output
        told.append(done.stderr.strip())
    assert told == [
        f"{name} cannot be used in the project crm",
        f"{name} can be used in the project crm",
        f"{name}@1.0.0 is ready in /skills/{name}",
        f"{name}: deleted 1.0.0; the name means no version now",
    ]
    refused = CliRunner().invoke(cli, ["skill", "activate", name, "--agent", "bob"], env=env)
    assert "acts for the agent 'ann'" in refused.stderr


def test_an_agent_is_named_where_the_token_allows_it(server: Server, ann: SyncClient, tokens: dict[str, str]) -> None:
    with SyncClient(server.url, tokens["adam"]) as adam:
        for agent in ("crawler", "crawler-7"):
            assert adam.skills_load(NAME, agent=agent)["version"] == "1.1.0"
        for refused in ("ann", "adam"):
            with pytest.raises(Forbidden, match="acts for the agent 'crawler'"):
                adam.skills_load(NAME, agent=refused)


def test_another_project_changes_nothing(server: Server, ann: SyncClient, tokens: dict[str, str]) -> None:
    with SyncClient(server.url, tokens["eve"]) as eve:
        with pytest.raises(Forbidden, match="another project"):
            eve.skills_set_version(NAME, "1.0.0")
        with pytest.raises(Forbidden, match="another project"):
            eve.skills_delete(NAME, version="1.0.0")
        with pytest.raises(Forbidden, match="another project"):
            eve.skills_upload(a_skill(version="3.0.0"))
        blob = ann.put_blob(a_skill("acme.of.eve"), "application/gzip").blob_id
        with pytest.raises(ClientError, match=f"no blob '{blob}'"):
            eve.skills_upload(blob_id=blob)
        eve.skills_disable(NAME)
        assert ann.skills_load(NAME)["version"] == "1.1.0"
        eve.skills_disable(NAME, enabled=True)


def test_a_restart_keeps_what_is_disabled(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, server.client() as client:
        client.publish_skill(a_skill())
        client.skills_disable(NAME)
        server.kill()
    with Server(tmp_path / "data") as server, server.client() as client:
        with pytest.raises(SkillNotFound, match="disabled"):
            client.skills_load(NAME)
        assert client.skills_disable(NAME, enabled=True)["changed"]
        assert client.skills_load(NAME)["version"] == "1.0.0"
