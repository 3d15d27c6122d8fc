"""The program of a service, which runs in a sandbox: an honest port 8000, a hostile port 8001, and 8002 not exposed."""

import base64
import hashlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OK = b"HTTP/1.1 200 OK\r\n"
RAW = {
    "/endless-head": OK + b"".join(b"x-%d: y\r\n" % n for n in range(100_000)),
    "/many-fields": OK + b"".join(b"x-%d: y\r\n" % n for n in range(500)) + b"content-length: 0\r\n\r\n",
    "/bad-chunk": OK + b"transfer-encoding: chunked\r\n\r\nZZZ\r\nhello\r\n0\r\n\r\n",
    "/two-lengths": OK + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "/both": OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
    "/cut": OK + b"content-length: 100\r\n\r\nabc",
    "/behind": OK + b"content-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nextra",
    "/switch": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nraw",
    "/interim": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100 + OK + b"content-length: 0\r\n\r\n",
    "/injected": OK + b"x-a: 1\rx-b: 2\r\ncontent-length: 0\r\n\r\n",
    "/not-http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "/nothing": b"",
    "/parts": OK + b"content-type: multipart/x-mixed-replace; boundary=b\r\ncontent-length: 0\r\n\r\n",
    "/hidden-parts": OK + b"content-type: multipart/byteranges, multipart/x-mixed-replace\r\ncontent-length: 0\r\n\r\n",
    "/status": b"HTTP/1.1 600 Unknown\r\ncontent-length: 0\r\n\r\n",
}
SPEAKS = {
    "Set-Cookie": "a=1; Domain=localhost; Path=/", "Service-Worker-Allowed": "/", "Clear-Site-Data": '"*"',
    "Strict-Transport-Security": "max-age=9", "Alt-Svc": 'h2="evil.example:443"', "X-Accel-Redirect": "/rpc",
    "Access-Control-Allow-Origin": "*", "Cache-Control": "public, max-age=60", "Refresh": "0; url=/rpc",
    "Connection": "X-Hop", "X-Hop": "1", "X-Own": "kept", "WWW-Authenticate": "Basic", "Link": "</rpc>; rel=preload",
}  # fmt: skip


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/ws":
            self.switch()
        elif path == "/speaks":
            self.answer(b"ok", SPEAKS)
        elif path == "/cookies":
            more = {"Set-Cookie": unquote(query)}
            self.answer(b"ok", more)
        elif path == "/to":
            self.answer(b"", {"Location": unquote(query)}, 302)
        elif path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"4\r\ntick\r\n")
        elif path == "/slow":
            threading.Event().wait(float(query))
            self.answer(b"slow")
        elif path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", str(int(query) * 65536))
            self.end_headers()
            for _ in range(int(query)):
                self.wfile.write(b"x" * 65536)
        else:
            said = {name.lower(): value for name, value in self.headers.items()}
            self.answer(json.dumps({"path": self.path, "headers": said}).encode())

    def do_POST(self) -> None:
        body = b""
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        self.answer(hashlib.sha256(body).hexdigest().encode())

    def answer(self, body: bytes, more: "dict[str, str] | None" = None, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def switch(self) -> None:
        key = self.headers["sec-websocket-key"] + MAGIC
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nset-cookie: a=b\r\n"
            + f"sec-websocket-accept: {accept}\r\n\r\nfirst".encode()
        )
        while data := self.connection.recv(65536):
            self.connection.sendall(data.upper())
        self.close_connection = True


def hostile(sock: socket.socket) -> None:
    while True:
        peer, _ = sock.accept()
        with peer:
            line = peer.recv(65536).split(b" ")
            try:
                peer.sendall(RAW.get(line[1].decode(), b"?"))
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass
            except OSError:
                pass


def last(sock: socket.socket) -> None:
    """Answers when the other side has said all, and not before."""
    while True:
        peer, _ = sock.accept()
        with peer:
            count = 0
            while data := peer.recv(65536):
                count += len(data)
            peer.sendall(b"%d bytes" % count)


threading.Thread(target=last, args=(socket.create_server(("127.0.0.1", 8003)),), daemon=True).start()
threading.Thread(target=hostile, args=(socket.create_server(("127.0.0.1", 8001)),), daemon=True).start()
threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", 8002), App).serve_forever, daemon=True).start()
server = ThreadingHTTPServer(("127.0.0.1", 8000), App)
print("serving", flush=True)
server.serve_forever()
