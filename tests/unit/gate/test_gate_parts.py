"""Parts of the gate that hold state or read what others wrote, by their properties."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skillyard.domain.network.policy import Layer, Policy, parse_rules
from skillyard.domain.network.session import Connection, EgressLimits, EgressPlan, GateSecret, NetworkLog
from skillyard.gate.addresses import OwnAddresses
from skillyard.gate.dial import Dialer
from skillyard.gate.relay.guard import TimedOut, Unreachable
from skillyard.gate.session import MOST_KINDS, MOST_NAMES, OWN, POOL, Log, SyntheticAddresses
from skillyard.gate.tls.authority import Authority
from skillyard.gate.upstream import Usage
from skillyard.gate.wire import AHEAD, log_in, plan_in, plan_out
from skillyard.sandbox.native.linux import kernel
from tests.examples import fewer

connections = st.builds(
    Connection,
    via=st.sampled_from(["direct", "dns"]),
    host=st.sampled_from([f"h{n}.test" for n in range(40)]),
    port=st.integers(1, 12),
    allowed=st.booleans(),
    count=st.just(1),
    sent_bytes=st.integers(0, 1000),
    received_bytes=st.integers(0, 1000),
    first_ms=st.floats(0, 1000),
    last_ms=st.floats(1000, 2000),
)


@given(st.lists(connections, max_size=500), st.lists(connections, max_size=20))
def test_a_log_counts_everything_and_stays_small(over: list[Connection], live: list[Connection]) -> None:
    log = Log()
    for one in over:
        log.add(replace(one))
    told = log.snapshot(live)
    assert len(told.connections) <= MOST_KINDS
    assert sum(kind.count for kind in told.connections) + told.dropped == len(over) + len(live)
    if not told.dropped:
        assert sum(kind.sent_bytes for kind in told.connections) == sum(one.sent_bytes for one in (*over, *live))
    assert log.snapshot(live) == told  # looking changes nothing
    assert log_in(dict(told.as_dict())) == told


def test_no_flood_hides_what_was_reached() -> None:
    log = Log()
    for port in range(1, 1000):
        log.add(Connection("direct", "9.9.9.9", port, False, "kernel", "", "no rule", 1))
        said = f"HTTP for h{port}.test, not api.test"  # whose text is the program's, and comes after the bytes
        log.add(Connection("direct", "api.test", 443, False, "held", "", said, 1, 1000, 10, ("KEY",)))
    for host in range(20):
        log.add(Connection("direct", f"h{host}.test", 443, True, "skill", "*.test", "", 1, 7, 7))
    told = log.snapshot()
    assert sum(kind.allowed and bool(kind.host) for kind in told.connections) == 20
    assert sum(kind.sent_bytes for kind in told.connections if kind.secrets == ("KEY",)) == 999 * 1000
    for host in range(500):
        log.add(Connection("direct", f"more{host}.test", 443, True, "skill", "*.test", "", 1, 11, 7))
    told = log.snapshot()
    assert len(told.connections) <= MOST_KINDS
    assert sum(kind.sent_bytes for kind in told.connections if kind.allowed) == 20 * 7 + 500 * 11
    assert sum(kind.count for kind in told.connections) + told.dropped == 2 * 999 + 520


class Names(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.synthetic = SyntheticAddresses()
        self.known: dict[str, ipaddress.IPv4Address] = {}

    @rule(name=st.sampled_from([f"n{n}.test" for n in range(30)]))
    def ask(self, name: str) -> None:
        address = self.synthetic.address_of(name)
        assert address is not None
        assert self.known.setdefault(name, address) == address

    @rule(address=st.ip_addresses(v=4, network="198.18.0.0/15") | st.ip_addresses())
    def look(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
        name = self.synthetic.name_of(address)
        assert name is None or self.known[name] == address

    @invariant()
    def each_has_its_own(self) -> None:
        assert len(set(self.known.values())) == len(self.known)
        assert all(address in POOL and address != OWN for address in self.known.values())
        assert all(self.synthetic.name_of(address) == name for name, address in self.known.items())


TestNames = Names.TestCase
TestNames.settings = settings(fewer(2), stateful_step_count=30)


def test_a_session_can_ask_for_so_many_names_only() -> None:
    synthetic = SyntheticAddresses()
    assert all(synthetic.address_of(f"n{n}.test") is not None for n in range(MOST_NAMES))
    assert synthetic.address_of("more.test") is None
    assert synthetic.address_of("n0.test") is not None


class Used(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits = EgressLimits(connections=3, connections_total=20)
        self.usage = Usage(self.limits)
        self.open = self.total = 0

    @rule()
    def enter(self) -> None:
        why = self.usage.enter()
        assert (why is None) == (self.open < 3 and self.total < 20)
        if why is None:
            self.open += 1
            self.total += 1

    @rule()
    def leave(self) -> None:
        if self.open:
            self.usage.leave()
            self.open -= 1


TestUsed = Used.TestCase
TestUsed.settings = settings(fewer(2), stateful_step_count=40)


def test_the_hosts_addresses_are_known() -> None:
    own = OwnAddresses()
    known = own()
    own.close()
    assert ipaddress.ip_address("127.0.0.1") in known
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: the kernel chooses the address that it would use
        except OSError:
            return
        assert ipaddress.ip_address(sock.getsockname()[0]) in known


def test_an_address_that_the_host_gets_meanwhile_is_its_own() -> None:
    """Also one on loopback, which is the only interface that a network namespace begins with."""

    def look() -> list[bool]:
        kernel.unshare(kernel.CLONE_NEWNET)
        own = OwnAddresses()
        known = []
        for change in ("add", "del"):
            subprocess.run(["ip", "addr", change, "20.0.0.77/32", "dev", "lo"], check=True, timeout=30)
            known.append(ipaddress.ip_address("20.0.0.77") in own())
        own.close()
        return known

    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root, and ip of iproute2: it makes a network namespace")
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(look).result(60) == [True, False]


@pytest.mark.anyio
async def test_lookups_that_hang_take_no_more_threads_than_their_session_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for them gives up meanwhile."""
    entered, go_on = [], threading.Event()

    def getaddrinfo(name: str, *_: object, **__: object) -> list[object]:
        if name.startswith("slow"):
            entered.append(name)
            go_on.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    dialer = Dialer(lambda: ())
    for _ in range(3):
        slow = [dialer.resolve("hostile", f"slow{n}.test", 0.05) for n in range(10)]
        assert {type(fault) for fault in await asyncio.gather(*slow, return_exceptions=True)} == {TimedOut}
    assert len(entered) == 4
    with pytest.raises(Unreachable, match="not known"):
        await dialer.resolve("neighbour", "quick.test", 20)
    go_on.set()
    with pytest.raises(Unreachable, match="not known"):
        await dialer.resolve("hostile", "quick.test", 20)


