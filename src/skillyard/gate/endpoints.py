"""The listening sockets of endpoints.

The server opens them and gives them to its gate, which can open no path.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Any

from skillyard.domain.errors import GateFault
from skillyard.domain.network.session import Endpoint, EndpointKind

_HERE = "127.0.0.1"
_BACKLOG = 128
_SUFFIX = ".sock"
_KEPT = "kept-"


class Endpoints:
    """Opens endpoints; unix sockets lie in ``directory``, which its user alone can enter.

    Sockets that a crashed server left are removed, but for those of kept sessions, which have the session's key in
    their name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for left in self._directory.glob(f"*{_SUFFIX}"):
            if not left.name.startswith(_KEPT):
                left.unlink(missing_ok=True)

    def new(self, kind: EndpointKind, key: str = "") -> tuple[Endpoint, socket.socket]:
        """Returns a new endpoint with its socket; ``key`` is that of a kept session. Raises GateFault."""
        sock, address = self._listen(kind, self._wanted(kind, key))
        return Endpoint(kind, address, token_urlsafe(24)), sock

    def again(self, told: dict[str, Any]) -> socket.socket:
        """Returns a socket at the address of an endpoint whose gate died. Raises GateFault when it was taken."""
        return self._listen(EndpointKind(told["kind"]), told["address"])[0]

    def forget(self, endpoint: Endpoint) -> None:
        """Removes the socket of an endpoint whose session is over. Idempotent."""
        if endpoint.kind is EndpointKind.UNIX:
            with contextlib.suppress(OSError):
                Path(endpoint.address).unlink()

    def forget_kept(self, key: str) -> None:
        """Removes all sockets of a kept session. Idempotent."""
        for left in self._directory.glob(f"{_KEPT}{key}.*{_SUFFIX}"):
            left.unlink(missing_ok=True)

    def _wanted(self, kind: EndpointKind, key: str) -> str:
        if kind is not EndpointKind.UNIX:
            return f"{_HERE}:0" if kind is EndpointKind.TCP else "any:any"
        prefix = f"{_KEPT}{key}." if key else ""
        return str(self._directory / f"{prefix}{token_hex(8)}{_SUFFIX}")

    def _listen(self, kind: EndpointKind, address: str) -> tuple[socket.socket, str]:
        try:
            match kind:
                case EndpointKind.UNIX:
                    return self._listen_unix(Path(address)), address
                case EndpointKind.TCP:
                    return _listen_tcp(address)
                case EndpointKind.VSOCK:
                    return _listen_vsock(address)
        except OSError as error:
            raise GateFault(
                f"no endpoint of the kind {kind.value} can be had here: {error.strerror or error}"
            ) from error

    def _listen_unix(self, path: Path) -> socket.socket:
        """Binds through a descriptor: the path may be longer than a socket address."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(f"/proc/self/fd/{directory}/{path.name}")
            path.chmod(0o666)  # a sandbox to which it is shown has another user
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        finally:
            os.close(directory)
        return sock


def _listen_tcp(address: str) -> tuple[socket.socket, str]:
    host, _, port = address.rpartition(":")
    sock = socket.create_server((host, int(port)), backlog=_BACKLOG)
    return sock, f"{host}:{sock.getsockname()[1]}"


def _listen_vsock(address: str) -> tuple[socket.socket, str]:
    """Listens for guests of this host (vsock(7)). ``any`` stands for a port that the kernel chooses."""
    port = address.rpartition(":")[2]
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        sock.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY if port == "any" else int(port)))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock, f"{socket.VMADDR_CID_HOST}:{sock.getsockname()[1]}"
