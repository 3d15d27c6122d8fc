"""A gate's session in this process, behind a proxy on the loopback: what these tests' clients talk through."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from skillyard.domain.network.policy import Layer, Policy
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import Connection, EgressLimits, EgressPlan, GateSecret, new_placeholder
from skillyard.gate.dial import Dialer
from skillyard.gate.listener import serve_proxy
from skillyard.gate.relay.guard import Failure
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.trust import upstream_context
from tests.conformance.gate.programs.authority import Authority
from tests.conformance.gate.programs.web import Asked, Route, Web

LOOPBACK = "127.0.0.1"
BOUND_S = 20.0
NAMES = ("api.test", "other.test", "plain.test", "deep.api.test")
Result = TypeVar("Result")
TOKEN = 'sk-live-q7Zr+41/Vx_wP0mN=aB~3"end'  # with characters that each encoding writes in another way


class Gate:
    """One session; ``secrets`` are name to value and hosts, ``upstream`` what servers are verified with."""

    def __init__(
        self,
        upstream: ssl.SSLContext,
        rules: Sequence[str],
        secrets: Mapping[str, tuple[str, Sequence[str]]],
        limits: EgressLimits | None = None,
        *,
        reading: bool = False,
    ) -> None:
        self.given = tuple(
            GateSecret(name, new_placeholder(), value, tuple(map(parse_rule, hosts)), reading)
            for name, (value, hosts) in secrets.items()
        )
        hosts = dict.fromkeys(NAMES, (ipaddress.ip_address(LOOPBACK),))
        policy = Policy((Layer("skill", tuple(map(parse_rule, rules))),), hosts)
        self._plan = EgressPlan(policy, limits or EgressLimits(), self.given)
        self._interception = Interception(self.given, lambda: upstream)
        self.trust = self._interception.trust
        self._ready = threading.Event()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self.faults: list[BaseException] = []
        self.session: Session
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(BOUND_S)

    @property
    def proxy(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def placeholder(self, name: str) -> str:
        return next(secret.placeholder for secret in self.given if secret.name == name)

    def log(self) -> tuple[Connection, ...]:
        return self._in_loop(self.session.report).connections

    def refusals(self) -> list[str]:
        """Why connections were refused: at least one was, and its client may have known before the log."""
        return [one.reason for one in self.logged(lambda one: not one.allowed)]

    def logged(self, wanted: Callable[[Connection], bool]) -> list[Connection]:
        """At least one such entry of the log, once there is one: clients may know what came of them before it does."""
        until = time.monotonic() + BOUND_S
        while not (found := [one for one in self.log() if wanted(one)]):
            assert time.monotonic() < until, self.log()
        return found

    def close(self) -> None:
        self._in_loop(self.session.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BOUND_S)
        self._listener.close()
        self._loop.close()
        assert not self.faults

    def connected(self) -> socket.socket:
        """To the proxy itself."""
        return socket.create_connection((LOOPBACK, self.port), BOUND_S)

    def tunnel(self, name: str, port: int) -> socket.socket:
        """A socket for raw words to ``name``: what is said on it is what a program says to the far side."""
        sock = self.connected()
        sock.sendall(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            piece = sock.recv(1)
            assert piece, answer
            answer += piece
        assert answer.split()[1] == b"200", answer
        return sock

    def tls(self, name: str, port: int, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        return (context or self.trusting()).wrap_socket(self.tunnel(name, port), server_hostname=name)

    def trusting(self) -> ssl.SSLContext:
        """What a program has that trusts the authority and nobody else."""
        context = ssl.create_default_context(cadata=self.trust.decode())
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.session = Session("one", self._plan, Dialer(lambda: ()), self._interception)
        self._listener.setblocking(False)
        self._loop.create_task(self._accept())
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _accept(self) -> None:
        visits = set()
        while True:
            sock, _ = await self._loop.sock_accept(self._listener)
            visit = self._loop.create_task(self._visit(Stream(sock, self._plan.limits.idle_s)))
            visits.add(visit)
            visit.add_done_callback(visits.discard)

    async def _visit(self, client: Stream) -> None:
        try:
            await serve_proxy(self.session, client)
        except (Failure, OSError):
            pass
        except Exception as fault:  # noqa: BLE001 - the test that made it is told
            self.faults.append(fault)
        finally:
            client.reset()

    def _in_loop(self, function: Callable[[], Result]) -> Result:
        async def called() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(BOUND_S)


class Outside:
    """The real servers: certificates of an authority that only the gate trusts. ``routes`` may be added to."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.verify = upstream_context(self.authority.ca_pem)
        self.seen: list[Asked] = []
        self.routes: dict[str, Route] = {}
        contexts = {name: self.authority.context(name) for name in NAMES}
        self.https = Web("https", (LOOPBACK, 0), self.seen, contexts)
        self.http = Web("http", (LOOPBACK, 0), self.seen)
        self.https.routes = self.http.routes = self.routes

    def close(self) -> None:
        self.https.close()
        self.http.close()

    def url(self, name: str, path: str = "/echo") -> str:
        return f"https://{name}:{self.https.port}{path}"

    def client_context(self, more: bytes = b"") -> ssl.SSLContext:
        """What a program has that trusts the real servers, and ``more``."""
        return ssl.create_default_context(cadata=self.authority.ca_pem + more.decode())

    @contextmanager
    def gate(
        self,
        secrets: Mapping[str, tuple[str, Sequence[str]]] | None = None,
        limits: EgressLimits | None = None,
        *,
        reading: bool = False,
    ) -> Iterator[Gate]:
        """Where every name may be reached, and ``KEY`` is bound to api.test unless told otherwise."""
        bound: Mapping[str, tuple[str, Sequence[str]]]
        bound = secrets if secrets is not None else {"KEY": (TOKEN, ["api.test:*"])}
        gate = Gate(self.verify, [f"{name}:*" for name in NAMES], bound, limits, reading=reading)
        try:
            yield gate
        finally:
            gate.close()


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a listener that ``serve`` is called with each connection of, in a thread of its own."""
    listener = socket.create_server((LOOPBACK, 0))

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_served, args=(serve, sock), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(BOUND_S)


def _served(serve: Callable[[socket.socket], None], sock: socket.socket) -> None:
    sock.settimeout(BOUND_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer may still wait here when it is closed
    with contextlib.suppress(OSError), sock:
        serve(sock)


def all_of(sock: socket.socket) -> bytes:
    """What comes until the end, or a reset."""
    said = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := sock.recv(1 << 16):
            said += piece
    return bytes(said)
