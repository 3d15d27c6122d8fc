"""No way out, and a loopback of one's own."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, fresh, look, python, start, until

network = Section("network")

CONNECT = """
import json, socket, sys
told = []
for word in sys.argv[1:]:
    family, _, address = word.partition(' ')
    where = '\\0' + address if family == 'AF_UNIX' else (address.rsplit(' ', 1)[0], int(address.rsplit(' ', 1)[1]))
    peer = socket.socket(getattr(socket, family))
    peer.settimeout(3)
    try: peer.connect(where)
    except TimeoutError: told.append('timeout')
    except OSError as refused: told.append(refused.strerror)
    else: told.append('connected')
print(json.dumps(told))
"""
LOOPBACK = """
import json, socket
told = []
for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    try: server = socket.create_server((host, 0), family=family)
    except OSError as refused:
        told.append(refused.strerror)
        continue
    client = socket.create_connection(server.getsockname()[:2])
    server.accept()[0].sendall(b'hello')
    told.append(client.recv(5).decode())
print(json.dumps(told))
"""


@network.check("net_namespace")
async def only_loopback_is_there(ground: Ground) -> None:
    source = """
import json, socket
routes = open('/proc/net/route').read().splitlines()[1:]
print(json.dumps([[name for _, name in socket.if_nameindex()], routes]))
"""
    names, routes = await ground.look(source)
    expect(names == ["lo"], "no interface but lo is there", names)
    expect(routes == [], "no route leads anywhere", routes)


@network.check("net_namespace")
async def loopback_works(ground: Ground) -> None:
    told = await ground.look(LOOPBACK)
    expect(told[0] == "hello", "127.0.0.1 works within a sandbox", told)


@network.check("net_namespace")
async def listeners_of_the_host_are_out_of_reach(ground: Ground) -> None:
    async with _listening() as (port, name, arrived):
        told = await ground.look(CONNECT, f"AF_INET 127.0.0.1 {port}", f"AF_UNIX {name}")
        expect("connected" not in told, "no listener of the host is reached", told)
        expect(arrived == [], "and none hears of it", arrived)


@network.check("net_namespace")
async def addresses_outside_are_out_of_reach(ground: Ground) -> None:
    hosts = ("169.254.169.254 80", "10.0.0.1 443", "192.168.0.1 80", "8.8.8.8 53", "127.0.0.2 1")
    told = await ground.look(CONNECT, *(f"AF_INET {host}" for host in hosts))
    expect("connected" not in told, "no address is reached", told)
    expect("timeout" not in told, "and the refusal is immediate", told)


@network.check("net_namespace")
async def sandboxes_do_not_reach_each_other(ground: Ground) -> None:
    source = """
import socket, sys
tcp = socket.create_server(('127.0.0.1', int(sys.argv[2])))
named = socket.socket(socket.AF_UNIX)
named.bind('\\0' + sys.argv[1])
named.listen()
print('listening', flush=True)
input()
"""
    name, port = fresh("abstract"), str(20_000 + secrets.randbelow(10_000))
    async with ground.sandbox() as server, ground.sandbox() as client:
        await until(await start(server, python(source, name, port, stdin=True)), b"listening")
        told = await look(client, CONNECT, f"AF_INET 127.0.0.1 {port}", f"AF_UNIX {name}")
    expect("connected" not in told, "each sandbox has a network of its own", told)


@network.check("net_namespace")
async def sockets_of_the_host_are_not_listed(ground: Ground) -> None:
    async with _listening() as (port, name, _):
        source = "import json; print(json.dumps([open('/proc/net/' + n).read() for n in ('unix', 'tcp')]))"
        unix, tcp = await ground.look(source)
    expect(name not in unix, "no unix socket of the host is listed")
    expect(f"{port:04X}" not in tcp, "no TCP socket of the host is listed", tcp)


@network.check("net_namespace", "no_capabilities")
async def raw_sockets_are_refused(ground: Ground) -> None:
    source = """
import json, socket
made = []
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (1, 58, 255):
        try: made.append(socket.socket(family, socket.SOCK_RAW, kind).family)
        except OSError: pass
print(json.dumps(made))
"""
    made = await ground.look(source)
    expect(made == [], "raw sockets are refused", made)


@asynccontextmanager
async def _listening() -> AsyncIterator[tuple[int, str, list[str]]]:
    """Listeners of the host: a TCP port of 127.0.0.1, an abstract unix name, and who came."""
    arrived: list[str] = []

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(str(writer.get_extra_info("sockname")))
        writer.close()

    name = fresh("abstract")
    named = socket.socket(socket.AF_UNIX)
    named.bind("\0" + name)
    tcp = await asyncio.start_server(accept, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(accept, sock=named)
    try:
        yield tcp.sockets[0].getsockname()[1], name, arrived
    finally:
        for server in (tcp, unix):
            server.close()
            await server.wait_closed()
