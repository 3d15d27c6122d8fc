"""The sockets that listen inside one session's sandbox, and their connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from skillyard.domain.network.session import DNS_PORT, KNOCK, PROXY_PORT, TOOLS_PORT
from skillyard.gate import dns_server as dns
from skillyard.gate import socks, tools
from skillyard.gate.addresses import endpoint
from skillyard.gate.http import proxy as http_proxy
from skillyard.gate.relay.first_bytes import HTTP_PORT, TLS_PORT, refusal_for, sniff
from skillyard.gate.relay.guard import Failure, Refused, Unreachable
from skillyard.gate.relay.relay import tunnel
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Door, Session
from skillyard.gate.upstream import SandboxConnection

Serve = Callable[[Session, Stream], Coroutine[Any, Any, None]]

_MOST_KNOCK = 256
_AT_ONCE = 32
"""Connections accepted before others have their turn."""
_MOST_STRANGERS = 64
"""Connections of one endpoint at once that have not shown its credential."""
_CROWDED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LATER_S = 0.1
_KEPT = 256
"""Descriptors for files, the channel, name lookups and a burst that is not counted yet."""
_EACH = 2
"""Descriptors of a connection: the sandbox's side and the far side."""


class Listeners:
    """Serves a sandbox's sockets by their port; unforeseen faults go to ``on_fault``."""

    def __init__(self, session: Session, capacity: Capacity, on_fault: Callable[[BaseException], None]) -> None:
        self._session = session
        self._capacity = capacity
        self._on_fault = on_fault
        self._served: list[Listener | dns.Datagrams] = []
        self.ports: list[int] = []
        """Ports of streams that are listened on in the sandbox."""

    def add(self, sockets: Sequence[socket.socket]) -> None:
        """Serves them until :meth:`close`. Raises OSError for an unknown kind of socket."""
        for sock in sockets:
            sock.setblocking(False)
            self._served.append(self._serve(sock))
            self._capacity.listening += 1

    def add_endpoint(self, sock: socket.socket, credential: str) -> None:
        """Serves proxy clients that show ``credential``, until :meth:`close`."""
        sock.setblocking(False)
        self._served.append(Endpoint(self._session, sock, self._capacity, self._on_fault, credential))
        self._capacity.listening += 1

    def _serve(self, sock: socket.socket) -> Listener | dns.Datagrams:
        if sock.type == socket.SOCK_DGRAM:
            return dns.Datagrams(self._session, sock)
        _, port = endpoint(sock.getsockname())
        self.ports.append(port)
        serve: Serve = {DNS_PORT: dns.serve, PROXY_PORT: serve_proxy, TOOLS_PORT: tools.serve}.get(port, serve_direct)
        return Listener(self._session, sock, serve, self._capacity, self._on_fault)

    def close(self) -> None:
        """Closes them. Idempotent."""
        for served in self._served:
            served.close()
        self._capacity.listening -= len(self._served)
        self._served.clear()
        self.ports.clear()


async def serve_proxy(session: Session, client: Stream, door: Door | None = None) -> None:
    """Serves HTTP and SOCKS, told apart by the first byte.

    Where there is a ``door``, it lets clients in. Raises as both do, after the client was told."""
    async with asyncio.timeout(session.limits.idle_s if door is None else session.limits.header_s):
        first = await client.read()  # some programs connect ahead
        if knocks := door is not None and first.startswith(KNOCK):
            await _let_in(client, first, door)
    if knocks:
        await serve_proxy(session, client)
        return
    client.unread(first)
    if not first:
        client.close()
    elif first[0] in socks.VERSIONS:
        await socks.serve(session, client, door)
    else:
        await http_proxy.serve(session, client, door)


async def _let_in(client: Stream, said: bytes, door: Door | None) -> None:
    """Lets in a connection that a server passes on. Raises Refused."""
    assert door is not None
    while b"\n" not in said and len(said) < _MOST_KNOCK and (data := await client.read()):
        said += data
    shown, _, rest = said.removeprefix(KNOCK).partition(b"\n")
    door.check("http", shown)
    client.unread(rest)


