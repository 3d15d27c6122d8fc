"""The door: the first program of a sandbox, and the only way to its agent.

It answers HTTP on port 8080, to those who show its token. It takes the agent and the content, ends the server's own
daemon (execd, which takes commands from every program inside), starts the agent, and joins channels to it. This file
is sent as it is, as a word of the sandbox's command, so it imports the standard library only::

    GET    /ready               204
    PUT    /upload/NAME         takes a file: the guest, or the archive of content
    POST   /start               makes the sandbox that the order in the body describes; tells of it as a JSON object
    PUT    /channel/ID          opens a channel
    POST   /channel/ID?at=N     takes bytes for the agent, of which the first is number N
    GET    /channel/ID?from=N   gives the agent's bytes from number N on, as soon as there are any; 410 at the end
    DELETE /channel/ID          closes it

A request that is sent twice does nothing twice. ``SKILLYARD_DOOR`` is the SHA-256 of the token, so that nobody who
reads the order of the sandbox can enter.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VARIABLE, HEADER, PORT = "SKILLYARD_DOOR", "X-Skillyard-Door", 8080
EXECD_PORT = 44772
ROOT = Path("/run/skillyard")
PRIVATE = ROOT / "private"
"""Nobody but root enters it."""
GUEST, CONTENT, SOCKET = ROOT / "guest.pyz", PRIVATE / "content.tar", PRIVATE / "agent.sock"
UPLOADS = {"guest": GUEST, "content": CONTENT}
_CHANNELS = 16
_READ = 256 * 1024
_POLL_S = 15.0
_ENDS_S = 10.0
_MOST_BODY = 1 << 20
_ID = re.compile(r"[0-9a-f]{32}")


class Channel:
    """A connection to the agent. Bytes to the host are kept until it asks for later ones."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(SOCKET))
        self._in, self._out = threading.Lock(), threading.Lock()
        self._taken = self._first = 0
        self._kept = b""

    def take(self, at: int, data: bytes) -> bool:
        """Returns whether these bytes follow those before."""
        with self._in:
            known = self._taken - at
            if known < 0:
                return False
            self._socket.sendall(data[known:])
            self._taken = max(self._taken, at + len(data))
            return True

    def give(self, start: int) -> bytes | None:
        """Returns the bytes from ``start`` on; none after a while, None at the end."""
        with self._out:
            known = start - self._first
            if not 0 <= known <= len(self._kept):
                return None
            self._first, self._kept = start, self._kept[known:]
            if not self._kept:
                if not select.select([self._socket], [], [], _POLL_S)[0]:
                    return b""
                self._kept = self._socket.recv(_READ)
            return self._kept or None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._in, self._out:
            self._socket.close()


class Sandbox:
    """Everything that the door knows."""

    def __init__(self) -> None:
        self.agent: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        self.channels: dict[str, Channel] = {}
        self.told: dict[str, Any] = {}

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Makes the sandbox, once."""
        with self.lock:
            if self.agent is None:
                end_execd()
                self.told = _facts(order)
                _place(order)
                self.agent = _launch(order)
                threading.Thread(target=self._watch, daemon=True).start()
        return self.told

    def open(self, id: str) -> None:
        with self.lock:
            if id not in self.channels:
                while len(self.channels) >= _CHANNELS:
                    self.channels.pop(next(iter(self.channels))).close()
                self.channels[id] = Channel()

    def _watch(self) -> None:
        """Ends the sandbox with its agent, and execd again where something has started it."""
        assert self.agent is not None
        while True:
            try:
                self.agent.wait(1.0)
            except subprocess.TimeoutExpired:
                with suppress(OSError, ValueError):
                    end_execd()
            else:
                os._exit(0)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    sandbox: Sandbox
    digest: str

    def do_GET(self) -> None:
        self._answer({"ready": lambda _: (204, b""), "channel": self._give})

    def do_PUT(self) -> None:
        self._answer({"upload": self._upload, "channel": self._open})

    def do_POST(self) -> None:
        self._answer({"start": self._start, "channel": self._take})

    def do_DELETE(self) -> None:
        self._answer({"channel": self._close})

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the server keeps what sandboxes print."""

    def _answer(self, ways: dict[str, Callable[[str], tuple[int, bytes]]]) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        _, _, rest = url.path.rpartition("/proxy/8080") if "/proxy/8080" in url.path else ("", "", url.path)
        word, _, name = rest.strip("/").partition("/")
        self.left = int(self.headers.get("Content-Length") or 0) if self._knows_size() else -1
        shown = hashlib.sha256(self.headers.get(HEADER, "").encode()).hexdigest()
        if not hmac.compare_digest(shown, self.digest) or self.left < 0:
            status, body = 403, b""
        elif word not in ways:
            status, body = 404, b""
        else:
            try:
                status, body = ways[word](name)
            except (OSError, ValueError, KeyError, TypeError, tarfile.TarError, subprocess.SubprocessError) as error:
                status, body = 500, f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace")
        if self.left:
            self.close_connection = True
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _knows_size(self) -> bool:
        return "Transfer-Encoding" not in self.headers and (self.headers.get("Content-Length") or "0").isdecimal()

    def _body(self, most: int) -> bytes:
        if self.left > most:
            raise ValueError(f"a body has at most {most} bytes")
        data = self.rfile.read(self.left)
        if len(data) != self.left:
            raise ValueError("the body ended early")
        self.left = 0
        return data

    def _upload(self, name: str) -> tuple[int, bytes]:
        part = PRIVATE / f"{UPLOADS[name].name}.{threading.get_ident()}"
        with part.open("wb") as file:
            while self.left:
                data = self.rfile.read(min(self.left, _READ))
                if not data:
                    raise ValueError("the body ended early")
                file.write(data)
                self.left -= len(data)
        part.chmod(0o444)
        part.rename(UPLOADS[name])
        return 204, b""

    def _start(self, _: str) -> tuple[int, bytes]:
        return 200, json.dumps(self.sandbox.start(json.loads(self._body(_MOST_BODY)))).encode()

    def _open(self, id: str) -> tuple[int, bytes]:
        if not _ID.fullmatch(id) or self.sandbox.agent is None:
            return 404, b""
        self.sandbox.open(id)
        return 204, b""

    def _take(self, id: str) -> tuple[int, bytes]:
        channel, data = self.sandbox.channels.get(id), self._body(_MOST_BODY)
        if channel is None:
            return 410, b""
        return (204 if channel.take(int(self.query["at"]), data) else 409), b""

    def _give(self, id: str) -> tuple[int, bytes]:
        channel = self.sandbox.channels.get(id)
        data = None if channel is None else channel.give(int(self.query["from"]))
        return (410, b"") if data is None else (200, data)

    def _close(self, id: str) -> tuple[int, bytes]:
        with self.sandbox.lock:
            channel = self.sandbox.channels.pop(id, None)
        if channel is not None:
            channel.close()
        return 204, b""


