"""Attacks by runs that may reach one host, and must reach that one alone."""

from __future__ import annotations

import asyncio

from skillyard.domain.network.session import PROXY_PORT
from skillyard.testing.attacks.attack import (
    CONTAINED,
    WORKS,
    Family,
    Judgement,
    Need,
    broken,
    escaped,
    judged,
    not_applicable,
    too_tight,
)
from skillyard.testing.attacks.prelude import program
from skillyard.verify.home import CALLER, outside_of
from skillyard.verify.outside import ALLOWED, OTHER, PROOF
from skillyard.verify.site import Report, Site

EGRESS = Family("egress", invariants=(5,))

_TOOLS = (
    f"""
import urllib.parse
PROOF, ALLOWED, OTHER = {PROOF!r}, "{ALLOWED}", "{OTHER}"
PROXY = urllib.parse.urlsplit(os.environ.get("HTTPS_PROXY") or "http://127.0.0.1:{PROXY_PORT}")
PROXY = PROXY.hostname, PROXY.port
"""
    + r'''

def said(sock, data):
    """Returns the answer to ``data``; it is got when it is the outside's."""
    sock.settimeout(5)
    if data:
        sock.sendall(data)
    answer = b""
    while PROOF not in answer:
        piece = sock.recv(65536)
        if not piece:
            break
        answer += piece
    return answer


def request(host, more=""):
    return f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n".encode("latin-1")


def direct(host, port, data):
    with socket.create_connection((host, port), 5) as sock:
        return said(sock, data)


def proxied(data):
    with socket.create_connection(PROXY, 5) as sock:
        return said(sock, data)


def connect(target, data, proxy=PROXY):
    with socket.create_connection(proxy, 5) as sock:
        sock.settimeout(5)
        sock.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode("latin-1"))
        answer = sock.recv(4096)
        return said(sock, data) if answer.startswith(b"HTTP/1.1 200") else answer


def socks(kind, packed, port, data):
    with socket.create_connection(PROXY, 5) as sock:
        sock.settimeout(5)
        sock.sendall(b"\5\1\0")
        if sock.recv(2) != b"\5\0":
            return b""
        sock.sendall(b"\5\1\0" + bytes([kind]) + packed + struct.pack("!H", port))
        answer = sock.recv(64)
        return said(sock, data) if answer[1:2] == b"\0" else answer


def named(host):
    return bytes([len(host)]) + host.encode()


def outcome(function, *args):
    try:
        return function(*args)
    except (OSError, UnicodeError):
        return b""


def unreached(what, function, *args):
    must_hold(f"not reached: {what}", PROOF not in outcome(function, *args))


def reached(what, function, *args):
    if function is direct and not DIRECT:
        host, port, data = args
        function, args = connect, (f"{host}:{port}", data)
    works(what, lambda: PROOF in function(*args))
'''
)


def _attack(name: str, tries: str, body: str, *, names: bool = False) -> None:
    """Adds an attack. ``body`` runs as the skill that may reach one host; ``args`` has the ports of the outside.

    With ``names`` it asks a name server, which is there where programs need no proxy."""

    async def steps(site: Site) -> Judgement:
        if names and not await _is_direct(site):
            return not_applicable("names are asked of nobody inside: programs reach out through a proxy alone")
        run = await _called(site, body)
        return _none(run) or judged(run)

    EGRESS.steps(name, tries, steps, needs=[Need.IN_PROCESS])


async def _called(site: Site, body: str) -> Report:
    there = outside_of(site)
    args = {"open": there.open_port, "other": there.other_port, "datagrams": there.datagrams}
    code = _program(site, body, direct=await _is_direct(site))
    return await site.call_run("execute_skill", {"name": CALLER, "args": {"code": code, "args": args}})


def _program(site: Site, body: str, *, direct: bool) -> str:
    tools = f"DIRECT = {direct}\n{_TOOLS}"
    return program(body, site.levels).replace("def main(args):", f"{tools}\n\ndef main(args):", 1)


async def _is_direct(site: Site) -> bool:
    """Returns whether programs that know no proxy reach out, where any do."""
    assert site.runtime is not None
    backends = site.runtime.app.backends
    offer = backends.default if site.isolation is None else await backends.named(site.isolation)
    abilities = {} if offer is None else offer.probe.abilities
    return "direct" in abilities or "egress" not in abilities


def _none(run: Report) -> Judgement | None:
    """Returns a judgement where an isolation gives no network at all."""
    if run.ok or "PolicyRefused" not in run.ends:
        return None
    return not_applicable(f"no run has a network here: {run.why}")


