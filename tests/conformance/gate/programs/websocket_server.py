"""A WebSocket server that echoes, plain and over TLS, as a program: ``ADDRESS PORT TLS_PORT CERT KEY``. Port 0 takes a
free one; both are printed. It runs with the packages of an environment (PYTHONPATH), since the tests' own have no such
library, and ends with its standard input."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys


def _bound(address: str, port: int) -> socket.socket:
    """``::`` is for both versions."""
    dual = address == "::"
    return socket.create_server(
        (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, dualstack_ipv6=dual
    )


async def main(address: str, port: int, tls_port: int, certificate: str, key: str) -> None:
    from websockets.asyncio.server import serve  # type: ignore[import-not-found]

    async def echo(connection: object) -> None:
        async for message in connection:  # type: ignore[attr-defined]
            await connection.send(message)  # type: ignore[attr-defined]

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    sockets = [_bound(address, number) for number in (port, tls_port)]
    async with serve(echo, sock=sockets[0]), serve(echo, sock=sockets[1], ssl=context):
        print(*(sock.getsockname()[1] for sock in sockets), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]))
