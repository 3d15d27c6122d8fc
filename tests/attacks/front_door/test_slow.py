"""Clients that are many, slow, deaf or gone: others are served meanwhile, and what they held is given back."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from skillyard.faces.http.server import KEEP_ALIVE_S, MAX_CONNECTIONS, READ_PATIENCE_S, SWEEP_S
from tests.attacks.front_door.conftest import Door, until

BODY = b'{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{}}'
ENOUGH_S = 10.0
"""Within this an ordinary call is answered on a busy host; what would wait for slow clients takes longer."""


@contextlib.contextmanager
def held(door: Door, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which ``data`` was sent, and nothing is read."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(("127.0.0.1", door.port), ENOUGH_S)))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made[-1].sendall(data)
        yield made


def served(door: Door) -> float:
    """Seconds that somebody else's calls take."""
    began = time.monotonic()
    assert door.ask(door.head("GET /healthz")).status == 200
    assert door.rpc(BODY).json["result"]
    took = time.monotonic() - began
    assert took < ENOUGH_S
    return took


def descriptors(door: Door) -> int:
    return len(list(Path(f"/proc/{door.server.pid}/fd").iterdir()))


def resident_mib(door: Door) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{door.server.pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


STUCK: dict[str, bytes] = {
    "nothing": b"",
    "half a line": b"POST /r",
    "half a head": b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": b"POST /rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
    "half a chunk": b"PUT /blobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nff\r\nx",
    "a body that was refused": b"PUT /blobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\nx",
    "an invitation to go on": b"PUT /blobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
}


@pytest.mark.parametrize("where", STUCK)
def test_those_who_stop_halfway_hold_nobody_up(door: Door, where: str) -> None:
    before = descriptors(door)
    data = STUCK[where].replace(b"{token}", door.tokens["alice"].encode())
    with held(door, 60, data):
        served(door)
    until(lambda: descriptors(door) <= before + 2)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", STUCK)
def test_those_who_stop_halfway_are_cut_off(door: Door, where: str) -> None:
    """A byte now and then does not help: heads and bodies have a deadline as a whole."""
    data = STUCK[where].replace(b"{token}", door.tokens["alice"].encode())
    patience = 2 * max(KEEP_ALIVE_S, READ_PATIENCE_S) + 2 * SWEEP_S
    with held(door, 20, data) as made:
        open_ones, end = set(made), time.monotonic() + patience
        while open_ones and time.monotonic() < end:
            for sock in list(open_ones):
                sock.settimeout(0.05)
                try:
                    sock.sendall(b"x")
                    if sock.recv(65536) == b"":
                        open_ones.discard(sock)
                except TimeoutError:
                    continue
                except OSError:
                    open_ones.discard(sock)
            time.sleep(0.5)
        assert not open_ones
    served(door)


def test_those_who_do_not_read_cost_little(door: Door) -> None:
    content = b"x" * 32 * 1024 * 1024
    stored = door.ask(door.head("PUT /blobs", f"Content-Length: {len(content)}") + content).json["blob_id"]
    served(door)
    before, opened = resident_mib(door), descriptors(door)
    with held(door, 40, door.head(f"GET /blobs/{stored}")):
        served(door)
        assert resident_mib(door) < before + 40 * 1.0, "an answer waits in memory"
    until(lambda: descriptors(door) <= opened + 2)
    assert door.result("blobs.delete", {"blob_id": stored})["deleted"]


def test_large_answers_that_nobody_reads_do_not_add_up(door: Door) -> None:
    """Sixteen times four megabytes in one batch, for each of forty clients: few get them, the others come again."""
    content = b"\x01" * 4 * 1024 * 1024
    headers = ("Content-Type: text/plain", f"Content-Length: {len(content)}")
    stored = door.ask(door.head("PUT /blobs", *headers) + content).json["blob_id"]
    read = {"jsonrpc": "2.0", "id": 1, "method": "read_blob", "params": {"blob_id": stored, "mode": "full"}}
    before = resident_mib(door)
    with held(door, 40, door.post(json.dumps([read] * 16).encode())):
        until(lambda: b'"id":1,"error"' in door.rpc(json.dumps([read] * 4).encode()).body)
        assert door.rpc(BODY, who="mallory").json["result"]
        assert resident_mib(door) < before + 640
    until(lambda: resident_mib(door) < before + 160)
    assert door.result("blobs.delete", {"blob_id": stored})["deleted"]


def test_pipelined_requests_that_nobody_reads_wait_outside(door: Door) -> None:
    before = resident_mib(door)
    with held(door, 1, b"") as (sock,):
        request = door.post(BODY)
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(100_000):
                sock.sendall(request)
        served(door)
        assert resident_mib(door) < before + 16


def test_connections_beyond_the_limit_keep_nobody_out(door: Door) -> None:
    before = descriptors(door)
    with held(door, MAX_CONNECTIONS + 50, b"GET /he"):
        served(door)
        assert descriptors(door) <= before + MAX_CONNECTIONS + 2
    until(lambda: descriptors(door) <= before + 2)


def test_who_finds_no_room_hears_so_once_it_has_asked(door: Door) -> None:
    """What came to a connection that had been closed would reset it, and its client see no answer."""
    before = descriptors(door)
    fields = ("Content-Length: 100", "Content-Type: application/json", "Expect: 100-continue")
    with held(door, MAX_CONNECTIONS, door.head("POST /rpc", *fields)) as first:
        assert {sock.recv(4096) for sock in first} == {b"HTTP/1.1 100 Continue\r\n\r\n"}, "all are at work"
        with held(door, 100, b"") as late:
            assert not any(map(_answered, late[:64])), "nobody is answered before"
            assert {_told(sock) for sock in late[64:]} == {b""}, "those beyond are cut, as there is no end of them"
            assert not any(map(_answered, late[:64]))
            told = {_told(sock, *door.head("GET /healthz").partition(b"\r\n")) for sock in late[:64]}
        assert {said.split(b"\r\n")[0] for said in told} == {b"HTTP/1.1 503 Service Unavailable"}
    until(lambda: served(door) < ENOUGH_S)
    until(lambda: descriptors(door) <= before + 2)


def _answered(sock: socket.socket) -> bool:
    sock.settimeout(0)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        sock.settimeout(ENOUGH_S)
    return True


def _told(sock: socket.socket, *parts: bytes) -> bytes:
    """Returns the answer to the parts of a request; empty where the connection was cut."""
    try:
        for part in parts:
            sock.sendall(part)
        return sock.recv(4096)
    except ConnectionError:
        return b""


def test_connections_that_are_reset_leave_nothing(door: Door) -> None:
    before = descriptors(door)
    at_once = struct.pack("ii", 1, 0)  # SO_LINGER of zero: close sends a reset, socket(7)
    for data in (b"", b"GET /he", door.post(BODY), door.head("PUT /blobs", "Content-Length: 100000") + b"x" * 5000):
        with held(door, 50, data) as made:
            for sock in made:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    served(door)
    until(lambda: descriptors(door) <= before + 2)


def test_a_page_of_a_log_ends_though_the_run_goes_on_writing(door: Door) -> None:
    """A word each 10 ms never lets a reader that waits for a pause come to its end."""
    code = "import time\ndef main(args):\n    while True:\n        print('word', flush=True)\n        time.sleep(0.01)"
    params = {"language": "python", "code": code, "timeout_ms": 60_000, "detach": True}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params}).encode()
    with door.wire() as wire:
        wire.send(door.post(body))
        (run,) = until(lambda: door.result("runs.list", {"status": "running"})["runs"])
    try:
        for offset in (0, 2**53):
            began = time.monotonic()
            page = door.result("runs.logs", {"run_id": run["run_id"], "offset": offset, "max_bytes": 1024 * 1024})
            assert time.monotonic() - began < 2 * ENOUGH_S
            assert page["running"]
            assert page["next_offset"] == offset + len(page["content"])
    finally:
        assert door.result("runs.cancel", {"run_id": run["run_id"]})["cancelled"]


