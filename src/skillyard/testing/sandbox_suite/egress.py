"""A network whose only way out is the gate: a sandbox reaches what the gate serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import GateFault, InvalidInput, ProtectionMissing, SandboxFault
from skillyard.domain.network.session import DNS_PORT, PROXY_PORT, TRUST_FILE, Egress
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Mount, Owner
from skillyard.ports.sandbox import Networked, Sandbox
from skillyard.testing.sandbox_suite.check import SURVIVAL, Failed, Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, fresh, look, python, start, until
from skillyard.testing.twin_gate import KNOWN_ADDRESS, KNOWN_NAME, TwinGate, TwinSession

egress = Section("egress")

PORTS = (443, 8080)
PROXY = f"127.0.0.1 {PROXY_PORT}"
FAST_S = 4.0
"""Seconds for a refusal, which comes at once; a busy machine is given this long."""

TALK = """
import json, socket, sys, time
told = []
for word in sys.argv[1:]:
    host, port = word.rsplit(' ', 1)
    began = time.monotonic()
    try:
        with socket.create_connection((host, int(port)), 5) as peer: said = peer.makefile().readline().strip()
    except OSError as refused: said = type(refused).__name__
    told.append([said, time.monotonic() - began])
print(json.dumps(told))
"""
ASK = """
import json, socket, struct, sys
query = struct.pack('>6H', 7, 0x100, 1, 0, 0, 0)
query += b''.join(bytes([len(x)]) + x.encode() for x in sys.argv[1].split('.')) + bytes([0, 0, 1, 0, 1])
answers = []
for host in sys.argv[2:]:
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        asking.sendto(query, (host, 53))
        answer, sender = asking.recvfrom(512)
        answers.append([sender[0], '.'.join(map(str, answer[-4:]))])
    with socket.create_connection((host, 53), 5) as asking:
        asking.sendall(struct.pack('>H', len(query)) + query)
        answer = asking.makefile('rb').read()
        answers.append([host, '.'.join(map(str, answer[-4:]))])
print(json.dumps(answers))
"""
LOOK_UP = """
import json, socket, sys, time
told = []
for name in sys.argv[1:]:
    began = time.monotonic()
    try: found = sorted({entry[4][0] for entry in socket.getaddrinfo(name, 443, flags=socket.AI_ADDRCONFIG)})
    except socket.gaierror as error: found = error.errno == socket.EAI_NONAME and 'unknown' or str(error)
    told.append([found, time.monotonic() - began])
print(json.dumps(told))
"""
TAKE = """
import itertools, json, socket, sys
options = [(socket.SOL_SOCKET, socket.SO_REUSEADDR), (socket.SOL_SOCKET, socket.SO_REUSEPORT),
    (socket.SOL_IP, 19), (socket.SOL_IP, 15), (socket.IPPROTO_IPV6, 75), (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)]
device = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE)
hosts = [(socket.AF_INET, host) for host in ('0.0.0.0', '127.0.0.1', '198.18.0.1', '203.0.113.9')]
hosts += [(socket.AF_INET6, host) for host in ('::', '::1', '2001:db8::9')]
taken, kept = [], []
ports = [int(word) for word in sys.argv[1:]]
for count in range(len(options) + 1):
    for chosen in itertools.combinations(options, count):
        for (family, host), kind, port, bound in itertools.product(hosts, (1, 2), ports, (False, True)):
            if kind == 2 and port != 53: continue
            sock = socket.socket(family, kind)
            for level, name in chosen:
                try: sock.setsockopt(level, name, 1)
                except OSError: pass
            try:
                if bound: sock.setsockopt(*device, b'lo')
                sock.bind((host, port))
                if kind == 1: sock.listen()
            except OSError: sock.close()
            else:
                taken.append([host, port, kind])
                kept.append(sock)
