"""A server of the official SDK behind Streamable HTTP; it writes its port to standard output."""

from __future__ import annotations

import socket

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("remote")


@server.tool()
def double(number: int) -> dict[str, int]:
    """Doubles a number."""
    return {"doubled": 2 * number}


@server.tool()
def key(context: Context) -> str:
    """Says the key that came with the request."""
    request = context.request_context.request
    return "none" if request is None else str(request.headers.get("authorization"))


@server.tool()
def huge() -> str:
    """Answers with 64 MiB."""
    return "x" * (64 << 20)


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app(stateless_http=True, host="mcp.test")
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
