"""Real MCP servers of the registries work in a jail as they do without one, and reach nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.faces.jail.conftest import BOUND_S, Jails, marked, until
from tests.faces.jail.known_servers import PLACE, SERVERS, SHORT, bare, fetched, fill
from tests.faces.jail.test_reach import serving

SECRET = "PRIVATE KEY of the operator"


@asynccontextmanager
async def client(words: list[str], env: dict[str, str]) -> AsyncIterator[ClientSession]:
    program = StdioServerParameters(command=words[0], args=words[1:], env=env)
    with Path(os.devnull).open("w") as nowhere:
        async with stdio_client(program, errlog=nowhere) as streams, ClientSession(*streams) as session:
            await session.initialize()
            yield session


def answers(words: list[str], env: dict[str, str], calls: list[Any]) -> list[Any]:
    """Returns the tools of a server, and what it answers to each call."""

    async def ask() -> list[Any]:
        async with client(words, env) as session:
            told: list[Any] = [(await session.list_tools()).model_dump(mode="json")["tools"]]
            told += [(await session.call_tool(*call)).model_dump(mode="json") for call in calls]
            return told

    return asyncio.run(asyncio.wait_for(ask(), BOUND_S))


@pytest.fixture
def added(jails: Jails) -> Jails:
    """Jails with the packages that ``.ci/setup`` fetched."""
    base = jails.home / "jails"
    base.mkdir(parents=True, mode=0o700)
    (base / "packages").symlink_to(PLACE / "packages")
    return jails


@pytest.fixture
def sides(place: Path) -> Iterator[dict[str, Path]]:
    """Two directories with the same content, each a repository with one commit."""
    found = {}
    for side in ("bare", "jailed"):
        found[side] = there = place / side
        there.mkdir()
        (there / "first.txt").write_text("first\n")
        by = {f"GIT_{who}_{what}": "x@x 1700000000 +0000" if what == "DATE" else "x"
              for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL", "DATE")}  # fmt: skip
        for each in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
            by[each] = "1700000000 +0000"
        for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
            env = {**os.environ, **by, "HOME": str(place)}
            subprocess.run(["git", *words], cwd=there, env=env, check=True, timeout=BOUND_S)
        (there / "first.txt").write_text("second\n")
    return found  # type: ignore[return-value]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not fetched(name), reason=f"there is no {PLACE / 'packages' / name} (.ci/setup)")


def _each() -> list[Any]:
    more = [] if len(SHORT) == len(SERVERS) else [pytest.mark.long]
    return [pytest.param(name, marks=[needs(name), *([] if name in SHORT else more)]) for name in SERVERS]


@pytest.mark.parametrize("name", _each())
def test_a_server_works_as_it_does_bare(added: Jails, sides: dict[str, Path], name: str) -> None:
    server, told, left = SERVERS[name], {}, {}
    heard: list[str] = []
    with serving(heard) as port:
        for side, there in sides.items():
            args, grants, env, calls = (
                fill(each, place=there, port=port)
                for each in (server.args, server.grants, dict(server.env), server.calls)
            )
            words = bare(name) if side == "bare" else [*added.words("run"), *grants, name, "--"]
            found = answers([*words, *args], {**added.env, **env}, calls)
            told[side] = json.dumps(found).replace(str(there), "PLACE")
            left[side] = {
                str(path.relative_to(there)): path.read_bytes()
                for path in sorted(there.rglob("*"))
                if path.is_file() and ".git" not in path.parts and path.suffix != ".db"
            }
            assert all(not answer["is_error"] for answer in found[1:]), found[1:]
            assert all(path.stat().st_uid == os.getuid() for path in there.rglob("*"))
    assert told["jailed"] == told["bare"]
    assert left["jailed"] == left["bare"]
    [record] = added.records()
    assert (record.labels["jail"], record.kind.value) == (name, "jail")


def texts(answer: dict[str, Any]) -> str:
    return " ".join(part.get("text", "") for part in answer["content"])


@needs("files")
def test_a_server_of_files_reads_and_writes_no_other(added: Jails, place: Path) -> None:
    """It is told that all may be used; the walls know better."""
    home, shown = place / "home", place / "shown"
    for path in (home / ".ssh", home / ".config", shown):
        path.mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text(SECRET)
    (home / ".config" / "client.json").write_text(SECRET)
    (shown / "link").symlink_to(home / ".ssh")
    calls = [
        ["read_text_file", {"path": f"{home}/.ssh/id_ed25519"}],
        ["read_text_file", {"path": f"{home}/.config/client.json"}],
        ["read_text_file", {"path": f"{shown}/link/id_ed25519"}],
        ["read_text_file", {"path": "/proc/1/environ"}],
        ["read_text_file", {"path": f"{added.home}/secrets.sealed"}],
        ["write_file", {"path": f"{home}/.ssh/authorized_keys", "content": "mine"}],
        ["write_file", {"path": "/etc/cron.d/mine", "content": "mine"}],
    ]
    words = [*added.words("run"), "--write", str(shown), "files", "--", "/", str(shown)]
    found = answers(words, {**added.env, "HOME": str(home)}, [*calls, ["list_directory", {"path": str(shown)}]])
    refused = found[1:-1]
    assert all(answer["is_error"] for answer in refused), refused
    assert SECRET not in json.dumps(found)
    assert "link" in texts(found[-1])
    assert sorted(path.name for path in home.rglob("*")) == [".config", ".ssh", "client.json", "id_ed25519"]
    assert not Path("/etc/cron.d/mine").exists()


@needs("fetch")
def test_a_server_that_fetches_reaches_the_named_host_alone(added: Jails) -> None:
    heard: list[str] = []
    other: list[str] = []
    with serving(heard) as port, serving(other) as closed:
        urls = [
            f"http://127.0.0.1:{closed}/other",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::ffff:169.254.169.254]/latest/meta-data/",
            "http://192.0.2.1/",
            f"http://127.0.0.1:{port}/page",
        ]
        words = [*added.words("run"), "--allow", f"127.0.0.1:{port}", "fetch", "--", *SERVERS["fetch"].args]
        found = answers(words, added.env, [["fetch", {"url": url}] for url in urls])
    assert [answer["is_error"] for answer in found[1:]] == [True, True, True, True, False], found[1:]
    assert (len(heard), other) == (1, [])
    [record] = added.records()
    assert record.network is not None
    assert {c["allowed"] for c in record.network["connections"]} == {True, False}


@pytest.mark.long
@needs("everything")
def test_a_server_shows_no_variable_of_others(added: Jails) -> None:
    env = {**added.env, "TOKEN_OF_ANOTHER": SECRET, "WANTED": "given"}
    words = [*added.words("run"), "--env", "WANTED", "everything"]
    told = texts(answers(words, env, [["get-env", {}]])[1])
    assert SECRET not in told
    assert json.loads(told)["WANTED"] == "given"


@needs("files")
def test_nothing_of_a_server_survives_its_client(added: Jails, place: Path) -> None:
    words = [*added.words("run"), "--read", str(place), "files", "--", str(place)]
    code = "import json, subprocess, sys\nsubprocess.run(json.loads(sys.argv[1]))"
    reading, writing = os.pipe()
    killed = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(words)], env=added.env, stdin=reading, stderr=subprocess.PIPE
    )
    try:
        assert killed.stderr is not None
        with killed.stderr as said:
            assert b"running on stdio" in said.readline()
            assert marked(str(place))
            killed.kill()
            killed.wait(BOUND_S)
            until(lambda: not marked(str(place)), "the end of the server")
    finally:
        killed.kill()
        killed.wait(BOUND_S)
        os.close(reading)
        os.close(writing)
