"""What the network's rows are measured against, as processes of their own: a server that sends bytes, and the plainest
proxy that there is. ``python bench/outside.py server CERTIFICATE`` or ``proxy``; the ports are printed, and
the process ends with its standard input.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_PIECE = memoryview(b"x" * (1 << 18))
_HEAD = 65536


def serve(certificate: str) -> None:
    """``GET /N`` gets N bytes; one thread a connection, since that costs least beside what is measured."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    plain, tls = (socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(2))
    _accepting(plain, lambda sock: sock)
    _accepting(tls, lambda sock: context.wrap_socket(sock, server_side=True))
    _announce(plain.getsockname()[1], tls.getsockname()[1])
    sys.stdin.read()


def _accepting(listener: socket.socket, wrap: Callable[[socket.socket], socket.socket]) -> None:
    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=_answer, args=(sock, wrap), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _answer(sock: socket.socket, wrap: Callable[[socket.socket], socket.socket]) -> None:
    with suppress(OSError, ValueError), sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with wrap(sock) as peer:
            head = b""
            while b"\r\n\r\n" not in head and (data := peer.recv(_HEAD)):
                head += data
            size = int(head.split(b" ", 2)[1][1:])
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % size)
            while size:
                piece = _PIECE[: min(size, len(_PIECE))]
                peer.sendall(piece)
                size -= len(piece)


async def relay() -> None:
    """CONNECT and nothing else: no policy, no log, no limits."""
    server = await asyncio.start_server(_connected, "127.0.0.1", 0, backlog=512)
    _announce(server.sockets[0].getsockname()[1])
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ValueError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        host, _, port = head.split(b" ", 2)[1].decode().rpartition(":")
        away, out = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_copy(reader, out), _copy(away, writer))
    writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    target.close()


def _announce(*ports: int) -> None:
    sys.stdout.write(" ".join(map(str, ports)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        asyncio.run(relay())
