"""How a keeper comes to be: exec'd by a server, it becomes pid 1 of a pid namespace of its own and lets go."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from skillyard.ipc.peers import peer
from skillyard.sandbox.native.grounds import ids, interpreter
from skillyard.sandbox.native.grounds.host import Host, masked_proc
from skillyard.sandbox.native.grounds.namespaces.zygote import Ids
from skillyard.sandbox.native.groups import groups, hierarchies, parents
from skillyard.sandbox.native.keeper import spool
from skillyard.sandbox.native.keeper.connection import Connection
from skillyard.sandbox.native.keeper.loop import READ, Loop
from skillyard.sandbox.native.keeper.sandbox import Box
from skillyard.sandbox.native.keeper.sandboxes import Yard
from skillyard.sandbox.native.keeper.service import Service, end_bound_s
from skillyard.sandbox.native.keeper.watch import kernel_memory, memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.process_bound import Crowd, default_crowd
from skillyard.sandbox.native.keeper.watch.tree import tree_of
from skillyard.sandbox.native.keeper.zygotes.process import Upkeep
from skillyard.sandbox.native.linux import kernel, landlock, namespaces

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
PROTOCOL = 1
_BACKLOG = 8
_SWEEP_AGAIN_S, _SWEEP_SELDOM_S = 0.02, 5.0


def main(config: dict[str, Any], make: Callable[[dict[str, Any], socket.socket], Keeper] | None = None) -> None:
    """Print ``{"pid": …}`` or ``{"error": …}`` on standard output and exit; the keeper goes on in the background.

    ``config``: ``run_dir`` (exists, 0700), ``ready``, ``uid_base``, ``uid_count``, ``retire_runs``, ``retire_s``,
    ``preload_mb``, ``preload_s``, ``zygotes_mb``.
    ``make`` makes another keeper than the native backend's.
    """
    launch(config, make or Keeper, _enter, _settle)


def launch(
    config: dict[str, Any],
    make: Callable[[dict[str, Any], socket.socket], Keeper],
    enter: Callable[[], None],
    settle: Callable[[], None],
) -> None:
    """:func:`main` for a keeper that ``make`` makes. ``enter`` is called before the process is forked that becomes
    it, ``settle`` in there."""
    try:
        pid = _launch(config, make, enter, settle)
    except OSError as error:
        print(json.dumps({"error": str(error.strerror if error.errno == 0 else error)}))  # noqa: T201
        sys.exit(1)
    print(json.dumps({"pid": pid}))  # noqa: T201


def _launch(
    config: dict[str, Any],
    make: Callable[[dict[str, Any], socket.socket], Keeper],
    enter: Callable[[], None],
    settle: Callable[[], None],
) -> int:
    os.umask(0o077)
    run_dir = config["run_dir"]
    lock = os.open(f"{run_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(0, "another keeper holds this data directory") from None
    listener = _listen(run_dir)
    enter()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _keep(lambda: make(config, listener), settle, config["run_dir"], writing)
    os.close(writing)
    said = os.read(reading, 4096).decode("utf-8", "replace")
    if said != "ok":
        raise OSError(0, said or "the keeper ended while starting")
    return pid


def _listen(run_dir: str) -> socket.socket:
    """The path may be longer than a socket address: bind from inside the directory."""
    os.chdir(run_dir)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listener.bind(SOCKET)
    listener.listen(_BACKLOG)
    return listener


def _enter() -> None:
    """Before the pid namespace: in there, nobody could name the server."""
    hierarchies.make_room()
    namespaces.enter()
    kernel_memory.largest_buffer()
    namespaces.leave_network()


def _settle() -> None:
    """As pid 1 of the new namespaces."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    hierarchies.mount_own()


