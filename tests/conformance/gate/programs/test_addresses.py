"""Addresses that stay closed, in every form and by every way, though each of them would answer here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address

import pytest

from tests.conformance.gate.programs.attempts import program
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.street import BEHIND_NAT64, CLOSED, HOST, HOST6, PUBLIC, WORLD, WORLD6

LITERALS = """
    found = {}
    for address in args["addresses"]:
        bracketed = f"[{address}]" if ":" in address else address
        found[f"direct {address}"] = told(direct, address, 80, get(bracketed))
        found[f"http {address}"] = told(http, bracketed)
        found[f"connect {address}"] = told(connect, f"{bracketed}:80", get(bracketed))
        found[f"socks {address}"] = told(socks, 4 if ":" in address else 1, address, 80, get(bracketed))
        found[f"socks text {address}"] = told(socks, 3, address, 80, get(bracketed))
    return found
"""


def test_public_addresses_answer_where_every_host_is_allowed(street: Place) -> None:
    addresses = [WORLD, WORLD6, *PUBLIC]
    told = street.yard.go(program(LITERALS), ["*"], {"addresses": addresses})
    silent = {how: said for how, said in told.output.items() if "hello" not in said and "text" not in how}
    assert silent == {}
    assert {asked.at for asked in street.world.seen} == set(addresses)


def test_closed_addresses_do_not(street: Place) -> None:
    told = street.yard.go(program(LITERALS), ["*"], {"addresses": CLOSED})
    assert [how for how, said in told.output.items() if "hello" in said] == []
    assert [asked for asked in street.world.seen if asked.at in CLOSED] == []
    assert told.allowed() == []
    for address in CLOSED:
        written = str(ip_address(address))
        why = "stands for no name" if address == "198.18.0.66" else "closed unless"
        assert any(why in one["reason"] for one in told.refused(written)), (address, told.connections)


def test_addresses_behind_a_nat64_that_the_name_servers_tell_of_do_not(street: Place) -> None:
    street.world.listeners.names["behind.yard.test"] = [BEHIND_NAT64[0]]
    told = street.yard.go(program(LITERALS), ["*"], {"addresses": [*BEHIND_NAT64, "behind.yard.test"]})
    assert [how for how, said in told.output.items() if "hello" in said] == []
    assert [asked for asked in street.world.seen if asked.at in map(str, map(ip_address, BEHIND_NAT64))] == []
    assert told.allowed() == []
    for target in (*map(str, map(ip_address, BEHIND_NAT64)), "behind.yard.test"):
        assert any("which is" in one["reason"] and "leads to" in one["reason"] for one in told.refused(target)), target


ODD = (
    "0x0a000005", "167772165", "012.0.0.5", "10.5", "0xa.0.0.5", "10.0.0.5.", "10.0.5", "0012.0.0.05", "10.0.0.5%eth0",
    "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "127.1", "2130706433", "0x7f.1", "0", "0.0.0.0",
    "localhost", "localhost.", "LOCALHOST", "sandbox", "localhost.localdomain", "ip6-localhost", "[::]", "[::1]",
    "[::ffff:10.0.0.5]", "[::ffff:a00:5]", "[::ffff:169.254.169.254]", "[0:0:0:0:0:ffff:0a00:0005]", "[::ffff:0:a00:5]",
    "[fe80::1%lo]", "[fe80::1%25lo]", "[::10.0.0.5]", "[64:ff9b::10.0.0.5]", "[fd00::5%1]", "::ffff:10.0.0.5",
    "①⓪.0.0.5", "10。0。0。5", "ⓛocalhost", "127.0.0.1\t", "127.0.0.1 ", " 127.0.0.1", "20.0.0.10@10.0.0.5",
    "20.0.0.10#10.0.0.5", "20.0.0.10\x00.10.0.0.5", "api.yard.test\x00.inner.yard.test", "10.0.0.5/../",
    "api.yard.test.",
    "API.yard.test.",
)  # fmt: skip
ODD_FORMS = """
    found = {}
    for host in args["hosts"]:
        text = host.encode().decode("latin-1")
        found[f"http {host}"] = told(http, text)
        found[f"http as host {host}"] = told(http, "20.0.0.10", "/hello", text)
        found[f"connect {host}"] = told(connect, f"{text}:80", get(text))
        found[f"socks {host}"] = told(socks, 3, host, 80, get(text)) if len(host.encode()) < 256 else "long"
        bare = host.strip("[]")
        if chr(0) not in bare:
            found[f"direct {host}"] = told(direct, bare, 80, get(text))
            found[f"curl {host}"] = told(lambda: subprocess.run(
                ["curl", "-s", "--globoff", "--noproxy", "*", "-m", "5", f"http://{host}/hello"],
                capture_output=True, timeout=20).stdout)
    return found