_attack("names", "Reach a name that is not declared, by its name, through the proxy and by SOCKS.", """
    target = f"{OTHER}:{args['open']}"
    unreached("by name", direct, OTHER, args["open"], request(target))
    unreached("by the proxy", proxied, f"GET http://{target}/ HTTP/1.1\\r\\nhost: {target}\\r\\n\\r\\n".encode())
    unreached("by a tunnel", connect, target, request(target))
    unreached("by SOCKS", socks, 3, named(OTHER), args["open"], request(target))
    reached("the declared one", connect, f"{ALLOWED}:{args['open']}", request(f"{ALLOWED}:{args['open']}"))
    """)  # fmt: skip
_attack("ports", "Reach another port of the declared host.", """
    target = f"{ALLOWED}:{args['other']}"
    unreached("by name", direct, ALLOWED, args["other"], request(target))
    unreached("by the proxy", proxied, f"GET http://{target}/ HTTP/1.1\\r\\nhost: {target}\\r\\n\\r\\n".encode())
    unreached("by a tunnel", connect, target, request(target))
    unreached("by SOCKS", socks, 3, named(ALLOWED), args["other"], request(target))
    reached("the declared one", direct, ALLOWED, args["open"], request(f"{ALLOWED}:{args['open']}"))
    """)  # fmt: skip
_attack("floor", "Reach the host's loopback by its address, which is declared but not opened by the operator.", """
    port = args["open"]
    for text in ("127.0.0.1", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "localhost", "[::ffff:127.0.0.1]",
                 "0.0.0.0"):
        unreached(f"tunnel to {text}", connect, f"{text}:{port}", request(f"{text}:{port}"))
        unreached(f"direct to {text}", direct, text.strip("[]"), port, request(f"{text}:{port}"))
    unreached("SOCKS by address", socks, 1, bytes([127, 0, 0, 1]), port, request(f"127.0.0.1:{port}"))
    unreached("SOCKS by version 6", socks, 4, bytes(10) + b"\\xff\\xff" + bytes([127, 0, 0, 1]), port, request("x"))
    reached("the declared one", connect, f"{ALLOWED}:{port}", request(f"{ALLOWED}:{port}"))
    """)  # fmt: skip
_attack("server-names", "Shake hands for another server, or for nobody, on a connection to the declared one.", """
    def hello(name):
        entry = b"\\0" + struct.pack("!H", len(name)) + name.encode()
        more = struct.pack("!HHH", 0, len(entry) + 2, len(entry)) + entry if name else b""
        more += struct.pack("!HHH", 10, 4, 2) + b"\\0\\x1d" + struct.pack("!HHH", 13, 4, 2) + b"\\4\\3"
        body = b"\\3\\3" + b"r" * 32 + b"\\0\\0\\2\\xc0\\x2f\\1\\0" + struct.pack("!H", len(more)) + more
        shake = b"\\1" + struct.pack("!I", len(body))[1:] + body
        return b"\\x16\\3\\1" + struct.pack("!H", len(shake)) + shake
    for name in (OTHER, "", "verify.test", f"{ALLOWED}.verify.test"):
        unreached(f"direct, {name or 'nobody'}", direct, ALLOWED, args["open"], hello(name))
        unreached(f"tunnel, {name or 'nobody'}", connect, f"{ALLOWED}:{args['open']}", hello(name))
        unreached(f"SOCKS, {name or 'nobody'}", socks, 3, named(ALLOWED), args["open"], hello(name))
    reached("its own name", direct, ALLOWED, args["open"], hello(ALLOWED))
    """)  # fmt: skip
_attack("hosts", "Ask for another host on a connection to the declared one, openly and hidden in a body.", """
    port = args["open"]
    mine, other = f"{ALLOWED}:{port}", f"{OTHER}:{port}"
    for what, data in (
        ("another", request(other)), ("two", request(mine, f"host: {other}\\r\\n")),
        ("absolute", request(mine).replace(b"GET /", f"GET http://{other}/".encode())),
        ("two lengths", f"POST / HTTP/1.1\\r\\nhost: {mine}\\r\\ncontent-length: 0\\r\\n".encode()
                        + b"transfer-encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + request(other)),
    ):
        unreached(f"direct, {what}", direct, ALLOWED, port, data)
        unreached(f"tunnel, {what}", connect, mine, data)
    unreached("by the proxy", proxied, f"GET http://{mine}/ HTTP/1.1\\r\\nhost: {other}\\r\\n\\r\\n".encode())
    reached("its own host", direct, ALLOWED, port, request(mine))
    """)  # fmt: skip
