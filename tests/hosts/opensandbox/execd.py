#!/usr/bin/python3 -IS
"""A daemon that speaks what the door meets of execd: it listens on 44772, answers /ping, and runs commands."""

import json
import subprocess
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = "/proxy/44772"
"""The path by which endpoints of the server name a port: here it is that of the daemon."""


class Execd(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say(200 if self.path.removeprefix(HERE) == "/ping" else 404, b"")

    def do_POST(self) -> None:
        """Runs a command as root for anybody: each program inside could, which is why the door ends this daemon."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = subprocess.run(["/bin/sh", "-c", order["command"]], capture_output=True, check=False)
        events = [{"type": "stdout", "text": done.stdout.decode()}, {"type": "execution_complete"}]
        now = time.time_ns() // 1_000_000
        self._say(200, b"".join(b"data: %s\n\n" % json.dumps(event | {"timestamp": now}).encode() for event in events))

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if body else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


ThreadingHTTPServer(("", 44772), Execd).serve_forever()