print(json.dumps(taken))
"""
CHANGE = """
import errno, fcntl, json, socket, struct
def attempt(name, kind, body, flags=0x5):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(5)
        netlink.bind((0, 0))
        netlink.send(struct.pack('=IHHII', 16 + len(body), kind, flags, 1, 0) + body)
        code = struct.unpack_from('=i', netlink.recv(4096), 16)[0]
        if code not in (-errno.EPERM, -errno.EACCES): done.append([name, code])
def attribute(kind, value): return struct.pack('=HH', 4 + len(value), kind) + value
done = []
for family, length in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
    route = struct.pack('=8BI', family, 0, 0, 0, 255, 4, 254, 2, 0) + attribute(4, struct.pack('=I', 1))
    attempt('add a route', 24, route, 0x605)
    attempt('remove the route', 25, route)
    blackhole = struct.pack('=8BI', family, 8 * length, 0, 0, 254, 4, 0, 6, 0) + attribute(1, bytes([9] * length))
    attempt('add a blackhole', 24, blackhole, 0x605)
    address = struct.pack('=4BI', family, 8 * length, 0, 0, 1) + attribute(2, bytes([9] * length))
    attempt('add an address', 20, address, 0x605)
    attempt('remove an address', 21, address)
    attempt('add a rule', 32, struct.pack('=8BI', family, 0, 0, 0, 254, 0, 0, 7, 0), 0x605)
attempt('take lo down', 16, struct.pack('=BBHiII', 0, 0, 0, 1, 0, 1))
attempt('make a device', 16, struct.pack('=BBHiII', 0, 0, 0, 0, 0, 0) + attribute(18, attribute(1, b'dummy')), 0x605)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
    for request, value in ((0x8914, 0), (0x8916, 2), (0x8922, 9000)):
        try: fcntl.ioctl(any, request, struct.pack('16sh14x', b'lo', value))
        except OSError: continue
        done.append(['ioctl', request])
for family, kind, protocol in ((17, 3, 768), (17, 2, 768), (2, 3, 255), (2, 3, 6), (2, 3, 17), (10, 3, 6), (16, 3, 4)):
    try: socket.socket(family, kind, protocol)
    except OSError: continue
    done.append(['socket', family, kind, protocol])
for path in ('/proc/sys/net/ipv4/ip_unprivileged_port_start', '/proc/sys/net/ipv4/ip_forward'):
    try: open(path, 'w').write('0')
    except OSError: continue
    done.append(['write', path])
