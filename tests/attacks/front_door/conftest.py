"""One real server, started as a user starts it, for all of these tests. After the last one it must stand as before."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests import waiting
from tests.attacks.front_door.wire import Response, Wire
from tests.crash.server import Server

T = TypeVar("T")

SCOPES = "discover,execute,run_code,blobs"
BOUND_S = 30.0
MORE_KIB = 96 * 1024
"""What a server may keep of all this: freed memory that the allocator does not give back."""
MORE_DESCRIPTORS = 8

INSIDES = re.compile(
    rb"Traceback|site-packages|\.py\b|/src/|File \\\"|skillyard\.(?:engine|faces|stores|sandbox)|sqlite"
)
"""What no answer of the server itself may hold."""


@dataclass(frozen=True)
class Door:
    """The server and who comes: ``tokens`` of the owner, of alice, of mallory, who may not use ``demo.length``, and of
    a reader who may only discover."""

    server: Server
    tokens: dict[str, str]

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    @property
    def data_dir(self) -> Path:
        return self.server.data_dir

    def wire(self) -> Wire:
        return Wire(self.port)

    def head(self, line: str, *headers: str, who: str = "alice") -> bytes:
        """A request's head with the right Host and a token."""
        lines = (f"{line} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Authorization: Bearer {self.tokens[who]}")
        return "\r\n".join((*lines, *headers, "", "")).encode("latin-1")

    def post(self, body: bytes, *headers: str, who: str = "alice") -> bytes:
        """A whole ``POST /rpc``."""
        framed = (f"Content-Length: {len(body)}", "Content-Type: application/json", *headers)
        return self.head("POST /rpc", *framed, who=who) + body

    def ask(self, request: bytes, method: str = "GET") -> Response:
        """The answer to one request on a connection of its own."""
        with self.wire() as wire:
            return self.checked(wire.send(request).response(method))

    def rpc(self, body: bytes, who: str = "alice") -> Response:
        return self.ask(self.post(body, who=who))

    def call(self, method: str, params: Any, who: str = "alice") -> Response:
        return self.rpc(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode(), who)

    def result(self, method: str, params: Any, who: str = "alice") -> dict[str, Any]:
        answer = self.call(method, params, who).json
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def checked(self, response: Response) -> Response:
        """Not our fault, and nothing of our insides."""
        assert response.status < 500 or response.status in (501, 503, 505), response
        assert b'"result":' in response.body or not INSIDES.search(response.body), response.body[:500]
        assert str(self.data_dir).encode() not in response.body
        return response


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    data_dir = tmp_path_factory.mktemp("door") / "data"
    _skillyard(data_dir, "skill", "new", "demo.length", "--dir", str(data_dir / "skills"))
    with Server(data_dir, ready=2) as server:
        tokens = {"owner": server.token}
        for name, scopes, skills in (
            ("alice", SCOPES, "*"),
            ("mallory", SCOPES, "skills.*"),
            ("reader", "discover", "*"),
        ):
            tokens[name] = create_token(data_dir, name, scopes, skills)
        door = Door(server, tokens)
        _use_it(door)
        before = _weight(server.pid)
        yield door
        until(lambda: _as_before(before, _weight(server.pid)), lambda: f"{before} before, {_weight(server.pid)} after")
        _use_it(door)
        assert _complaints(data_dir.with_name("server.log")) == []


def create_token(data_dir: Path, name: str, scopes: str = SCOPES, skills: str = "*") -> str:
    return _skillyard(data_dir, "token", "create", name, "--scopes", scopes, "--skills", skills)


def _skillyard(data_dir: Path, *words: str) -> str:
    command = [sys.executable, "-m", "skillyard", *words]
    environ = {**os.environ, "SKILLYARD_DATA_DIR": str(data_dir)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _use_it(door: Door) -> None:
    """What a user does."""
    code = "def main(args):\n    print('hello')\n    return args"
    done = door.result("run_code", {"language": "python", "code": code, "args": {"n": 1}})
    assert (done["status"], done["output"]) == ("completed", {"n": 1})
    assert door.result("list_skills", {})["skills"]


def _weight(pid: int) -> tuple[int, int]:
    """Resident memory of the server in KiB, and its open descriptors."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident
    return int(resident[1]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _as_before(before: tuple[int, int], after: tuple[int, int]) -> bool:
    return after[0] <= before[0] + MORE_KIB and after[1] <= before[1] + MORE_DESCRIPTORS


def until(condition: Callable[[], T], said: Callable[[], str] = lambda: "it did not happen") -> T:
    """What ``condition`` gives once it is true."""
    return waiting.until(condition, BOUND_S, said)


def _complaints(log: Path) -> list[str]:
    """Lines that say that something of ours failed."""
    lines = [json.loads(line) for line in log.read_text(errors="replace").splitlines() if line.startswith("{")]
    return [json.dumps(line)[:1000] for line in lines if line["level"] in ("error", "critical") or "trace" in line]
