"""The way to a service's port through the server, beside a plain connection to the same program."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skillyard.bench.subject import WrongResult
from skillyard.bench.turns import in_ms
from skillyard.client.sync import SyncClient
from skillyard.server_process import ServerProcess

SKILL = "skills.protocol.guide"
SMALL = "one small answer"
MIB = 1024 * 1024
_PORT = 8000
_PATIENCE_S = 60.0
PROGRAM = r"""
import socket, sys, threading
PIECE = bytes(1024 * 1024)

def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = peer.recv(65536)
            if not more:
                return
            data += more
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        way, size = lines[0].split(b" ")[1].rsplit(b"/", 2)[1:]
        left = sum(int(line[15:]) for line in lines if line.startswith(b"content-length:")) - len(data)
        while left > 0:
            left -= len(peer.recv(262144))
        data, size = b"", int(size)
        if way == b"chunks":
            peer.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for at in range(0, size, 65536):
                peer.sendall(b"10000\r\n" + PIECE[:65536] + b"\r\n")
            peer.sendall(b"0\r\n\r\n")
            continue
        peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + PIECE[:min(size, 65536)])
        for at in range(65536, size, len(PIECE)):
            peer.sendall(PIECE[:min(len(PIECE), size - at)])

listening = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000))
print("serving", listening.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


@dataclass(slots=True)
class Served:
    """Seconds by title, of a plain connection and through the server. ``size`` is that of a large body."""

    size: int
    plain: dict[str, list[float]] = field(default_factory=dict)
    through: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float | None]]:
        """Yields titles and numbers."""
        for title, plain in self.plain.items():
            ours, theirs = statistics.median(self.through[title]), statistics.median(plain)
            if title == SMALL:
                yield f"{title}: the median adds, ms", (ours - theirs) * 1000
                yield f"{title}: the fastest adds, ms", (min(self.through[title]) - min(plain)) * 1000
            else:
                yield f"{title}: MiB/s through the server", self.size / MIB / ours
                yield f"{title}: of a plain connection's MiB/s", theirs / ours

    def as_dict(self) -> dict[str, Any]:
        times = {title: {"plain": in_ms(times), "through": in_ms(self.through[title])}
                 for title, times in self.plain.items()}  # fmt: skip
        return {**{name: value and round(value, 3) for name, value in self.rows()}, "times": times}


def measure(home: Path, *, quick: bool) -> Served:
    """Measures all, in turns. Raises the errors of a server and of its start, WrongResult, OSError."""
    home.mkdir(parents=True)
    program = home / "program.py"
    program.write_text(PROGRAM)
    found = Served(MIB if quick else 64 * MIB)
    argv = [sys.executable, "-I", "-S", str(program), "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as plain, ServerProcess(home / "data") as server:
        try:
            assert plain.stdout is not None
            beside = Caller(int(plain.stdout.readline().split()[1]), "", "host: plain\r\n")
            with SyncClient(data_dir=server.data_dir) as client:
                task_id = _started(client)
                try:
                    _in_turns(beside, _caller(server, task_id), found, (20, 2) if quick else (1000, 8))
                finally:
                    client.task_cancel(task_id)
        finally:
            plain.kill()
    return found


def _started(client: SyncClient) -> str:
    """Returns the task of a service that has started."""
    started = client.run_service(SKILL, PROGRAM, language="python", expose_ports=[_PORT], ready_pattern="^serving")
    task_id, until = str(started["task_id"]), time.monotonic() + _PATIENCE_S
    while not client.task_status(task_id)["startup_ready"]:
        if time.monotonic() > until:
            raise WrongResult("the service does not become ready")
        time.sleep(0.05)
    return task_id


def _caller(server: ServerProcess, task_id: str) -> Caller:
    at = urlsplit(server.url)
    token = (server.data_dir / "token").read_text().strip()
    head = f"host: {at.netloc}\r\nauthorization: Bearer {token}\r\n"
    return Caller(at.port or 0, f"/services/{task_id}/{_PORT}", head)


def _in_turns(plain: Caller, through: Caller, found: Served, times: tuple[int, int]) -> None:
    few, many = times[1], times[0]
    works = (
        (SMALL, "/whole/10", 0, many),
        ("a large answer", f"/whole/{found.size}", 0, few),
        ("a large answer in chunks", f"/chunks/{found.size}", 0, few),
        ("a large request", "/whole/10", found.size, few),
    )
    for title, target, body, rounds in works:
        for turn in range(rounds + 1):
            for caller, kept in ((plain, found.plain), (through, found.through)):
                began = time.perf_counter()
                caller.ask(target, body)
                if turn:
                    kept.setdefault(title, []).append(time.perf_counter() - began)


class Caller:
    """One kept connection, on which requests follow each other."""

    def __init__(self, port: int, prefix: str, head: str) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._prefix = prefix
        self._head = head
        self._room = bytearray(256 * 1024)

    def ask(self, target: str, body: int = 0) -> None:
        """Asks and reads the answer. Raises WrongResult."""
        method = "POST" if body else "GET"
        length = f"content-length: {body}\r\n" if body else ""
        self._sock.sendall(f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._head}{length}\r\n".encode())
        piece = bytes(MIB)
        for at in range(0, body, MIB):
            self._sock.sendall(piece[: min(MIB, body - at)])
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._some()
        head, _, rest = got.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise WrongResult(f"a service answered {got[:300]!r}")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        if b"content-length" in fields:
            left = int(fields[b"content-length"]) - len(rest)
            while left > 0:
                count = self._sock.recv_into(self._room)
                if not count:
                    raise WrongResult("a service's answer broke off")
                left -= count
        else:
            while not rest.endswith(b"0\r\n\r\n"):
                rest = rest[-5:] + self._some()

    def _some(self) -> bytes:
        got = self._sock.recv(len(self._room))
        if not got:
            raise WrongResult("a service's answer broke off")
        return got