print(json.dumps(done))
"""


@egress.check("egress", "direct")
async def every_address_leads_to_the_gate(ground: Ground) -> None:
    meant = ("203.0.113.7 443", "198.18.0.9 8080", "2001:db8::7 443", PROXY)
    async with _plugged(ground) as (sandbox, session):
        told = await look(sandbox, TALK, *meant)
    expect([said for said, _ in told] == [f"meant {where}" for where in meant], "each arrives as meant", told)
    expect([f"{host} {port}" for host, port in session.arrived] == list(meant), "and is seen", session.arrived)


@egress.check("egress", "direct")
async def other_ports_are_refused_at_once(ground: Ground) -> None:
    async with _plugged(ground) as (sandbox, session):
        told = await look(sandbox, TALK, "203.0.113.8 444", "2001:db8::8 81", "127.0.0.1 445", "::1 446")
    expect({said for said, _ in told} == {"ConnectionRefusedError"}, "they are refused", told)
    expect(all(took < FAST_S for _, took in told), "at once", told)
    expect(session.arrived == [], "and the gate serves none", session.arrived)


@egress.check("egress", "direct")
async def names_are_asked_of_the_gate(ground: Ground) -> None:
    async with _plugged(ground) as (sandbox, session):
        answers = await look(sandbox, ASK, KNOWN_NAME, "127.0.0.1", "8.8.8.8", "2001:4860:4860::8888")
        found, unknown = await look(sandbox, LOOK_UP, KNOWN_NAME, "unknown.test")
        told = await look(sandbox, TALK, f"{KNOWN_NAME} 443")
    expect({answer for _, answer in answers} == {KNOWN_ADDRESS}, "datagrams and streams are answered", answers)
    expect([host for host, _ in answers[::2]] == [host for host, _ in answers[1::2]], "by whom was asked", answers)
    expect(found[0] == [KNOWN_ADDRESS], "ordinary programs look names up", found)
    expect(unknown[0] == "unknown" and unknown[1] < FAST_S, "and learn at once what is unknown", unknown)
    expect("unknown.test" in session.asked, "which the gate was asked for too", session.asked)
    expect(told[0][0] == f"meant {KNOWN_ADDRESS} 443", "and connect to them", told)


@egress.check("egress", "direct")
async def listeners_cannot_be_taken_over(ground: Ground) -> None:
    async with _plugged(ground) as (sandbox, session):
        taken = await look(sandbox, TAKE, *map(str, (*PORTS, DNS_PORT, PROXY_PORT)))
        told = await look(sandbox, TALK, "203.0.113.7 8080")
        session.cut()
        free = await look(sandbox, TAKE, "8080")
    expect(free != [], "what nobody listens on is free", free)
    expect(taken == [], "nobody inside can listen where the gate does", taken)
    expect(told[0][0] == "meant 203.0.113.7 8080", "and the gate is still there", told)


@egress.check("egress", "direct", "no_capabilities")
async def the_network_cannot_be_changed_or_overheard(ground: Ground) -> None:
    async with _plugged(ground) as (sandbox, _):
        done = await look(sandbox, CHANGE)
        told = await look(sandbox, TALK, "203.0.113.7 443")
    expect(done == [], "routes, addresses, devices and raw sockets are out of reach", done)
    expect(told[0][0] == "meant 203.0.113.7 443", "all is as it was", told)


@egress.check("egress", "direct")
async def two_sandboxes_never_share(ground: Ground) -> None:
    serve = """
import socket
server = socket.create_server(('', 40404))
print('listening', flush=True)
input()
"""
    async with _plugged(ground) as (one, first), _plugged(ground, (443,)) as (other, second):
        await until(await start(one, python(serve, stdin=True)), b"listening")
        told = await look(other, TALK, "198.18.0.1 40404", "203.0.113.7 443", "203.0.113.7 8080")
    expect([said for said, _ in told[::2]] == ["ConnectionRefusedError"] * 2, "each has a network of its own", told)
    expect((first.arrived, second.arrived) == ([], [("203.0.113.7", 443)]), "and a gate of its own", first.arrived)


@egress.check("egress")
async def connections_end_with_the_sandbox(ground: Ground) -> None:
    source = """
import socket, sys
peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)
peer.recv(1)
print('connected', flush=True)
input()
"""
    async with _session(ground) as session:
        async with ground.sandbox(egress=Egress(session.id, PORTS)) as sandbox:
            await until(await start(sandbox, python(source, _port(sandbox), stdin=True)), b"connected")
            expect(session.ended == 0, "a connection stays while its program does")
        await _until(lambda: session.ended == 1, "the gate sees that the sandbox is gone")


@egress.check("egress", "direct")
async def without_its_gate_a_sandbox_reaches_nothing(ground: Ground) -> None:
    source = """
