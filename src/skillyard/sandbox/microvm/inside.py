"""The first interpreter of a machine makes the sandbox and joins channels to its agent.

It runs as root and process 1, started after the machine was given entropy of its own. The order comes on descriptor 0,
then the content as an archive. The stage makes namespaces, limits and walls round the agent (that of the e2b backend,
:mod:`skillyard.sandbox.e2b.stage`). An interpreter that had ended before the snapshot was saved made the namespaces
and most of the file tree (:func:`ahead`); the agent is the first process in there.

Each port is one channel at a time: it begins with :data:`BANNER`, is closed when either end closes it, and is opened
anew, which drops what was left on the way. The machine ends with its agent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import sys

from skillyard.sandbox.e2b import stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    import _signal as signal
    import _socket as socket

BANNER = b"skillyard channel\n"
CHANNEL = "skillyard.channel"
SPACES, FIXED, GROUPS = "/run/machine/spaces", "/run/machine/fixed.json", "/run/machine/groups.json"
_PORTS, _DEVICES = "/sys/class/virtio-ports", "/dev"
_BUSYBOX = "/run/machine/busybox"
_PIECE = 64 * 1024
_LOOK_MS = 500
_MOST_ORDER = 16 << 20


def ahead() -> None:
    """Makes what depends on no sandbox. Nobody is in there before the order of one. Raises OSError, ValueError."""
    _begin()
    if lacking := stage.missing():
        raise ValueError(f"the image lacks {', '.join(lacking)}")
    fixed, space = _read(FIXED), stage.inside(stage.GUEST, "space")
    groups = space.make_groups()
    stage.make_places(fixed)
    for place in (stage.CONTENT, stage.TOP, SPACES):
        os.makedirs(place, 0o755)
    told, telling = os.pipe()
    if child := os.fork():
        os.close(telling)
        stage.hear(told)
        space.keep(child, SPACES)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        stage.write(GROUPS, stage.inside(stage.GUEST, "jsontext").encode(groups).decode())
        return
    _child(telling, _leave, fixed, groups)


def _leave(fixed: dict[str, Any], groups: dict[str, str], telling: int) -> None:
    """Makes namespaces round this process, and a file tree without /proc, and waits. Raises OSError, ValueError."""
    space = stage.inside(stage.GUEST, "space")
    space.join_groups(groups)  # a namespace of groups shows those below that of its maker
    space.leave(fixed["host"])
    stage.tree_of(space.Tree(), fixed, groups).enter(stage.TOP)
    os.write(telling, stage.DONE)
    signal.pause()


def main() -> NoReturn:
    """Serves one sandbox, and ends the machine with it."""
    _begin()
    try:
        order = _order()
        told = _made(order) | (stage.machine() if order["account"] else {})
        agent = os.pidfd_open(told["pid"])
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children are nobody's
        _tell(told)
        _serve(agent)
    except Exception as error:  # noqa: BLE001 - whatever fails is told, and ends the machine
        _tell({"error": f"{type(error).__name__}: {error}"[:500]})
    finally:
        os.execv(_BUSYBOX, ["busybox", "poweroff", "-f"])


def _begin() -> None:
    # The guest has one path in the machine and in the sandbox, so no module of it is imported twice. The server imports
    # this module, too, and has the stage of other machines.
    stage.AGENT = stage.GUEST


def _read(file: str) -> dict[str, Any]:
    with open(file, "rb") as opened:
        found: dict[str, Any] = stage.inside(stage.GUEST, "jsontext").decode(opened.read())
    return found


def _child(telling: int, work: Callable[..., None], *given: Any) -> NoReturn:
    """Does the work of a child, which ends with it, and tells its failure."""
    try:
        work(*given, telling)
    except (ImportError, OSError, ValueError) as error:
        os.write(telling, f"\n{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _made(order: dict[str, Any]) -> dict[str, Any]:
    """Makes the sandbox of an order; returns the agent's process and the limits in force. Raises ValueError."""
    fixed, groups = _read(FIXED), _read(GROUPS)
    limits, shown, settings = stage.fit(fixed, groups, order)
    space = stage.inside(stage.GUEST, "space")
    listener = space.listening(stage.SOCKET)
    told, telling = os.pipe()
    space.begin_processes()
    if pid := os.fork():
        os.close(telling)
        listener.close()
        stage.hear(told)
        os.close(told)
        return {"pid": pid, "groups": sorted(limits)}
    _child(telling, _become_agent, fixed, groups, shown, settings, listener)


