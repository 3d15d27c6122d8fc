"""Ways that need no name and no proxy: other protocols, other sockets, the namespace itself, and other sandboxes."""

from __future__ import annotations

import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conformance.gate.programs.attempts import program
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.yard import Told

SOCKETS = r"""
    import fcntl
    lo = struct.pack("16sh14x", b"lo", 0)
    def opened(family, kind, protocol=0):
        socket.socket(family, kind, protocol).close()
        return "opened"
    def option(level, name, value, family=socket.AF_INET):
        with socket.socket(family) as sock:
            sock.setsockopt(level, name, value)
            return "set"
    def requested(number, data):
        with socket.socket() as sock:
            fcntl.ioctl(sock, number, data)
            return "done"
    def routed(kind, flags, data):
        with socket.socket(16, 3, 0) as sock:
            sock.settimeout(1)
            message = struct.pack("=IHHII", 16 + len(data), kind, flags, 1, 0) + data
            sock.sendto(message, (0, 0))
            answer = sock.recv(4096)
            number = struct.unpack("=i", answer[16:20])[0]
            return "done" if number == 0 else errno.errorcode[-number]
    def bound(port, host="127.0.0.1", family=socket.AF_INET, *options):
        with socket.socket(family) as sock:
            for number in options:
                sock.setsockopt(socket.SOL_SOCKET, number, 1)
            sock.bind((host, port))
            sock.listen()
            return "bound"
    route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)
    address = struct.pack("=BBBBI", 2, 8, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([20, 0, 0, 9]))
    link = struct.pack("=BBHiIIHHHH", 0, 0, 0, 0, 1, 1, 24, 18, 9, 1) + b"dummy" + b"\0" * 11
    ports = (3128, 53, *args["ports"])
    found = {
        "raw": told(opened, 2, 3, 1), "raw 6": told(opened, 10, 3, 58), "raw all": told(opened, 2, 3, 255),
        "packet": told(opened, 17, 3, 0x300), "packet datagram": told(opened, 17, 2, 0x300),
        "icmp": told(opened, 2, 2, 1), "sctp": told(opened, 2, 1, 132), "mptcp": told(opened, 2, 1, 262),
        "vsock": told(opened, 40, 1), "xdp": told(opened, 44, 3), "tipc": told(opened, 30, 5),
        "bind to a device": told(option, 1, 25, b"lo\0"), "bind to an index": told(option, 1, 62, 1),
        "mark": told(option, 1, 36, 1), "transparent": told(option, 0, 19, 1),
        "transparent 6": told(option, 41, 75, 1, 10),
        "priority": told(option, 1, 12, 7), "bpf": told(option, 1, 50, 0),
        "take lo down": told(requested, 0x8914, lo), "add a route": told(requested, 0x890B, b"\0" * 120),
        "add an address": told(requested, 0x8916, struct.pack("16sH2s4s8x", b"lo", 2, b"\0\0", bytes([20, 0, 0, 9]))),
        "tun": told(lambda: str(os.open("/dev/net/tun", os.O_RDWR))),
        "route by netlink": told(routed, 24, 0x605, route), "route away": told(routed, 25, 5, route),
        "address by netlink": told(routed, 20, 0x605, address), "link by netlink": told(routed, 16, 0x605, link),
        "rule by netlink": told(routed, 32, 0x605, route), "firewall": told(opened, 16, 3, 12),
        "new network": told(lambda: os.unshare(0x40000000)) if hasattr(os, "unshare") else "EPERM",
        "unix path": told(lambda: socket.socket(socket.AF_UNIX).connect("/run/egress/gate.sock")),
    }
    for port in ports:
        for name, host, family in (("4", "127.0.0.1", 2), ("any", "0.0.0.0", 2), ("6", "::1", 10), ("any 6", "::", 10)):
            found[f"bind {port} {name}"] = told(bound, port, host, family)
            found[f"bind {port} {name} reused"] = told(bound, port, host, family, 2, 15)
    return found
"""
SET_AND_HARMLESS = {"priority"}
"""A number that nothing reads here."""


def test_no_socket_or_request_changes_the_way_out(place: Place) -> None:
    world = place.world
    rules = [world.rule("api.yard.test", "https"), world.rule("raw.yard.test", "echo")]
    ports = [world.ports["https"], world.ports["echo"]]
    told = place.yard.go(program(SOCKETS), rules, {"ports": ports})
    done = {how for how, said in told.output.items() if not said.isupper() and said != "timeout"}
    assert done - SET_AND_HARMLESS - {"bind to a device", "bind to an index"} == set(), told.output