import socket
peer = socket.create_connection(('203.0.113.7', 443), 5)
print(peer.makefile().readline().strip(), flush=True)
try: peer.recv(1)
except OSError: pass
print('ended', flush=True)
"""
    async with _plugged(ground) as (sandbox, session):
        program = await start(sandbox, python(source))
        await until(program, b"meant")
        session.cut()
        await until(program, b"ended")
        told = await look(sandbox, TALK, "203.0.113.7 443", "127.0.0.1 3128", "127.0.0.1 53")
        names = await look(sandbox, LOOK_UP, KNOWN_NAME)
        expect({said for said, _ in told} == {"ConnectionRefusedError"}, "it is refused at once", told)
        expect(names[0][0] == "unknown" and names[0][1] < FAST_S, "and so are names", names)
        await _networked(sandbox).plug(Egress(session.id, PORTS))
        told = await look(sandbox, TALK, "203.0.113.7 443", f"{KNOWN_NAME} 8080")
    expect(all(said.startswith("meant") for said, _ in told), "plugged in again, it works", told)


@egress.check("egress", "direct")
async def more_ports_can_follow(ground: Ground) -> None:
    async with _plugged(ground) as (sandbox, session):
        await _networked(sandbox).plug(Egress(session.id, (*PORTS, 5432)))
        told = await look(sandbox, TALK, "203.0.113.7 5432", "203.0.113.7 443", "203.0.113.7 5433")
        expect(session.ports() == sorted((DNS_PORT, *PORTS, PROXY_PORT, 5432)), "each port once", session.ports())
    expect([said.split()[0] for said, _ in told] == ["meant", "meant", "ConnectionRefusedError"], "it widens", told)


@egress.check("egress", SURVIVAL)
async def an_attached_sandbox_is_plugged_in_again(ground: Ground) -> None:
    assert ground.reopen is not None
    async with _session(ground) as session:
        before = await ground.reopen()
        spec = await ground.spec(owner=Owner.TASK, egress=Egress(session.id, PORTS))
        handle = (await before.create(spec, fresh("key"))).handle
        session.cut()
        await before.close()
        after = await ground.reopen()
        try:
            sandbox = await after.attach(handle)
            await _networked(sandbox).plug(Egress(session.id, PORTS))
            told = await look(sandbox, TALK, _proxy(sandbox))
        finally:
            await after.destroy(handle)
            await after.close()
    expect(told[0][0] == f"meant {PROXY}", "it reaches the gate of the server that attached it", told)


@egress.check("egress")
async def the_trusted_certificates_are_its_own(ground: Ground) -> None:
    source = f"""
import json, os
try: os.close(os.open({TRUST_FILE!r}, os.O_WRONLY | os.O_APPEND))
except OSError: changed = False
else: changed = True
try: text = open({TRUST_FILE!r}).read()
except FileNotFoundError: text = ''
print(json.dumps([text, changed]))
"""
    trusted = ground.scratch / fresh("ca")
    trusted.write_text("certificates")
    trusted.chmod(0o444)
    async with _session(ground) as session:
        shown = Mount(Content("trust", trusted), TRUST_FILE)
        async with ground.sandbox(egress=Egress(session.id, PORTS), mounts=(shown,)) as one:
            text, changed = await look(one, source)
        async with ground.sandbox(egress=Egress(session.id, PORTS)) as other:
            others, _ = await look(other, source)
    expect((text, changed) == ("certificates", False), "they are there to be read", (text, changed))
    expect(others == "", "in no other sandbox", others)


@egress.check("egress", "forwarding")
async def ports_of_the_gate_are_not_forwarded(ground: Ground) -> None:
    """A connection to them from outside would act for the sandbox."""
    direct = (await ground.backend.probe()).abilities.get("direct")
    others = () if direct is None or direct.level is Level.MISSING else (*PORTS, DNS_PORT)
    async with _plugged(ground) as (sandbox, _):
        for port in (_networked(sandbox).proxy_port, *others):
            try:
                await (await sandbox.forward(port)).close()
            except InvalidInput:
                continue
            expect(False, "a port that the gate serves is refused", port)


@egress.check("egress")
async def a_sandbox_that_cannot_be_plugged_in_is_not_left(ground: Ground) -> None:
    key = fresh("key")
    try:
        await ground.backend.create(await ground.spec(egress=Egress(fresh("nobody"), PORTS)), key)
    except GateFault:
        held = [sandbox.key for sandbox in await ground.backend.survey()]
        expect(key not in held, "nothing is left of it", held)
        return
    raise Failed("a sandbox is not made for a session that the gate does not know")


@egress.check()
async def what_is_not_offered_is_refused(ground: Ground) -> None:
    ability = (await ground.backend.probe()).abilities.get("egress")
    if ability is not None and ability.level is not Level.MISSING:
        return
    expect(ability is None or ability.why, "who cannot says why", ability)
    key = fresh("key")
    spec = replace(await ground.spec(), egress=Egress("session", PORTS))
    try:
        await ground.backend.create(spec, key)
    except ProtectionMissing as refused:
        expect("egress" in refused.message, "the refusal names it", refused.message)
        expect(key not in [held.key for held in await ground.backend.survey()], "and nothing is made")
        return
    except SandboxFault as fault:
        raise Failed(f"it is refused before anything is tried; seen: {fault}") from fault
    raise Failed("a sandbox that needs a network is refused where there is none")


@egress.check("egress")
async def proxy_clients_find_the_gate_and_nobody_elses(ground: Ground) -> None:
    async with _plugged(ground) as (one, first), _plugged(ground) as (other, second):
        told = [*await look(one, TALK, _proxy(one), _proxy(one)), *await look(other, TALK, _proxy(other))]
    expect([said for said, _ in told] == [f"meant {PROXY}"] * 3, "each reaches the gate", told)
    expect((len(first.arrived), len(second.arrived)) == (2, 1), "by a session of its own", first.arrived)


@egress.check("egress")
async def proxy_clients_reach_nobody_without_the_gate(ground: Ground) -> None:
    """They are refused or reset at once; plugged in again, they find it."""
    source = """
