"""Network namespaces as sandboxes have them, made by one helper process: what is asked of it comes back as sockets,
which stay in the namespace where they were made."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from skillyard.domain.network.session import DNS_PORT, PROXY_PORT

MOST_SOCKETS = 253


class Rooms:
    """Skips the test where the kernel gives us no namespace."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._sock, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(30)
        command = [sys.executable, "-m", "tests.conformance.gate.rooms", str(its.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[its.fileno()])
        its.close()

    def room(self) -> Room:
        told, _ = self._ask({"op": "room"})
        return Room(self, told["room"])

    def close(self) -> None:
        self._sock.close()
        self._process.wait(30)

    def _ask(self, asked: dict[str, object]) -> tuple[dict[str, int], list[socket.socket]]:
        with self._turn:
            self._sock.send(json.dumps(asked).encode())
            raw, fds, _, _ = socket.recv_fds(self._sock, 65536, MOST_SOCKETS)
        told = json.loads(raw)
        if "refused" in told:
            pytest.skip(f"no network namespace can be made here: {told['refused']}")
        return told, [socket.socket(fileno=fd) for fd in fds]


class Room:
    def __init__(self, rooms: Rooms, number: int) -> None:
        self._rooms = rooms
        self._number = number

    def listen(self, *ports: int) -> list[socket.socket]:
        """As the native backend hands them over: names and proxies always."""
        streams = sorted({*ports, DNS_PORT, PROXY_PORT})
        return self._rooms._ask({"op": "listen", "room": self._number, "streams": streams})[1]

    def program(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """A program's, with ten seconds of patience."""
        asked = {"op": "socket", "room": self._number, "family": int(family), "kind": int(kind)}
        [sock] = self._rooms._ask(asked)[1]
        sock.settimeout(10)
        return sock

    def dial(self, host: str, port: int) -> socket.socket:
        sock = self.program(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return sock


class _Maker:
    """The helper process: enters one namespace after the other."""

    def __init__(self) -> None:
        self._rooms: list[int] = []
        self._own_user = os.geteuid() == 0

    def answer(self, asked: dict[str, object]) -> tuple[dict[str, object], Sequence[socket.socket]]:
        if asked["op"] == "room":
            return {"room": self._make()}, ()
        number = asked["room"]
        assert isinstance(number, int)
        kernel.setns(self._rooms[number], kernel.CLONE_NEWNET)
        if asked["op"] == "socket":
            return {}, (socket.socket(asked["family"], asked["kind"]),)  # type: ignore[arg-type]
        streams = asked["streams"]
        assert isinstance(streams, list)
        wanted = request.Listen(tuple(streams), (DNS_PORT,))
        return {}, listening._open(wanted).sockets

    def _make(self) -> int:
        if not self._own_user:
            uid = os.geteuid()
            kernel.unshare(kernel.CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1")):
                namespaces.write(f"/proc/self/{name}", text)
            self._own_user = True
        kernel.unshare(kernel.CLONE_NEWNET)
        walls._loopback_up()
        with listening.connect() as netlink:
            listening.lead_everything_here(netlink)
        self._rooms.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        return len(self._rooms) - 1


def _main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    maker = _Maker()
    while raw := sock.recv(65536):
        try:
            told, sockets = maker.answer(json.loads(raw))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL):
                raise
            told, sockets = {"refused": str(error)}, ()
        socket.send_fds(sock, [json.dumps(told).encode()], [s.fileno() for s in sockets])
        for made in sockets:
            made.close()


if __name__ == "__main__":
    from skillyard.sandbox.native.grounds.namespaces import listening
    from skillyard.sandbox.native.inside import walls
    from skillyard.sandbox.native.keeper import request
    from skillyard.sandbox.native.linux import kernel, namespaces

    _main()