def _become_agent(
    fixed: dict[str, Any], groups: dict[str, Any], shown: dict[str, Any], settings: dict[str, Any],
    listener: socket.socket, telling: int,
) -> None:  # fmt: skip
    """Turns this process, the first of its namespace, into the agent. Raises OSError, ValueError."""
    space = stage.inside(stage.GUEST, "space")
    os.setsid()
    space.join_groups(groups)
    space.keep_only(stage.LOG, os.open(os.devnull, os.O_RDONLY), listener.fileno(), telling)
    space.enter(SPACES)
    os.umask(0o022)
    os.environ.clear()
    sys.path[:] = [path for path in sys.path if not path.startswith("/run/")]
    guest, tree = os.stat(stage.GUEST), space.Tree(entered=True)
    stage.inside(stage.GUEST, "command")
    stage.show_processes(tree, fixed)
    stage.show(tree, shown, guest)
    space.become(fixed["uid"])
    stage.be_agent(stage.inside(stage.GUEST, "jsontext").encode(settings), listener, telling)


def _order() -> dict[str, Any]:
    line = bytearray()
    while not line.endswith(b"\n"):
        # The archive follows, so no more than the line may be taken from the port; the host waits after it.
        piece = os.read(0, _PIECE)
        if not piece or len(line) > _MOST_ORDER:
            raise ValueError("the order did not come whole")
        line += piece
    _tell({"taken": len(line)})
    order = stage.inside(stage.GUEST, "jsontext").decode(line)
    if not isinstance(order, dict):
        raise ValueError("not an order")
    return order


def _tell(value: dict[str, Any]) -> None:
    data = stage.inside(stage.GUEST, "jsontext").encode(value) + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _serve(agent: int) -> None:
    """Joins ports and agent until the agent has ended."""
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    poll.register(wake, select.POLLIN)
    signal.signal(signal.SIGIO, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    os.nice(-10)  # programs that take all of the processors do not stop the channels
    joints = [_Joint(poll, f"{_DEVICES}/{name}") for name in sorted(os.listdir(_PORTS)) if _is_channel(name)]
    ready: dict[int, int] = {}  # nothing tells of a host that had connected before the ports were opened
    while agent not in ready:
        if wake in ready:
            os.read(wake, 4096)
        for joint in joints:
            joint.work(ready)
        ready = dict(poll.poll(_LOOK_MS))


def _is_channel(name: str) -> bool:
    with open(f"{_PORTS}/{name}/name", encoding="ascii") as file:
        return file.read().startswith(CHANNEL)


class _Joint:
    """One port and its connection to the agent.

    A port without a host is always readable, so it is not polled: a signal tells when that changes.
    """

    def __init__(self, poll: select.poll, path: str) -> None:
        self._poll, self._path = poll, path
        self._agent: socket.socket | None = None
        self._ways: dict[int, bytearray] = {}
        self._open()

    def _open(self) -> None:
        self._port = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self._port, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._port, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)

    def work(self, ready: dict[int, int]) -> None:
        """Passes on what can be, or looks whether there is a host by now."""
        if self._agent is None:
            self._begin()
        else:
            try:
                self._pass(self._agent.fileno(), ready)
            except OSError:
                self._close()

    def _begin(self) -> None:
        look = select.poll()
        look.register(self._port, select.POLLOUT)
        if any(events & select.POLLHUP for _, events in look.poll(0)):
            return
        agent = socket.socket(socket.AF_UNIX)
        try:
            agent.connect(stage.SOCKET)
            os.write(self._port, BANNER)
        except OSError:
            agent.close()
            return
        agent.setblocking(False)
        fcntl.fcntl(self._port, fcntl.F_SETFL, os.O_NONBLOCK)
        self._agent = agent
        self._ways = {self._port: bytearray(), agent.fileno(): bytearray()}
        self._watch()

    def _pass(self, agent: int, ready: dict[int, int]) -> None:
        """Raises OSError where either end is closed."""
        if ready.get(self._port, 0) & select.POLLHUP:
            raise OSError(errno.EPIPE, "the host is gone")
        for source, target in ((self._port, agent), (agent, self._port)):
            held = self._ways[target]
            try:
                if not held and ready.get(source, 0):
                    data = os.read(source, _PIECE)
                    if not data:
                        raise OSError(errno.EPIPE, "the end")
                    held += data
                while held:
                    del held[: os.write(target, held)]
            except BlockingIOError:
                continue
        self._watch()

    def _watch(self) -> None:
        assert self._agent is not None
        agent = self._agent.fileno()
        for source, target in ((self._port, agent), (agent, self._port)):
            mask = (0 if self._ways[target] else select.POLLIN) | (select.POLLOUT if self._ways[source] else 0)
            self._poll.register(source, mask)

    def _close(self) -> None:
        assert self._agent is not None
        for end in self._ways:
            self._poll.unregister(end)
        self._agent.close()
        self._agent = None
        os.close(self._port)
        self._open()


if __name__ == "__main__":
    sys.exit(2)