def _keep(make: Callable[[], Keeper], settle: Callable[[], None], run_dir: str, ready: int) -> None:
    """The keeper from here on; never returns."""
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
    def __init__(self, config: dict[str, Any], listener: socket.socket) -> None:
        self._loop = self.make_loop()
        self._listener = listener
        run_dir = config["run_dir"]
        self._socket = f"{run_dir}/{SOCKET}"  # by its whole name: entering a mount namespace changes where we are
        for name in ("root", "spool"):
            os.makedirs(f"{run_dir}/{name}", 0o700, exist_ok=True)
        spool.clear(f"{run_dir}/spool")
        chosen, self._id_lock = self.choose_ids(config)
        self._groups = self.find_groups(run_dir)
        self._sweep_again(self._groups.sweep())
        self._groups.stand_back()
        files, directories = masked_proc()
        host = Host(
            interpreter.describe(),
            chosen,
            self._groups,
            landlock.abi(),
            tuple(sorted(os.sched_getaffinity(0))),
            files,
            directories,
            run_dir,
        )
        self.objects = Objects()
        self._loop.watches.on_full = self.objects.hurry
        self._yard = self.make_yard(self._loop, host, config)
        self._service = self.make_service(self._loop, self._yard, _facts(host))
        crowd = Crowd(config["tenant_pids"] or default_crowd(), tree_of)
        memory.start(self._loop, self._yard, self.check_memory, crowd.look)
        listener.setblocking(False)
        listener.listen(_BACKLOG)  # once more: from here on who connects sees our pid (unix(7), SO_PEERCRED)
        self._loop.watch(listener.fileno(), READ, self._accept)

    def make_loop(self) -> Loop:
        return Loop()

    def choose_ids(self, config: dict[str, Any]) -> tuple[Ids, int]:
        """And the descriptor whose lock holds them."""
        return ids.choose(config["uid_base"], config["uid_count"])

    def find_groups(self, run_dir: str) -> groups.Cgroups:
        return hierarchies.find("skillyard-" + hashlib.sha256(run_dir.encode()).hexdigest()[:12])

    def make_yard(self, loop: Loop, host: Host, config: dict[str, Any]) -> Yard:
        return Yard(loop, host, config["ready"], upkeep(config))

    def check_memory(self, box: Box) -> None:
        memory.check(box, self.objects)

    def make_service(self, loop: Loop, yard: Yard, facts: dict[str, Any]) -> Service:
        return Service(loop, yard, facts)

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

    def _sweep_again(self, left: list[str], pause_s: float = _SWEEP_AGAIN_S) -> None:
        """Groups that a killed keeper left, until the last of its processes has ended."""
        if left:
            later = min(2 * pause_s, _SWEEP_SELDOM_S)
            self._loop.after(pause_s, lambda: self._sweep_again(parents.remove(left), later))

    def _end(self) -> None:
        """Sandboxes first, then their groups: the kernel would end them with us, but not remove the groups."""
        self._listener.close()
        self._yard.close()
        for box in list(self._yard.boxes.values()):
            box.lease = None
            try:
                box.kill()
            except Exception as error:  # noqa: BLE001 - the others end too
                self._loop.report(error)
                box.fault(error)
        self._loop.running = True
        deadline = time.monotonic() + end_bound_s(len(self._yard.boxes))
        self._until_empty(deadline)
        self._loop.run()
        self._groups.sweep()
        self._groups.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)

    def _until_empty(self, deadline: float) -> None:
        if self._yard.empty() or time.monotonic() > deadline:
            self._loop.running = False
        else:
            self._loop.after(0.002, lambda: self._until_empty(deadline))


def _not_a_server(sock: socket.socket) -> str:
    """Returns why this peer cannot be our server, or nothing. A server has our user, and is outside of the pid
    namespace that we are the first of: from there processes have no pid for us."""
    pid, uid = peer(sock)
    if uid != os.geteuid():
        return f"a process of the user {uid} asked for a connection"
    return f"the process {pid} of a sandbox asked for a connection" if pid and os.getpid() == 1 else ""


def upkeep(config: dict[str, Any]) -> Upkeep:
    return Upkeep(
        config["retire_runs"], config["retire_s"], config["preload_mb"], config["zygotes_mb"], config["preload_s"]
    )


def _facts(host: Host) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "landlock": host.landlock,
        "own_uid": host.ids.count > 1,
        "uids": [host.ids.base, host.ids.count],
        "cgroup_version": host.cgroups.version,
        "cgroups": sorted(host.cgroups.parents),
        "cgroups_missing": host.cgroups.missing,
        "python": host.python.executable,
        "kernel": os.uname().release,
    }