import socket, sys
peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)
print(peer.makefile().readline().strip(), flush=True)
try: peer.recv(1)
except OSError: pass
print('ended', flush=True)
"""
    async with _plugged(ground) as (sandbox, session):
        program = await start(sandbox, python(source, _port(sandbox)))
        await until(program, b"meant")
        session.cut()
        await until(program, b"ended")
        told = await look(sandbox, TALK, _proxy(sandbox))
        expect(not told[0][0].startswith("meant") and told[0][1] < FAST_S, "nobody is met, at once", told)
        await _networked(sandbox).plug(Egress(session.id, PORTS))
        told = await look(sandbox, TALK, _proxy(sandbox))
    expect(told[0][0] == f"meant {PROXY}", "plugged in again, it works", told)


@egress.check("egress")
async def each_direction_ends_by_itself(ground: Ground) -> None:
    """A program that has said all still reads the answer, whole."""
    source = """
import json, socket, sys
with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5) as peer:
    peer.sendall(b'count' + bytes(3_000_000))
    peer.shutdown(socket.SHUT_WR)
    print(json.dumps(peer.makefile().read().splitlines()))
"""
    async with _plugged(ground) as (sandbox, _):
        told = await look(sandbox, source, _port(sandbox))
    expect(told == [f"meant {PROXY}", "3000005"], "all of it came, and the answer after its end", told)


def _networked(sandbox: Sandbox) -> Networked:
    if not isinstance(sandbox, Networked):
        raise Failed("a backend that offers egress gives sandboxes that can be plugged in again")
    return sandbox


def _port(sandbox: Sandbox) -> str:
    return str(_networked(sandbox).proxy_port)


def _proxy(sandbox: Sandbox) -> str:
    return f"127.0.0.1 {_port(sandbox)}"


@asynccontextmanager
async def _session(ground: Ground) -> AsyncIterator[TwinSession]:
    assert isinstance(ground.gate, TwinGate)
    session = await ground.gate.open(fresh("session"))
    try:
        yield session
    finally:
        await session.close()
        ground.gate.sessions.pop(session.id, None)


@asynccontextmanager
async def _plugged(ground: Ground, ports: tuple[int, ...] = PORTS) -> AsyncIterator[tuple[Any, TwinSession]]:
    async with _session(ground) as session, ground.sandbox(egress=Egress(session.id, ports)) as sandbox:
        yield sandbox, session


async def _until(condition: Any, promise: str) -> None:
    """Waits until the twin, which works in this very event loop, has seen it.

    The check's deadline bounds the wait.
    """
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise Failed(promise)