@pytest.mark.long
def test_large_bodies_that_never_end_keep_no_small_one_out(door: Door) -> None:
    """Two principals hold all that bodies may hold, the largest each time and the last byte missing."""
    size = 32 * 1024 * 1024
    with ExitStack() as stack:
        for who in ("alice", "owner"):
            head = door.head("POST /rpc", "Content-Type: application/json", f"Content-Length: {size}", who=who)
            for _ in range(4):
                stack.enter_context(held(door, 1, head + b" " * (size - 1)))
        probe = door.post(b" " * 20 * 1024 * 1024)
        until(lambda: door.ask(probe).error["data"]["type"] in ("Busy", "Unavailable"))
        assert door.rpc(BODY, who="mallory").json["result"]
        assert door.rpc(BODY, who="alice").json["result"]


@pytest.mark.long
def test_many_values_in_many_requests_do_not_add_up(door: Door) -> None:
    """Three megabytes of empty lists take sixty of memory: runs that keep them are few, the others come again."""
    code = "import time\ndef main(args):\n    time.sleep(5)"
    args = b'{"a":[' + b"[]," * 490_000 + b"[]]}"
    body = b'{"jsonrpc":"2.0","id":1,"method":"run_code","params":{"language":"python","code":%s,"args":%s}}' % (
        json.dumps(code).encode(),
        args,
    )
    before = resident_mib(door)
    with ExitStack() as stack:
        wires = [stack.enter_context(door.wire()) for _ in range(40)]
        for wire in wires:
            wire.send(door.post(body))
        until(lambda: door.result("runs.list", {"status": "running"})["runs"])
        served(door)
        assert resident_mib(door) < before + 1024
        assert {wire.response().status for wire in wires} & {429, 503}
