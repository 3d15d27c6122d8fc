"""The client and the command line against a server that means harm: every answer ends, as an error of the client's
own, within bounds, and the token goes to nobody else."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillyard.client import Client
from skillyard.client.errors import BadArgument, BadReply, ClientError, ConnectionFailed, ConnectionLost
from skillyard.client.sync import SyncClient
from tests.attacks.front_door.hostile import Hostile, Script, answer, endless, result

TOKEN = "sky_token-that-must-not-leak"
MEGABYTE = b"x" * 1_000_000
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MAX_MORE_KIB = 400 * 1024
"""The bound on an answer, a few times: pieces, their sum, what the parser makes of it."""

ENDLESS: dict[str, Script] = {
    "a body without an end": lambda _: endless(CHUNKED, b"f4240\r\n" + MEGABYTE + b"\r\n", 100),
    "a body until the connection ends": lambda _: endless(b"HTTP/1.1 200 OK\r\n\r\n", MEGABYTE, 100),
    "an endless head": lambda _: endless(b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 10_000 + b"\r\n", 2000),
    "an endless line": lambda _: endless(b"HTTP/1.1 200 ", b"y" * 10_000, 2000),
    "continue, and again": lambda _: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 20_000),
}

ANSWERS: dict[str, bytes] = {
    "a body that is longer than it says": answer(b'{"jsonrpc":"2.0","id":1,"result":{}}')[:-1] + b",,,,",
    "a body that is shorter than it says": b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{}",
    "chunks without a size": CHUNKED + b"\r\n\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
    "a length of many digits": b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "nothing": b"",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "deep arrays": answer(b"[" * 1_000_000),
    "deep objects": answer(b'{"result":' * 100_000 + b"1" + b"}" * 100_000),
    "many digits": answer(b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"result":{}}'),
    "a bomb of zeros": answer(b"\x1f\x8b\x08\x00" + b"\x00" * 1000, b"content-encoding: gzip"),
    "a list": answer(b"[]"),
    "another's id": answer(b'{"jsonrpc":"2.0","id":7,"result":{}}'),
    "a result that is none": answer(b'{"jsonrpc":"2.0","id":1,"result":[]}'),
    "an error that is none": answer(b'{"jsonrpc":"2.0","id":1,"error":"x"}'),
    "an error with a code that is none": answer(b'{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}'),
    "UTF-16": answer('{"jsonrpc":"2.0","id":1}'.encode("utf-16")),
    "bytes": answer(bytes(range(256))),
    **{
        f"{status} to {where}": answer(b"", b"location: " + where.encode(), status=f"{status} Moved".encode())
        for status in (301, 302, 303, 307, 308)
        for where in ("file:///etc/passwd", "http://127.0.0.1:1/rpc", "//evil/rpc", "\\\\evil\\share")
    },
}

SCRIPTS: dict[str, Script] = ENDLESS | {name: lambda _, data=data: (data,) for name, data in ANSWERS.items()}
BOTH = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])


async def ask(url: str, *, blocking: bool) -> None:
    if blocking:
        with SyncClient(url, TOKEN, timeout=5, retries=0) as client:
            client.call("list_skills")
    else:
        async with Client(url, TOKEN, timeout=5, retries=0) as aclient:
            await aclient.call("list_skills")


@pytest.mark.anyio
@BOTH
@pytest.mark.parametrize("name", SCRIPTS)
async def test_each_answer_ends_as_an_error_of_the_client(name: str, *, blocking: bool) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Hostile(SCRIPTS[name]) as server:
        with pytest.raises(ClientError) as caught:
            await ask(server.url, blocking=blocking)
        assert TOKEN not in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert len(server.requests) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_MORE_KIB


@pytest.mark.anyio
@BOTH
@pytest.mark.parametrize("name", ["a body without an end", "a body until the connection ends"])
async def test_an_answer_without_an_end_is_left(name: str, *, blocking: bool) -> None:
    with Hostile(ENDLESS[name]) as server, pytest.raises(BadReply, match="has more than"):
        await ask(server.url, blocking=blocking)


def test_a_server_that_only_ever_goes_on_is_left() -> None:
    with (
        Hostile(ENDLESS["continue, and again"]) as server,
        SyncClient(server.url, TOKEN, timeout=5, retries=0) as client,
        pytest.raises(BadReply, match="goes on"),
    ):
        client.call("list_skills")


@pytest.mark.anyio
@BOTH
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_other_server_learns_the_token(status: int, *, blocking: bool) -> None:
    with Hostile(lambda _: (result({"skills": []}),)) as other:
        moved = answer(b"", f"location: {other.url}/rpc".encode(), status=f"{status} Moved".encode())
        with Hostile(lambda _: (moved,)) as server, pytest.raises(BadReply):
            await ask(server.url, blocking=blocking)
        assert server.requests[0].count(TOKEN.encode()) == 1
        assert other.requests == []


def test_a_range_is_not_exceeded(tmp_path: Path) -> None:
    part = answer(b"x" * 1000, b"content-range: bytes 0-9/" + b"9" * 5000, status=b"206 Partial Content")
    with Hostile(lambda _: (part,)) as server, SyncClient(server.url, TOKEN, retries=0) as client:
        with pytest.raises(BadReply):
            client.get_blob("blob:x", tmp_path / "part", length=10)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{}", ()),
        (b"[1]", ()),
        (b'{"blob_id":1,"size_bytes":2,"sha256":3}', ()),
        (b'{"blob_id":"b","size_bytes":"2","sha256":""}', ()),
        (b"[" * 500_000, ()),
    ],
)
def test_an_upload_that_is_not_confirmed(body: bytes, headers: tuple[bytes, ...]) -> None:
    with Hostile(lambda _: (answer(body, *headers, status=b"201 Created"),)) as server:  # noqa: SIM117 - one at a time
        with SyncClient(server.url, TOKEN, retries=0) as client, pytest.raises(BadReply):
            client.put_blob(b"data")


URLS = (
    "http://127.0.0.1:8765/\x00", "http://127.0.0.1:8765/a b", "http://127.0.0.1:8765/\r\nX: y", "file:///etc/passwd",
    "http://user@127.0.0.1/", "http://127.0.0.1:99999/", "ftp://127.0.0.1/", "http://\u0131nternal/", "//x",
)  # fmt: skip


@pytest.mark.parametrize("url", URLS, ids=ascii)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(BadArgument):
        SyncClient(url, TOKEN)


def test_a_name_that_can_be_no_host() -> None:
    with SyncClient(f"http://{'a' * 100}.invalid", TOKEN, retries=0) as client, pytest.raises(ConnectionFailed):
        client.call("list_skills")


@pytest.mark.parametrize("token", ["a\r\nX: y", "a b", "\u00e9", "a\x00", "a\n"])
def test_a_token_that_is_none(token: str) -> None:
    with pytest.raises(BadArgument):
        SyncClient("http://127.0.0.1:1", token)


@pytest.mark.parametrize("kind", ["a/b\r\nX: y", "a/b\n", "\u00e9/x", "\x00"])
def test_a_kind_is_no_header(kind: str) -> None:
    with SyncClient("http://127.0.0.1:1", TOKEN, retries=0) as client, pytest.raises(BadArgument):
        client.put_blob(b"x", kind)


@pytest.mark.parametrize("blob_id", ["x y", "x\r\nX: y", "../rpc", "?x=1", "#x", "%00", "\u00e9"])
def test_a_blob_id_is_no_path(blob_id: str, tmp_path: Path) -> None:
    with Hostile(lambda _: (answer(b"", status=b"404 Not Found"),)) as server:
        with SyncClient(server.url, TOKEN, retries=0) as client, pytest.raises(ClientError):
            client.get_blob(blob_id, tmp_path / "x")
        target = server.requests[0].split(b" ")[1]
    assert target.startswith(b"/blobs/")
    assert not set(target[7:]) & set(b"/?#\r\n ")


# The command line

STEERING = "\x1b]0;evil\x07\x9b31m\u202e\x08" * 3
UNSAFE = ("\x1b", "\x07", "\x9b", "\u202e", "\x08")


def skillyard(url: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "skillyard", *words, "--url", url, "--token", TOKEN]
    environ = {**os.environ, "SKILLYARD_DATA_DIR": str(home / "none")}
    done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done


def refusal(message: str) -> bytes:
    error = {"code": -32602, "message": message, "data": {"type": "InvalidParams"}}
    return answer(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}, ensure_ascii=False).encode())


def ran(**fields: Any) -> bytes:
    return result({"status": "completed", "run_id": "run_1", "summary": "s", "output": {}, **fields})


def test_what_a_server_says_steers_no_terminal(tmp_path: Path) -> None:
    with Hostile(lambda _: (refusal(STEERING + "x" * 1_000_000),)) as server:
        done = skillyard(server.url, tmp_path, "skill", "list")
    assert done.returncode == 2
    assert len(done.stderr) < 10_000
    assert not [mark for mark in UNSAFE if mark in done.stderr]


def test_what_a_server_shows_steers_no_terminal(tmp_path: Path) -> None:
    row = {"name": STEERING, "version": STEERING, "kind": STEERING, "description": STEERING}
    page = result({"skills": [row], "next_cursor": None})
    with Hostile(lambda _: (page,)) as server:
        for words in (("skill", "list"), ("skill", "list", "--json")):
            done = skillyard(server.url, tmp_path, *words)
            assert done.returncode == 0
            assert not [mark for mark in UNSAFE if mark in done.stdout]
        assert json.loads(done.stdout)[0]["name"] == STEERING


@pytest.mark.parametrize(
    "page",
    [
        {"runs": [], "next_cursor": "again"},
        {"runs": [{"run_id": "x"}] * 5000, "next_cursor": None},
        {"runs": "none", "next_cursor": None},
        {"runs": ["none"], "next_cursor": None},
        {},
    ],
    ids=["empty for ever", "too long", "no list", "no rows", "nothing"],
)
def test_pages_that_lead_nowhere(tmp_path: Path, page: dict[str, Any]) -> None:
    with Hostile(lambda _: (result(page),)) as server:
        done = skillyard(server.url, tmp_path, "runs", "list")
    assert done.returncode not in (0, 1)
    assert len(server.requests) == 1


def test_a_log_that_repeats_itself(tmp_path: Path) -> None:
    page = {"run_id": "r", "content": "again", "offset": 0, "next_offset": 0, "running": True, "complete": False}
    with Hostile(lambda _: (result(page),)) as server:
        done = skillyard(server.url, tmp_path, "runs", "logs", "run_1", "--follow")
    assert done.returncode not in (0, 1)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "blob_id", ["blob:../../evil", "blob:/etc/evil", "blob:.bashrc", "blob:a\x00b", "..", "blob:mine"]
)
def test_a_blob_is_saved_where_the_user_says_and_over_nothing(tmp_path: Path, blob_id: str) -> None:
    there = tmp_path / "out"
    there.mkdir()
    (there / "mine").write_text("mine")
    stat = json.dumps({"jsonrpc": "2.0", "id": 2, "result": {"blob": {"blob_id": blob_id, "kind": "none"}}}).encode()
    script = (ran(output_blobs=[blob_id]), answer(stat), answer(b"evil"))
    with Hostile(lambda n: (script[n],)) as server:
        (tmp_path / "code.py").write_text("def main(args): ...")
        skillyard(server.url, tmp_path, "exec", "code.py", "--save", "out")
    assert (there / "mine").read_text() == "mine"
    assert not (there / ".bashrc").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "code.py"}
    assert all(path.parent == there for path in there.rglob("*"))


def test_a_connection_that_ends_is_said_to_have_ended(tmp_path: Path) -> None:
    assert issubclass(ConnectionLost, ConnectionFailed)
    with Hostile(lambda _: (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",)) as server:
        assert skillyard(server.url, tmp_path, "exec", "-").returncode == 3