DATAGRAMS = r"""
    initial = bytes([0xc3, 0, 0, 0, 1, 8]) + b"d" * 8 + b"\0\0\x44\x9e" + b"q" * 1180
    found = {}
    for host in args["hosts"]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in args["ports"]:
            def sent():
                with socket.socket(family, socket.SOCK_DGRAM) as sock:
                    sock.settimeout(1)
                    sock.connect((host, port))
                    for _ in range(3):
                        sock.send(initial)
                    return sock.recv(100)
            found[f"{host} {port}"] = told(sent)
    return found
"""


def test_datagrams_do_not_leave(place: Place) -> None:
    """QUIC and all else: refused at once."""
    world = place.world
    world.listeners.heard.clear()
    ports = [443, world.ports["echo"], world.ports["https"], 123]
    hosts = ["api.yard.test", "20.0.0.10", "127.0.0.1", "2600:1234::10"]
    told = place.yard.go(program(DATAGRAMS), ["api.yard.test:*", "*"], {"hosts": hosts, "ports": ports})
    assert set(told.output.values()) == {"ECONNREFUSED"}, told.output
    assert world.listeners.heard == []


VERSION_6 = r"""
    port, found = args["port"], {}
    for address in args["addresses"]:
        found[f"direct {address}"] = told(direct, address, port, "x\n")
        found[f"connect {address}"] = told(connect, f"[{address}]:{port}", "x\n")
        found[f"socks {address}"] = told(socks, 4, address, port, "x\n")
    found["names"] = told(lambda: sorted({entry[4][0] for entry in socket.getaddrinfo("raw.yard.test", port)}))
    return found
"""


def test_version_6_is_no_way_round(place: Place) -> None:
    world = place.world
    world.listeners.heard.clear()
    mine = world.address if ":" not in world.address else "20.0.0.10"
    addresses = ["::1", "::ffff:127.0.0.1", f"::ffff:{mine}",
                 "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::1400:a", "fe80::1", "fd00::5", "2600:1234::10", "::",
                 "2002:1400:a::1", "::ffff:0:1400:a"]  # fmt: skip
    port = world.ports["echo"]
    told = place.yard.go(program(VERSION_6), [f"raw.yard.test:{port}"], {"addresses": addresses, "port": port})
    assert world.listeners.heard == []
    assert told.allowed() == []
    assert [how for how, said in told.output.items() if said in ("x\n", "timeout")] == []
    assert "198.1" in told.output["names"], "a name has one made-up address of version 4"


def test_abstract_sockets_of_the_host_are_out_of_reach(place: Place) -> None:
    name = uuid.uuid4().hex
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        code = program("""
        unix = socket.socket(socket.AF_UNIX)
        return told(unix.connect, "\\0" + args["name"])
        """)
        told = place.yard.go(code, [place.world.rule("api.yard.test", "https")], {"name": name})
    assert told.output == "ECONNREFUSED"


NEIGHBOUR = r"""
    found, until = {}, time.monotonic() + args["hold_s"]
    mine = socket.create_server(("127.0.0.1", 4455))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind("\0neighbours")
    unix.listen()
    while time.monotonic() < until or not found:
        for name in ("raw.yard.test", "mail.yard.test"):
            port = args[name]
            ways = {"direct": told(direct, name, port, "x\n"), "connect": told(connect, f"{name}:{port}", "x\n"),
                    "socks": told(socks, 3, name, port, "x\n")}
            for way, said in ways.items():
                works = said.strip() == "x" or said.startswith(("220 mail.yard.test", "250"))
                found.setdefault(f"{way} {name}", set()).add("works" if works else "refused")
    return {how: sorted(said) for how, said in found.items()}
"""


def test_neighbours_reach_each_their_own(place: Place) -> None:
    """Two sandboxes at once, one may reach one name, one the other; their listeners have the same ports and names."""
    world = place.world
    args = {"raw.yard.test": world.ports["echo"], "mail.yard.test": world.ports["greeting"], "hold_s": 1.0}
    results: dict[str, Told] = {}

    def go(name: str, service: str) -> None:
        results[name] = place.yard.go(program(NEIGHBOUR), [world.rule(name, service)], args)

    _together([(go, "raw.yard.test", "echo"), (go, "mail.yard.test", "greeting")])
    for name, other in (("raw.yard.test", "mail.yard.test"), ("mail.yard.test", "raw.yard.test")):
        assert {how for how, said in results[name].output.items() if said == ["works"]} == {
            f"{way} {name}" for way in ("direct", "connect", "socks")
        }
        assert {how for how, said in results[name].output.items() if said == ["refused"]} == {
            f"{way} {other}" for way in ("direct", "connect", "socks")
        }
        assert {one["host"] for one in results[name].allowed()} == {name}


def _together(calls: list[tuple[Any, ...]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for made in [pool.submit(*call) for call in calls]:
            made.result()
