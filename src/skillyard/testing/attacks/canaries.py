"""Real targets on this host for attacks to hunt: planted, watched, and removed afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

PREFIX = "skillyard-canary-"
"""Every token begins so; what follows is random, so that an attack can look for tokens and know none."""

_WATCHER = """
import os, signal, sys, time
def tell(number, frame):
    os.write(1, f"{number}\\n".encode())
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, tell)
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""


@dataclass(slots=True)
class Canaries:
    """The targets, and what this side saw done to them.

    ``files``: path and token. ``pid``: a process that has tokens among its arguments and variables. ``variable``: its
    name in this process. ``ports``: of TCP and UDP on the loopback. ``names``: of a unix path and an abstract socket.
    ``reached``: connections and datagrams that came.
    """

    tokens: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    stats: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    pid: int = 0
    variable: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    segment: int = -1
    reached: list[str] = field(default_factory=list)
    watches: list[Callable[[], str]] = field(default_factory=list)

    def token(self) -> str:
        made = PREFIX + token_hex(16)
        self.tokens.append(made)
        return made

    async def harm(self) -> list[str]:
        """Returns what was done to them so far, after a moment in which the last of it arrives."""
        await asyncio.sleep(0.05)
        found = [told for watch in self.watches if (told := watch())]
        return [*self.reached, *found]


@contextmanager
def planted() -> Iterator[Canaries]:
    """Gives all targets, and removes them whatever happens. Raises OSError."""
    canaries = Canaries()
    with ExitStack() as stack:
        for place in _places():
            stack.enter_context(planted_file(canaries, place))
        for plant in (_process, _listeners, _variable, _shared_memory, _fifo):
            stack.enter_context(plant(canaries))
        yield canaries


def _places() -> list[Path]:
    places = [Path(tempfile.gettempdir()), Path.home(), Path("/dev/shm")]  # noqa: S108
    return [place for place in dict.fromkeys(places) if os.access(place, os.W_OK)]


@contextmanager
def planted_file(canaries: Canaries, place: Path) -> Iterator[None]:
    """Plants one more file, in the directory ``place``, that everybody may read."""
    token, path = canaries.token(), place / f".{PREFIX}{token_hex(4)}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(fd, token.encode())
        os.close(fd)
        before = path.stat()
        canaries.files[str(path)] = token
        canaries.watches.append(lambda: _changed(path, token, before))
        yield
    finally:
        for left in place.glob(f"{path.name}*"):
            left.unlink(missing_ok=True)


def _changed(path: Path, token: str, before: os.stat_result) -> str:
    try:
        now = path.stat()
        same = (now.st_mtime_ns, now.st_mode, now.st_uid) == (before.st_mtime_ns, before.st_mode, before.st_uid)
        return "" if same and path.read_text() == token else f"{path} was changed"
    except OSError:
        return f"{path} was removed"


@contextmanager
def _process(canaries: Canaries) -> Iterator[None]:
    environment = {"PATH": os.environ.get("PATH", ""), "CANARY": canaries.token()}
    command = [sys.executable, "-I", "-S", "-c", _WATCHER, canaries.token()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        os.set_blocking(process.stdout.fileno(), False)
        canaries.pid = process.pid
        output = process.stdout

        def watch() -> str:
            if process.poll() is not None:
                return f"the process was ended ({process.returncode})"
            told = output.read()
            return f"the process got signals: {told.decode().split()}" if told else ""

        canaries.watches.append(watch)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


@contextmanager
def _listeners(canaries: Canaries) -> Iterator[None]:
    """Plants listeners: each sends a token to its peer and notes that somebody came."""
    directory = tempfile.mkdtemp(prefix="skillyard-canary-")
    path, abstract = f"{directory}/socket", f"{PREFIX}{token_hex(4)}"
    tcp, udp, local, named = (
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX),
    )
    udp.bind(("127.0.0.1", 0))
    for sock, address in ((local, path), (named, f"\0{abstract}")):
        sock.bind(address)
        sock.listen()
    Path(path).chmod(0o666)
    Path(directory).chmod(0o755)
    canaries.ports = {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}
    canaries.names = {"path": path, "abstract": abstract}
    kinds = {"TCP": tcp, "unix path": local, "abstract": named}
    threads = [
        threading.Thread(target=_serve, args=(canaries, kind, sock, canaries.token()), daemon=True)
        for kind, sock in kinds.items()
    ]
    threads.append(threading.Thread(target=_hear, args=(canaries, udp, canaries.token()), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for sock in (tcp, udp, local, named):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        Path(path).unlink(missing_ok=True)
        Path(directory).rmdir()


def _serve(canaries: Canaries, kind: str, sock: socket.socket, token: str) -> None:
    while True:
        try:
            peer, _ = sock.accept()
        except OSError:
            return
        canaries.reached.append(f"the {kind} listener was connected to")
        with peer:
            peer.sendall(token.encode())


def _hear(canaries: Canaries, sock: socket.socket, token: str) -> None:
    while True:
        try:
            said, peer = sock.recvfrom(64)
        except OSError:
            return
        if not said:
            return
        canaries.reached.append("the UDP listener got a datagram")
        sock.sendto(token.encode(), peer)


@contextmanager
def _variable(canaries: Canaries) -> Iterator[None]:
    """Plants a variable in this process, which is the server's when the runtime is in it."""
    canaries.variable = f"SKILLYARD_CANARY_{token_hex(4).upper()}"
    os.environ[canaries.variable] = canaries.token()
    try:
        yield
    finally:
        del os.environ[canaries.variable]


@contextmanager
def _shared_memory(canaries: Canaries) -> Iterator[None]:
    """Plants a System V segment for everybody; shmget(2), shmop(2)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    libc.shmdt.argtypes = [ctypes.c_void_p]
    key, token = int(token_hex(3), 16) | 1, canaries.token().encode()
    segment = libc.shmget(key, 4096, 0o1666)
    if segment < 0:
        yield  # a host without System V memory has none to reach
        return
    at = libc.shmat(segment, None, 0)
    ctypes.memmove(at, token, len(token))
    canaries.segment = key
    canaries.watches.append(
        lambda: "" if ctypes.string_at(at, len(token)) == token else "the System V segment was written to"
    )
    try:
        yield
    finally:
        libc.shmdt(at)
        libc.shmctl(segment, 0, None)


@contextmanager
def _fifo(canaries: Canaries) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f".{PREFIX}{token_hex(4)}"
    os.mkfifo(path, 0o666)
    path.chmod(0o666)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    canaries.names["fifo"] = str(path)

    def watch() -> str:
        try:
            return f"the FIFO was written to: {os.read(fd, 64)!r}"
        except BlockingIOError:
            return ""

    canaries.watches.append(watch)
    try:
        yield
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
