#!/usr/bin/python3 -IS
"""A sidecar that plays OpenSandbox's egress: it denies all that leaves its network by nft, and shows its policy.

With the policy ``allow`` it denies nothing. Rules by name are kept and shown, and not enforced: nothing here uses any.
"""

import hmac
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TABLE = """
table inet egress {
  chain output {
    type filter hook output priority 0; policy drop;
    oifname "lo" accept
    ct state established,related accept
  }
}
"""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
TOKEN = os.environ["OPENSANDBOX_EGRESS_TOKEN"]
POLICY = json.loads(os.environ["OPENSANDBOX_EGRESS_RULES"])
if POLICY.get("defaultAction") != "allow" and not os.path.exists("/asleep"):
    subprocess.run(["/usr/sbin/nft", "-f", "-"], input=TABLE.encode(), check=True)


class Egress(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = hmac.compare_digest(self.headers.get("OPENSANDBOX-EGRESS-AUTH", ""), TOKEN)
        if self.path == "/healthz":
            self._say(200, b"ok")
        elif self.path == "/policy" and known:
            self._say(200, json.dumps({"status": "ok", "mode": "dns+nft", "policy": POLICY}).encode())
        else:
            self._say(404 if known else 401, b"")

    def do_PATCH(self) -> None:
        rules = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not hmac.compare_digest(self.headers.get("OPENSANDBOX-EGRESS-AUTH", ""), TOKEN):
            self._say(401, b"")
            return
        POLICY.setdefault("egress", []).extend(json.loads(rules))
        self.do_GET()

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


ThreadingHTTPServer(("", 18080), Egress).serve_forever()
