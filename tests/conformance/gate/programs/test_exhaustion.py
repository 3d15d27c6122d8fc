"""Whoever floods the gate, or the servers behind it, floods itself: a neighbour goes on, and memory is bounded."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Mapping

import pytest

from tests.conformance.gate.programs.attempts import program
from tests.conformance.gate.programs.conftest import CONNECTIONS
from tests.conformance.gate.programs.listeners import HOSTILE
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.processes import gates, resident_bytes
from tests.conformance.gate.programs.yard import Told

MIB = 1 << 20
FLOODS: Mapping[str, str] = {
    "connections": """
    held = []
    while time.monotonic() < until:
        try:
            held.append(socket.create_connection(PROXY if len(held) % 2 else ("raw.yard.test", args["echo"]), 1))
        except OSError:
            held = held[200:]
    """,
    "slow heads": """
    held = []
    while time.monotonic() < until:
        if len(held) < 100:
            try:
                held.append(socket.create_connection(("127.0.0.1", 3128), 1))
            except OSError:
                pass
        for sock in held[:]:
            try:
                sock.send(b"G")
            except OSError:
                held.remove(sock)
        time.sleep(0.01)
    """,
    "huge heads": """
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", 3128), 1) as sock:
                sock.sendall(b"GET http://api.yard.test/ HTTP/1.1\\r\\n" + b"x-more: yyyyyyyyyyyyyyyy\\r\\n" * 100_000)
        except OSError:
            pass
    """,
    "questions": """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    number = 0
    while time.monotonic() < until:
        number += 1
        try:
            sock.sendto(question(f"n{number}.api.yard.test"), ("127.0.0.1", 53))
        except OSError:
            pass
    """,
    "refused": """
    number = 0
    while time.monotonic() < until:
        number += 1
        told(connect, f"n{number}.other.yard.test:443")
        told(direct, "20.0.0.11", 1000 + number % 60000)
    """,
    "reads nothing": """
    held = []
    while time.monotonic() < until:
        if len(held) < 60:
            try:
                held.append(socket.create_connection(("hostile.yard.test", args["flood"]), 1))
                held[-1].send(b"x")
            except OSError:
                pass
        time.sleep(0.01)
    """,
    "writes to a server that reads nothing": """
    held = []
    while time.monotonic() < until:
        if len(held) < 60:
            try:
                held.append(socket.create_connection(("hostile.yard.test", args["drip"]), 1))
                held[-1].setblocking(False)
            except OSError:
                pass
        for sock in held:
            try:
                sock.send(b"z" * 262144)
            except OSError:
                pass
        time.sleep(0.01)
    """,
}
NEIGHBOUR = """
    times = []
    for _ in range(args["count"]):
        began = time.monotonic()
        said = told(http, f"api.yard.test:{args['port']}")
        assert said.endswith("hello"), said
        times.append(time.monotonic() - began)
    return times
"""
WIDE = {"memory_mb": 4096}
"""An ordinary user's sockets count as full."""
LONGEST_S = 30.0
"""For one request of a neighbour on a machine that a flood keeps busy."""


def _flooded(place: Place, flood: str, seconds: float) -> tuple[list[float], Told]:
    """How long a neighbour's requests took meanwhile, and the flood's record."""
    world = place.world
    rules = [world.rule("raw.yard.test", "echo"), "*.api.yard.test:443", world.rule("api.yard.test", "http"),
             *(world.rule("hostile.yard.test", name) for name in ("flood", "drip"))]  # fmt: skip
    body = f"\nuntil = time.monotonic() + {seconds}\n" + FLOODS[flood].replace("\n    ", "\n")
    ended: list[Told] = []
    thread = threading.Thread(target=lambda: ended.append(place.yard.go(program(body), rules, dict(world.ports))))
    thread.start()
    times: list[float] = []
    while thread.is_alive() or not times:
        args = {"port": world.ports["http"], "count": 20}
        times += place.yard.go(program(NEIGHBOUR), [world.rule("api.yard.test", "http")], args).output
    thread.join()
    return times, ended[0]


@pytest.mark.parametrize("flood", ["connections", "slow heads", "reads nothing"])
def test_a_neighbour_goes_on(flood: str, place: Place) -> None:
    _goes_on(place, flood, 1.5)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS)
def test_a_neighbour_goes_on_for_long(flood: str, place: Place) -> None:
    _goes_on(place, flood, 15)


def _goes_on(place: Place, flood: str, seconds: float) -> None:
    place.yard.go(program(NEIGHBOUR), [place.world.rule("api.yard.test", "http")],
                  {"port": place.world.ports["http"], "count": 1})  # fmt: skip
    before = max(resident_bytes(pid) for pid in gates())
    times, told = _flooded(place, flood, seconds)
    flooded = told.run.raw["outcome"]
    assert flooded == "exit" or (flooded == "memory" and os.geteuid()), "who counts no memory counts sockets as full"
    assert max(times) < LONGEST_S, (max(times), statistics.median(times))
    grown = max(resident_bytes(pid) for pid in gates()) - before
    assert grown < 128 * MIB, f"{grown // MIB} MiB"
    assert len(told.connections) <= 200


def test_a_run_has_so_many_connections_and_no_more(place: Place) -> None:
    code = program("""
    held, refused = [], []
    for _ in range(args["count"]):
        try:
            sock = socket.create_connection(("raw.yard.test", args["echo"]), BOUND)
            (held if told(ask, sock, "x\\n") == "x\\n" else refused).append(sock)
        except OSError:
            refused.append(None)
    return {"held": len(held), "refused": len(refused)}
    """)
    args = {"echo": place.world.ports["echo"], "count": CONNECTIONS + 16}
    told = place.yard.go(code, [place.world.rule("raw.yard.test", "echo")], args, limits=WIDE)
    assert told.output == {"held": CONNECTIONS, "refused": 16}
    assert any(str(CONNECTIONS) in one["reason"] for one in told.refused()), told.connections


HOSTILE_SERVERS = """
    found = {}
    def read_for_a_while(sock):
        until, size = time.monotonic() + 0.3, 0
        while time.monotonic() < until and (piece := sock.recv(65536)):
            size += len(piece)
        return str(size)
    for name in args["servers"]:
        port = args["ports"][name]
        def direct_():
            with socket.create_connection(("hostile.yard.test", port), BOUND) as sock:
                sock.sendall(get(f"hostile.yard.test:{port}").encode())
                sock.settimeout(0.3)
                return read_for_a_while(sock)
        found[f"direct {name}"] = told(direct_)
        def proxied():
            with socket.create_connection(("127.0.0.1", 3128), BOUND) as sock:
                sock.sendall(get(f"hostile.yard.test:{port}", f"http://hostile.yard.test:{port}/").encode())
                sock.settimeout(0.3)
                return read_for_a_while(sock)
        found[f"http {name}"] = told(proxied)
    found["api"] = told(http, f"api.yard.test:{args['ports']['http']}")
    return found
"""


def test_hostile_servers_harm_nobody(place: Place) -> None:
    world = place.world
    rules = [*(world.rule("hostile.yard.test", name) for name in HOSTILE), world.rule("api.yard.test", "http")]
    began = time.monotonic()
    told = place.yard.go(program(HOSTILE_SERVERS), rules, {"servers": list(HOSTILE), "ports": world.ports})
    assert told.output["api"].endswith("hello"), told.output
    assert time.monotonic() - began < 60
    rss = max(resident_bytes(pid) for pid in gates())
    assert rss < 300 * MIB, f"{rss // MIB} MiB"