class Listener:
    """Accepts connections of one socket and serves each in its own task."""

    def __init__(
        self,
        session: Session,
        sock: socket.socket,
        serve: Serve,
        capacity: Capacity,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._session = session
        self._sock = sock
        self._fd = sock.fileno()
        self._serve = serve
        self._capacity = capacity
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._later is not None:
            self._later.cancel()
        self._sock.close()

    def _open(self) -> None:
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Clients wait in the kernel's queue meanwhile; a broken socket is left alone.
                self._loop.remove_reader(self._fd)
                if error.errno in _CROWDED:
                    self._later = self._loop.call_later(_LATER_S, self._open)
                return
            if self._session.closed:  # its listeners are closed a moment later
                sock.close()
                continue
            self._admit(Stream(sock, self._session.limits.idle_s))

    def _admit(self, client: Stream) -> None:
        why = self._enter()
        if why is not None:
            self._turn_away(client, why)
            return
        connection = SandboxConnection(client)
        self._begin(connection, self._serve(self._session, client), self._leave)

    def _enter(self) -> str | None:
        """Counts a connection; returns why it is not admitted, or None."""
        session, capacity = self._session, self._capacity
        why = capacity.full_for(session.usage.connections) or session.usage.enter()
        capacity.connections += why is None
        return why

    def _leave(self) -> None:
        self._session.usage.leave()
        self._capacity.connections -= 1

    def _begin(
        self, connection: SandboxConnection, serving: Coroutine[Any, Any, None], over: Callable[[], None]
    ) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            serving.close()  # one that is ended at once never begins
            self._session.connections.discard(connection)
            over()

        self._session.connections.add(connection)
        connection.task = self._loop.create_task(self._run(connection, serving))
        connection.task.add_done_callback(ended)

    def _turn_away(self, client: Stream, why: str) -> None:
        address, port = client.local
        via = "http" if port == PROXY_PORT else "direct"
        self._session.refuse(via, self._session.name_of(address) or str(address), port, why, layer="limits")
        client.reset()

    async def _run(self, connection: SandboxConnection, serving: Coroutine[Any, Any, None]) -> None:
        connection.enter()
        try:
            await serving
        except (Failure, OSError):
            pass  # the log has it, or a side went away
        except Exception as fault:  # noqa: BLE001 - one connection's fault must not be another's
            self._on_fault(fault)
        finally:
            connection.client.reset()


class Endpoint(Listener):
    """Accepts connections from anywhere.

    Nothing of them counts for the session until they show its credential."""

    def __init__(
        self,
        session: Session,
        sock: socket.socket,
        capacity: Capacity,
        on_fault: Callable[[BaseException], None],
        credential: str,
    ) -> None:
        super().__init__(session, sock, serve_proxy, capacity, on_fault)
        self._credential = credential
        self._strangers = 0

    def _admit(self, client: Stream) -> None:
        if self._strangers >= _MOST_STRANGERS:
            client.reset()
            return

        def enter() -> str | None:
            why = self._enter()
            self._strangers -= why is None
            return why

        def over() -> None:
            if door.passed:
                self._leave()
            else:
                self._strangers -= 1

        self._strangers += 1
        door = Door(self._session, self._credential, enter)
        self._begin(SandboxConnection(client), serve_proxy(self._session, client, door), over)


class Capacity:
    """Shares this process's descriptors between sessions when they become few.

    ``listening`` counts the sockets that listen inside sandboxes."""

    def __init__(self, descriptors: int) -> None:
        self._descriptors = descriptors
        self.sessions = 0
        self.listening = 0
        self.connections = 0

    def full_for(self, own: int) -> str | None:
        """Returns why a session that has ``own`` connections cannot have another one, or None.

        The first half goes to any session; the second half is divided evenly."""
        most = max(0, self._descriptors - _KEPT - self.listening) // _EACH
        if self.connections < most // 2 or own < most // (2 * max(1, self.sessions)):
            return None
        return "the gate has no room for more connections of this run"


def raise_descriptors() -> int:
    """Raises this process's limit of descriptors as far as possible and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        most = int(Path("/proc/sys/fs/nr_open").read_text("ascii"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        return most
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


VIA_DIRECT = "direct"
_MOST_WORDS = 1 << 16
_GRACE_S = 0.5
"""Time for the first bytes of a refused client: most speak at once, and one that waits for the server must not wait."""


async def serve_direct(session: Session, client: Stream) -> None:
    """Serves one connection. Raises as streams do, and Failure once the client was told."""
    address, port = client.local
    try:
        upstream = await session.reach(VIA_DIRECT, address, port)
    except (Refused, Unreachable) as failure:
        await _tell(session, client, port, failure)
        raise
    except BaseException:
        client.reset()
        raise
    await tunnel(session, client, upstream)


async def _tell(session: Session, client: Stream, port: int, failure: Failure) -> None:
    """Tells a client of the refusal.

    On the ports of the web it is told in its own protocol, once it has spoken; others are reset at once."""
    if port not in (TLS_PORT, HTTP_PORT):
        client.reset()
        return
    said = b""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(min(_GRACE_S, session.limits.header_s)):
            while len(said) < _MOST_WORDS and (data := await client.read()):
                said += data
                if (kind := sniff(said)) is not None:
                    await client.write(refusal_for(kind, failure.reason))
                    break
    await client.finish()
