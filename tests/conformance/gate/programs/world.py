"""The outside: every server that these tests' clients talk to, at one address or at all of a network namespace."""

from __future__ import annotations

import select
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from skillyard.engine.packages.environment import base_interpreter
from tests.conformance.gate.programs.authority import Authority
from tests.conformance.gate.programs.git_server import PREFIX as GIT
from tests.conformance.gate.programs.git_server import git_repository, git_route
from tests.conformance.gate.programs.listeners import HOSTILE, Listeners
from tests.conformance.gate.programs.package_index import PREFIX as INDEX
from tests.conformance.gate.programs.package_index import index_route
from tests.conformance.gate.programs.postgres import Absent, Postgres
from tests.conformance.gate.programs.web import Asked, Route, Web

MANY = 200
NAMES = ("api.yard.test", "other.yard.test", "git.yard.test", "index.yard.test", "db.yard.test", "ws.yard.test",
         "mail.yard.test", "raw.yard.test", "hostile.yard.test", "deep.api.yard.test",
         *(f"s{number}.yard.test" for number in range(MANY)))  # fmt: skip
USUAL = {"https": 443, "http": 80, "dns": 53, "postgres": 5432, "greeting": 25, "echo": 7007, "ws": 8080, "wss": 8443,
         **{name: 9101 + at for at, name in enumerate(HOSTILE)}}  # fmt: skip
_BOUND_S = 30.0


class World:
    """Servers at ``address`` (``::`` for every address there is), on the usual ports or on free ones; a database and
    WebSockets when :meth:`add_postgres` and :meth:`add_websockets` are called. ``seen`` are requests to the web
    servers,
    ``routes`` what these answer by path beside their own; a test may add some."""

    def __init__(self, directory: Path, address: str, *, usual: bool) -> None:
        self.address = address
        self.directory = directory
        self.seen: list[Asked] = []
        self.ports: dict[str, int] = {}
        self.routes: dict[str, Route] = {}
        self._usual = usual
        self._stack = ExitStack()
        try:
            self.authority = Authority(directory)
            self.listeners = Listeners()
            self._stack.callback(self.listeners.close)
            self._webs()
            self._sockets()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def rule(self, name: str, service: str) -> str:
        return f"{name}:{self.ports[service]}"

    def url(self, name: str, service: str, path: str = "/") -> str:
        scheme = {"https": "https", "http": "http", "ws": "ws", "wss": "wss"}[service]
        default = {"https": 443, "http": 80}.get(scheme)
        port = self.ports[service]
        return f"{scheme}://{name}{'' if port == default else f':{port}'}{path}"

    def hosts(self) -> Mapping[str, list[str]]:
        """For the setting ``network.hosts``."""
        return {name: [self.address] for name in NAMES}

    def at(self, address: str) -> list[Asked]:
        """Requests that arrived at ``address``."""
        return [asked for asked in self.seen if asked.at == address]

    def _wanted(self, service: str) -> int:
        return USUAL[service] if self._usual else 0

    def _webs(self) -> None:
        repositories = self.directory / "git"
        git_repository(repositories)
        self.routes.update({GIT: git_route(repositories), INDEX: index_route()})
        contexts = {name: self.authority.context(name) for name in NAMES[:-MANY]}
        for service, given in (("http", None), ("https", contexts)):
            web = Web(service, (self.address, self._wanted(service)), self.seen, given, self.routes)
            self._stack.callback(web.close)
            self.ports[service] = web.port

    def _sockets(self) -> None:
        listeners = self.listeners
        for service, serve in {"echo": listeners.echo, "greeting": listeners.greeting, **HOSTILE}.items():
            sock = self.bound(socket.SOCK_STREAM, self._wanted(service))
            self.ports[service] = sock.getsockname()[1]
            listeners.tcp(sock, serve)
        listeners.udp(self.bound(socket.SOCK_DGRAM, self.ports["echo"]), listeners.echo_datagram)
        names = self.bound(socket.SOCK_DGRAM, self._wanted("dns"))
        self.ports["dns"] = names.getsockname()[1]
        listeners.udp(names, listeners.resolve)
        listeners.tcp(self.bound(socket.SOCK_STREAM, self.ports["dns"]), listeners.resolve_stream)

    def bound(self, kind: socket.SocketKind, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((self.address, port))
        sock.setblocking(False)
        return sock

    def add_postgres(self) -> str:
        """Why there is none, or nothing."""
        port = self._wanted("postgres") or _free(self.address)
        address = "*" if self.address == "::" else self.address
        try:
            server = Postgres(address, port, self.authority.certify("db.yard.test"))
        except Absent as absent:
            return str(absent)
        self._stack.callback(server.close)
        self.ports["postgres"] = port
        return ""

    def add_websockets(self, packages: Path) -> None:
        """``packages`` is where their library lies."""
        script = Path(__file__).with_name("websocket_server.py")
        command = [base_interpreter(), str(script), self.address, str(self._wanted("ws")), str(self._wanted("wss"))]
        process = subprocess.Popen(
            [*command, *map(str, self.authority.certify("ws.yard.test"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": str(packages)},
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        self._stack.callback(process.wait, _BOUND_S)
        self._stack.callback(process.stdout.close)
        self._stack.callback(process.stdin.close)
        ready, _, _ = select.select([process.stdout], [], [], _BOUND_S)
        line = process.stdout.readline() if ready else b""
        self.ports["ws"], self.ports["wss"] = map(int, line.split())


def _free(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])
