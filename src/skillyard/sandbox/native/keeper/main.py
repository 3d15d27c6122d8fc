"""The start of a keeper, which a server execs: it gets its ground and its loop, and serves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from skillyard.ipc.peers import peer
from skillyard.sandbox.native.keeper import spool
from skillyard.sandbox.native.keeper.connection import Connection
from skillyard.sandbox.native.keeper.ground import Start
from skillyard.sandbox.native.keeper.loop import READ, Loop
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.sandboxes import Sandboxes
from skillyard.sandbox.native.keeper.service import Service
from skillyard.sandbox.native.keeper.shares import Crowd, default_crowd
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import tree_of
from skillyard.sandbox.native.protocol import PROTOCOL

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
_BACKLOG = 8
_EVERY_S = 0.05
"""Between two looks at the sandboxes."""


def launch(config: dict[str, Any], start: Start, make_loop: Callable[[], Loop]) -> None:
    """Starts a keeper in the background; prints ``{"pid": …}`` or ``{"error": …}`` and exits.

    ``config`` has ``run_dir`` (which exists, 0700), the values of ``[native]``, and those of the ground.
    """
    try:
        pid = _launch(config, start, make_loop)
    except OSError as error:
        print(json.dumps({"error": str(error.strerror if error.errno == 0 else error)}))  # noqa: T201
        sys.exit(1)
    print(json.dumps({"pid": pid}))  # noqa: T201


def _launch(config: dict[str, Any], start: Start, make_loop: Callable[[], Loop]) -> int:
    os.umask(0o077)
    run_dir = config["run_dir"]
    lock = os.open(f"{run_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(0, "another keeper holds this data directory") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(PROTOCOL).encode(), 0)  # for those who cannot ask, since it has a server
    listener = _listen(run_dir)
    start.enter()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _keep(lambda: Keeper(config, listener, start, make_loop()), start.settle, run_dir, writing)
    os.close(writing)
    said = os.read(reading, 4096).decode("utf-8", "replace")
    if said != "ok":
        raise OSError(0, said or "the keeper ended while starting")
    return pid


def _listen(run_dir: str) -> socket.socket:
    """Binds from inside the directory, whose path may be longer than a socket address."""
    os.chdir(run_dir)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listener.bind(SOCKET)
    listener.listen(_BACKLOG)
    return listener


def _keep(make: Callable[[], Keeper], settle: Callable[[], None], run_dir: str, ready: int) -> None:
    """Runs as the keeper; never returns."""
    try:
        os.setsid()
        _detach(run_dir)
        settle()
        keeper = make()
    except BaseException as error:  # noqa: BLE001 - the launcher must hear of it, and this process must end
        os.write(ready, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(ready, b"ok")
    os.close(ready)
    try:
        keeper.run()
    except BaseException:  # noqa: BLE001 - told in the log, and this process must end
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _detach(run_dir: str) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    log = os.open(f"{run_dir}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    for number, fd in ((0, null), (1, null), (2, log)):
        os.dup2(fd, number)
    os.close(null)
    os.close(log)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Keeper:
    def __init__(self, config: dict[str, Any], listener: socket.socket, start: Start, loop: Loop) -> None:
        self._loop = loop
        self._stopped = False
        self._listener = listener
        run_dir = config["run_dir"]
        self._socket = f"{run_dir}/{SOCKET}"  # by its whole name: entering a mount namespace changes where we are
        os.makedirs(f"{run_dir}/spool", 0o700, exist_ok=True)
        spool.clear(f"{run_dir}/spool")
        self._ground = ground = start.make(loop, config)
        try:
            self._sandboxes = Sandboxes(
                loop, ground, f"{run_dir}/spool", config["ready"], config["zygotes_mb"], config["retire_s"]
            )
            facts = {"protocol": PROTOCOL, "kernel": os.uname().release, **ground.facts}
            self._service = Service(loop, self._sandboxes, ground, facts, lambda: os.path.exists(self._socket))
            self._watch(config["tenant_pids"])
            listener.setblocking(False)
            listener.listen(_BACKLOG)  # once more: from here on who connects sees our pid (unix(7), SO_PEERCRED)
            loop.watch(listener.fileno(), READ, self._accept)
        except BaseException:
            ground.leave()
            raise

    def _watch(self, tenant_pids: int) -> None:
        """Begins to look at sandboxes, many times a second."""
        objects = Objects()
        self._loop.watches.on_full = objects.hurry
        crowd = Crowd(tenant_pids or default_crowd(), tree_of)
        _watch_often(self._loop, self._sandboxes, lambda sandbox: self._ground.check(sandbox, objects), crowd.look)

    def run(self) -> None:
        self._loop.run()
        self._end()

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError:
            return
        if why := _not_a_server(sock):
            self._loop.report(PermissionError(why))
            sock.close()
            return
        connection = Connection(self._loop, sock, self._service.heard, self._service.disconnected)
        self._service.connected(connection)

    def _end(self) -> None:
        """Ends sandboxes first, then their traces."""
        self._listener.close()
        self._sandboxes.close()
        for sandbox in list(self._sandboxes.all.values()):
            sandbox.lease = None
            try:
                sandbox.kill()
            except Exception as error:  # noqa: BLE001 - the others end too
                self._loop.report(error)
                sandbox.fault(error)
        self._until_empty(time.monotonic() + self._sandboxes.end_bound_s)
        self._run_again()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        self._ground.end_strays(self._stop)
        self._run_again()
        self._ground.leave()

    def _run_again(self) -> None:
        """Runs the loop until :meth:`_stop` was called, perhaps before."""
        while not self._stopped:
            self._loop.running = True
            self._loop.run()
        self._stopped = False

    def _stop(self) -> None:
        self._stopped = True
        self._loop.running = False

    def _until_empty(self, deadline: float) -> None:
        if self._sandboxes.empty() or time.monotonic() > deadline:
            self._stop()
        else:
            self._loop.after(0.002, lambda: self._until_empty(deadline))


def _not_a_server(sock: socket.socket) -> str:
    """Returns why this peer cannot be our server, or nothing.

    A server has our user, and comes from outside of the pid namespace whose first process we are: so we see no pid.
    """
    pid, uid = peer(sock)
    if uid != os.geteuid():
        return f"a process of the user {uid} asked for a connection"
    return f"the process {pid} of a sandbox asked for a connection" if pid and os.getpid() == 1 else ""


def _watch_often(
    loop: Loop,
    sandboxes: Sandboxes,
    check: Callable[[Sandbox], None],
    together: Callable[[Sequence[Sandbox]], None],
) -> None:
    """Calls ``check`` for each running sandbox and ``together`` for all, many times a second."""
    looking = False

    def look() -> None:
        nonlocal looking
        begun = time.monotonic()
        running = [sandbox for sandbox in sandboxes.survey() if not sandbox.dead and sandbox.running()]
        for sandbox in running:
            try:
                check(sandbox)
            except Exception as error:  # noqa: BLE001 - one that nobody can look at ends
                loop.report(error)
                sandbox.fault(error)
        together(running)
        looking = bool(sandboxes.survey())
        if looking:
            turns.after(max(_EVERY_S, time.monotonic() - begun), look)

    def lent() -> None:
        nonlocal looking
        if not looking:
            looking = True
            turns.after(_EVERY_S, look)

    turns = loop.guarded(lambda _: again())

    def again() -> None:
        """Looks again later; one failed look leaves nothing unwatched."""
        turns.after(_EVERY_S, look)

    sandboxes.on_lent = lent
