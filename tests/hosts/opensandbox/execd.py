#!/usr/bin/python3 -IS
"""A daemon that speaks what the door meets of execd: it listens on 44772, answers /ping, and runs commands."""

import json
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Execd(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say(200 if self.path == "/ping" else 404, b"")

    def do_POST(self) -> None:
        """Runs a command as root for anybody: each program inside could, which is why the door ends this daemon."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = subprocess.run(["/bin/sh", "-c", order["command"]], capture_output=True, check=False)
        events = [{"type": "stdout", "text": done.stdout.decode()}, {"type": "execution_complete"}]
        self._say(200, b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events))

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


ThreadingHTTPServer(("", 44772), Execd).serve_forever()