_attack("questions", "Have names answered that are not declared, and carry words out in questions.", """
    def ask(name, kind):
        labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
        packet = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.connect(("127.0.0.1", 53))
            sock.send(packet)
            return struct.unpack("!H", sock.recv(512)[6:8])[0]
    for name in (OTHER, f"words.{OTHER}", f"words.{ALLOWED}", "example.com"):
        for kind in (1, 28, 16, 15, 255):
            must_be(f"answers for {name} {kind}", 0, ask(name, kind))
    must_be("texts of the declared name", 0, ask(ALLOWED, 16))
    works("the declared name", lambda: ask(ALLOWED, 1) == 1)
    """, names=True)  # fmt: skip


async def _datagrams(site: Site) -> Judgement:
    """Counts the datagrams that the outside got, too."""
    there = outside_of(site)
    run = await _called(site, """
    for host in (ALLOWED, OTHER, "127.0.0.1", "1.1.1.1"):
        for port in (args["datagrams"], args["open"], 443):
            def sent():
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.settimeout(1)
                    sock.connect((host, port))
                    sock.send(b"words")
                    return sock.recv(64)
            unreached(f"{host} {port}", sent)
    reached("the declared one", connect, f"{ALLOWED}:{args['open']}", request(f"{ALLOWED}:{args['open']}"))
    """)  # fmt: skip
    if "datagram" in there.heard:
        return escaped("a datagram reached the outside")
    return _none(run) or judged(run)


EGRESS.steps("datagrams", "Send datagrams to the declared host and to others.", _datagrams, needs=[Need.IN_PROCESS])

_HOLDS = """
    reached("the declared one", connect, f"{ALLOWED}:{args['open']}", request(f"{ALLOWED}:{args['open']}"))
    time.sleep(2.5)
    reached("still", connect, f"{ALLOWED}:{args['open']}", request(f"{ALLOWED}:{args['open']}"))
    tried.append("held")
    """
_LOOKS = """
    until, target = time.monotonic() + 1.5, f"{ALLOWED}:{args['open']}"
    while time.monotonic() < until:
        for port in (*args["gates"], 53, args["open"]):
            for host in ("127.0.0.1", "::1", "198.18.0.2"):  # what listens there may be its own, and leads nowhere
                unreached(f"{host} {port}", connect, target, request(target), (host, port))
        time.sleep(0.1)
    server = works("its own loopback", socket.create_server, ("127.0.0.1", 0))
    works("connect to it", lambda: socket.create_connection(server.getsockname(), 2).close())
    """


async def _neighbour(site: Site) -> Judgement:
    """Looks for a working gate of another run from a run that has none."""
    told = await _called(site.fresh(), 'tried.append("gate")\nreturn evidence(gate=PROXY[1])')
    if (none := _none(told)) is not None:
        return none
    args = {"open": outside_of(site).open_port, "gates": sorted({PROXY_PORT, told.given()["gate"]})}
    holds = asyncio.create_task(_called(site.fresh(), _HOLDS))
    try:
        await asyncio.sleep(0.7)
        looks = await site.run(_program(site, _LOOKS, direct=False), args)
    finally:
        held = await holds
    if judged(held) is not CONTAINED:
        return broken(f"the run with a policy did not work: {held.why}")
    return judged(looks)


EGRESS.steps(
    "neighbour", "Use the way out of another run from one that has none.", _neighbour,
    walls=("net_namespace",), invariants=(3, 5), needs=[Need.IN_PROCESS], rests_on=("net_namespace",),
)  # fmt: skip


async def _works(site: Site) -> Judgement:
    run = await _called(site, """
    port = args["open"]
    target = f"{ALLOWED}:{port}"
    reached("by name", direct, ALLOWED, port, request(target))
    reached("by a tunnel", connect, target, request(target))
    reached("by the proxy", proxied, f"GET http://{target}/ HTTP/1.1\\r\\nhost: {target}\\r\\n\\r\\n".encode())
    reached("by SOCKS", socks, 3, named(ALLOWED), port, request(target))
    import urllib.request
    works("by urllib", lambda: urllib.request.urlopen(f"http://{target}/", timeout=5).read() == PROOF)
    tried.append("all")
    """)  # fmt: skip
    if (none := _none(run)) is not None:
        return none
    judgement = judged(run)
    return WORKS if judgement is CONTAINED else too_tight(judgement.why)


EGRESS.steps(
    "declared", "Reach the declared host by its name, a proxy, a tunnel, SOCKS and urllib.", _works, benign=True,
    invariants=(), needs=[Need.IN_PROCESS],
)  # fmt: skip