def end_execd() -> None:
    """Ends what listens on execd's port. Raises ValueError when it lives on."""
    until = time.monotonic() + _ENDS_S
    while sockets := _listening():
        for pid in [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]:
            with suppress(OSError):
                held = {str(link.readlink()) for link in Path("/proc", pid, "fd").iterdir()}
                if held & sockets and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > until:
            raise ValueError(f"the daemon on port {EXECD_PORT} cannot be ended: programs could command it")
        time.sleep(0.01)


def _listening() -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[1].endswith(f":{EXECD_PORT:04X}"):
                    found.add(f"socket:[{words[9]}]")
    return found


def _facts(order: dict[str, Any]) -> dict[str, Any]:
    code = "import json, site; print(json.dumps(site.getsitepackages()))"
    told = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True).stdout
    if order["filters"].get(os.uname().machine) is None:
        raise ValueError(f"no filter of system calls is known for {os.uname().machine}")
    return {
        "root": os.geteuid() == 0,
        "machine": os.uname().machine,
        "python": list(sys.version_info[:2]),
        "packages": json.loads(told)[0],
        "processors": len(os.sched_getaffinity(0)),
        "spaces": {path.name: str(path.readlink()) for path in Path("/proc/self/ns").iterdir()},
    }


def _place(order: dict[str, Any]) -> None:
    """Puts content where it is wanted, for root to change and everybody to read."""
    into = ROOT / "content"
    into.mkdir(mode=0o755, exist_ok=True)
    if CONTENT.exists():
        with tarfile.open(CONTENT) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extraction_filter = staticmethod(tarfile.tar_filter)
            packed.extractall(into)  # noqa: S202 - it is made by our server, of content that was checked
        CONTENT.unlink()
    uid = order["uid"]
    workspace = Path("/workspace")
    workspace.mkdir(mode=0o700, exist_ok=True)
    os.chown(workspace, uid, uid)
    workspace.chmod(0o700)
    for place in (Path("/tmp"), Path("/dev/shm")):  # noqa: S108 - of the sandbox
        place.mkdir(exist_ok=True)
        place.chmod(0o1777)
    _close_others()
    mounts = list(order["mounts"])
    if order["packages"]:
        mounts.append([order["packages"], _packages()])
    for name, target, *aliases in mounts:
        _show(into / name, Path(target))
        for alias in aliases:
            _parents(Path(alias))
            Path(alias).symlink_to(target)


def _close_others() -> None:
    """Takes from programs the right to write elsewhere, such as in ``/var/tmp``."""
    for parent in (Path("/"), Path("/var"), Path("/run")):
        for place in parent.iterdir():
            if place.is_symlink() or not place.is_dir() or str(place) in ("/tmp", "/workspace"):  # noqa: S108 - inside
                continue
            if (mode := place.stat().st_mode) & 0o002:
                place.chmod(mode & 0o7775)


def _packages() -> str:
    code = "import site; print(site.getsitepackages()[0])"
    place = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    with suppress(FileNotFoundError):
        shutil.move(place.strip(), PRIVATE / "replaced")
    return place.strip()


def _show(source: Path, target: Path) -> None:
    _parents(target)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    else:
        os.link(source, target)


def _parents(target: Path) -> None:
    for parent in reversed(target.parents[:-1]):
        if not parent.exists():
            parent.mkdir(mode=0o755)


def _launch(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    spool = PRIVATE / "spool"
    spool.mkdir(mode=0o700)
    more = {"filters": order["filters"][os.uname().machine], "user": [order["uid"]] * 2, "spool": str(spool)}
    settings = json.dumps(order["agent"] | more).encode() + b"\n"
    words = [sys.executable, "-I", "-S", "-c", order["start"], str(GUEST), "agent", "listen", str(SOCKET)]
    agent = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env={}
    )
    assert agent.stdin is not None
    agent.stdin.write(settings)
    agent.stdin.close()
    until = time.monotonic() + _ENDS_S
    while True:
        with socket.socket(socket.AF_UNIX) as tried, suppress(OSError):
            tried.connect(str(SOCKET))
            return agent
        if agent.poll() is not None or time.monotonic() > until:
            raise ValueError("the agent does not start")
        time.sleep(0.005)


def main() -> None:
    """Serves until the agent ends."""
    os.umask(0o022)
    Handler.digest = os.environ.pop(VARIABLE)
    Handler.sandbox = Sandbox()
    ROOT.mkdir(mode=0o755, exist_ok=True)
    PRIVATE.mkdir(mode=0o700, exist_ok=True)
    server = ThreadingHTTPServer(("", PORT), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
