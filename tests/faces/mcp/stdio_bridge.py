"""A server that speaks over standard input and output, at a URL: for a suite that knows no other way to a server.

It follows Streamable HTTP as far as the suite of conformance asks for it. What is said about HTTP itself would be said
of this bridge, so such scenarios are not for it.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BOUND_S = 60
_SESSION = "Mcp-Session-Id"
Message = dict[str, Any]


class Child:
    """One process of the server, and who waits for its answers."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], prefix: str) -> None:
        self._prefix = prefix
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[Any, queue.Queue[Message | None]]] = {}
        self._lock = threading.Lock()
        self._own: set[str] = set()
        """Tools that have no prefix."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def send(self, message: Message) -> queue.Queue[Message | None] | None:
        """Passes a message on. Returns where messages come until the answer, and then None, for a request.

        Requests get ids of their own here: clients that share a process choose the same ones.
        """
        with self._lock:
            answers: queue.Queue[Message | None] | None = None
            if "method" in message and "id" in message:
                number, answers = f"bridge-{next(self._numbers)}", queue.Queue()
                self._waiting[number] = (message["id"], answers)
                message = message | {"id": number}
                if message["method"] == "tools/call" and message["params"]["name"] not in self._own:
                    message |= {"params": message["params"] | {"name": self._prefix + message["params"]["name"]}}
            elif message.get("method") == "notifications/cancelled":
                wanted = message["params"]["requestId"]
                found = [number for number, (id, _) in self._waiting.items() if id == wanted]
                if found:
                    message = message | {"params": message["params"] | {"requestId": found[-1]}}
            assert self._process.stdin is not None, "it is a pipe"
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return answers

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            message = json.loads(line)  # what is not JSON is a fault of the server, and shows as one
            with self._lock:
                if "method" in message:
                    for _, answers in [*self._waiting.values()][-1:]:
                        answers.put(message)
                elif found := self._waiting.pop(message.get("id"), None):
                    id, answers = found
                    for tool in message.get("result", {}).get("tools", ()):
                        if self._prefix and tool["name"].startswith(self._prefix):
                            tool["name"] = tool["name"].removeprefix(self._prefix)
                        else:
                            self._own.add(tool["name"])
                    answers.put(message | {"id": id})
                    answers.put(None)

    def end(self) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(BOUND_S)
        finally:
            self._process.kill()
            self._reader.join(BOUND_S)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()


@contextmanager
def bridged(command: Sequence[str], env: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    """Gives the URL of a server that ``command`` starts: one process a session, and one for requests of none.

    Tools whose names begin with ``prefix`` are known without it there.
    """
    children: dict[str, Child] = {}
    lock = threading.Lock()

    def child(session: str) -> Child:
        with lock:
            if session not in children:
                children[session] = Child(command, env, prefix)
            return children[session]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            session = self.headers.get(_SESSION, "")
            if message.get("method") == "initialize":
                session = f"session-{len(children)}"
            answers = child(session).send(message)
            if answers is None:
                self._begin(202, "application/json", session, length=0)
                return
            self._begin(200, "text/event-stream", session)
            while (answer := answers.get(timeout=BOUND_S)) is not None:
                self.wfile.write(b"event: message\ndata: " + json.dumps(answer).encode() + b"\n\n")
                self.wfile.flush()

        def do_GET(self) -> None:
            self._begin(405, "application/json", "", length=0)

        def do_DELETE(self) -> None:
            self._begin(200, "application/json", "", length=0)

        def _begin(self, status: int, kind: str, session: str, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if session:
                self.send_header(_SESSION, session)
            if length is None:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.close_connection = length is None

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        serving.join(BOUND_S)
        server.server_close()
        for one in children.values():
            one.end()