def test_plans_arrive_as_they_were_sent() -> None:
    rules = parse_rules(["api.test", "*.b.test:1-9,80", "!c.test", "[2001:db8::/32]:443", "10.0.0.0/8:5432", "*"])
    hosts = {"api.test": (ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("fd00::1"))}
    secret = GateSecret("key", "skillyard-secret-x", "value", rules[:1])
    plan = EgressPlan(
        Policy((Layer("operator", rules), Layer("skill", ())), hosts), EgressLimits(idle_s=1.5), (secret,)
    )
    assert plan_in(plan_out(plan)) == plan
    assert NetworkLog((), 3) == log_in(dict(NetworkLog((), 3).as_dict()))


def test_names_go_on_in_another_gate() -> None:
    first = SyntheticAddresses()
    given = {name: first.address_of(name) for name in ("a.test", "b.test")}
    second = SyntheticAddresses()
    second.restore(dict(first.given), first.next + AHEAD)
    assert {name: second.address_of(name) for name in given} == given
    unknown = [POOL[2 + first.next + at] for at in range(AHEAD)]
    assert {second.name_of(address) for address in unknown} == {None}
    new = [second.address_of(f"n{at}.test") for at in range(AHEAD)]
    assert len(set(new)) == AHEAD
    assert not {*new} & {*unknown, *given.values(), None}
    assert second.address_of("more.test") is None, "nobody sealed so many"
    second.sealed = second.next
    assert second.address_of("more.test") is not None
    with pytest.raises(ValueError, match="nobody gave"):
        SyntheticAddresses().restore({"a.test": 3}, 3)
    last = SyntheticAddresses()
    last.restore({}, POOL.num_addresses - 3)
    assert last.address_of("a.test") == POOL[-1]
    assert last.address_of("b.test") is None


def test_an_authority_goes_on_for_the_same_hosts() -> None:
    hosts, others = parse_rules(["api.test", "*.x.test:8443"]), parse_rules(["other.test"])
    first = Authority(hosts)
    again = Authority(parse_rules(["*.x.test", "api.test:1"]), first.kept)
    assert (again.pem, again.kept) == (first.pem, first.kept)
    assert Authority(others, first.kept).pem != first.pem
    assert again.context("api.test") is not None
    assert "PRIVATE KEY" not in first.pem.decode()