"""


def test_no_odd_form_of_an_address_or_name_is_a_way_round(street: Place) -> None:
    """A trailing dot of an allowed name may be forgiven; it then is that name."""
    told = street.yard.go(program(ODD_FORMS), ["*", "!10.0.0.5"], {"hosts": ODD})
    answered = {how for how, said in told.output.items() if "hello" in said.rpartition("\n")[2]}
    assert {how for how in answered if "test." not in how} == set()
    assert {asked.at for asked in street.world.seen} <= {WORLD}
    named = {asked.headers["host"].rstrip(".").lower() for asked in street.world.seen}
    assert named <= {"api.yard.test", "20.0.0.10"}, "what was said is what is dialled"


POINTING = {
    "inner.yard.test": "10.0.0.5", "metadata.yard.test": "169.254.169.254", "azure.yard.test": "168.63.129.16",
    "loopback.yard.test": "127.0.0.1", "this.yard.test": "0.0.0.0", "host.yard.test": HOST, "host6.yard.test": HOST6,
    "six.yard.test": "::1",
    "mapped.yard.test": "::ffff:10.0.0.5", "compatible.yard.test": "::10.0.0.5", "nat64.yard.test": "64:ff9b::a00:5",
    "to4.yard.test": "2002:a00:5::1", "ula.yard.test": "fd00::5", "carrier.yard.test": "100.64.0.9",
    "synthetic.yard.test": "198.18.0.66",
}  # fmt: skip
BY_NAME = """
    found = {}
    for name in args["names"]:
        found[f"direct {name}"] = told(direct, name, 80, get(name))
        found[f"http {name}"] = told(http, name)
        found[f"connect {name}"] = told(connect, f"{name}:80", get(name))
        found[f"socks {name}"] = told(socks, 3, name, 80, get(name))
    return found
"""


def test_names_that_point_at_closed_addresses_lead_nowhere(street: Place) -> None:
    """Even where the policy names them: the address has to be named too, by the operator."""
    street.world.listeners.names.update({name: [address] for name, address in POINTING.items()})
    for rules in (["*"], [f"{name}:*" for name in POINTING]):
        told = street.yard.go(program(BY_NAME), rules, {"names": sorted(POINTING)})
        assert {how: said for how, said in told.output.items() if "hello" in said} == {}
        assert street.world.seen == []
        for name in POINTING:
            assert any("closed unless" in one["reason"] for one in told.refused(name)), (name, told.connections)


@pytest.fixture
def hosts_own(street: Place) -> Iterator[int]:
    """A listener on every address of the host itself; its port."""

    def listen() -> socket.socket:
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = sock.accept()
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                peer.close()

    sock = street.in_host(listen)
    thread = threading.Thread(target=serve)
    thread.start()
    yield sock.getsockname()[1]
    sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    thread.join(10)


def test_the_hosts_own_addresses_are_closed(street: Place, hosts_own: int) -> None:
    assert b"hello" in street.in_host(lambda: _said(HOST, hosts_own))
    assert b"hello" in street.in_host(lambda: _said("127.0.0.1", hosts_own))
    code = program("""
    found = {}
    for address in args["addresses"]:
        target = f"[{address}]" if ":" in address else address
        found[f"direct {address}"] = told(direct, address, args["port"])
        found[f"connect {address}"] = told(connect, f"{target}:{args['port']}")
        found[f"socks {address}"] = told(socks, 4 if ":" in address else 1, address, args["port"])
    return found
    """)
    addresses = [HOST, HOST6, "127.0.0.1", "::1", "127.0.0.2", "0.0.0.0", "::"]
    told = street.yard.go(code, [f"*:{hosts_own}"], {"addresses": addresses, "port": hosts_own})
    assert {how: said for how, said in told.output.items() if "hello" in said} == {}
    assert told.allowed() == []
    assert any("the host itself" in one["reason"] for one in told.refused(HOST)), told.connections


def _said(address: str, port: int) -> bytes:
    with socket.create_connection((address, port), 5) as sock:
        return sock.recv(100)


def test_an_address_below_the_floor_is_opened_by_the_operator_who_names_it_and_nothing_beside_it(street: Place) -> None:
    code = program("return {a: told(direct, a, 80, get(a)) for a in args['addresses']}")
    told = street.yard.go(code, ["10.0.0.5:80", "10.0.0.0/8:81"], {"addresses": ["10.0.0.5", "10.0.0.6", "172.16.0.5"]})
    assert [a for a, said in told.output.items() if "hello" in said] == [], "a request cannot open what it names"
