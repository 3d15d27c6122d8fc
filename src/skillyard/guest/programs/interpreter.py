"""The Python interpreter of a session, and the cells that run in it one after the other.

Three processes have a part. The *leader* is a kept program: it listens on a socket that no file stands for, runs no
foreign code, and has one child. The *child* runs the cells, and keeps their names. A *cell* is a program like the
others to the backend, with a deadline, output and an end of its own. It hands its channel and its output to the child,
and waits for the child's word. A cell that is ended from outside hangs up: the leader interrupts the child with it, and
ends the child when the cell goes on for ``GRACE_S``. The end of the child is that of the leader.
"""

from __future__ import annotations

import _ast
import json
import linecache
import os
import select
import signal
import sys
import time
from contextlib import suppress
from types import MethodType, ModuleType

from .. import failure, process
from ..blobs import Blobs
from ..call import finished
from ..errors import InterpreterLost, OutputNotSerializable, is_success
from ..frames import Channel
from ..output_files import send_new
from ..result import encode
from ..runtime import publish
from . import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import Any, NoReturn

GRACE_S = 4.0
"""How long a cell may go on after it was interrupted."""
_READY_S = 20.0
"""How long a cell waits for a leader that was just started."""
_PAUSE_S = 0.002
_WAITING = 16
_BEGUN, _DONE, _SIZE = b"!", b".", 8
_MOST_WORDS = 200
_NO_SOCKETS = "this isolation gives no unix sockets, so no interpreter keeps the names of cells"
_LONGEST = 2000
"""Characters of the text that stands for a value without a form in JSON."""
_TOP_LEVEL_AWAIT = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_SLACK_NS = 20_000_000
"""The kernel's clock for files may be that late."""

_exit, _kill, _getpid = os._exit, os.kill, os.getpid  # foreign code may replace what it finds in os
_write_json = json.JSONEncoder(separators=(",", ":")).encode


def run_cell(request: Mapping[str, Any], channel: Channel) -> NoReturn:
    """Has a cell run, and exits with 0; with 1 when the interpreter has ended.

    A request without code only asks whether the interpreter answers.
    """
    import socket

    try:
        with _connected(request) as leader:
            socket.send_fds(leader, [_DONE], [channel.fd, 1])
            data = _write_json(request).encode()
            leader.sendall(len(data).to_bytes(_SIZE, "big") + data)
            word = leader.recv(_MOST_WORDS)
    except PermissionError:
        channel.finish(b"X", failure.describe(InterpreterLost(_NO_SOCKETS)))
        _exit(1)
    except OSError as error:
        word = str(error.strerror).encode()
    if word != _DONE:
        why = word.decode("ascii", "replace") or "it broke off"
        lost = InterpreterLost(f"the interpreter has ended ({why}), and the names of its cells are lost")
        channel.finish(b"X", failure.describe(lost))
        _exit(1)
    _exit(0)


def _connected(request: Mapping[str, Any]) -> socket.socket:
    """Raises OSError."""
    import socket

    until = time.monotonic() + (_READY_S if request["code"] is not None else 0.0)
    while True:
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            leader.connect(_address(request))
            return leader
        except ConnectionRefusedError:
            leader.close()
            if time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)


def _address(request: Mapping[str, Any]) -> str:
    """Returns an address in the sandbox's network namespace alone, which no file stands for."""
    return f"\0{request['interpreter']}"


def lead(request: Mapping[str, Any], workspace: str, libraries: list[str]) -> NoReturn:
    """Is the leader. Raises OSError when it cannot begin."""
    import socket

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(_address(request))
    listener.listen(_WAITING)
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid == 0:
        listener.close()
        mine.close()
        os.setpgid(0, 0)
        cells = _Cells(its, workspace, libraries)
        if request.get("shows"):
            cells.show_values(request)
        cells.serve()
    its.close()
    _Leader(listener, mine, pid).run()


class _Leader:
    """``caller`` is the connection of the cell at work."""

    def __init__(self, listener: socket.socket, link: socket.socket, child: int) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._link = link
        self._child = child
        self._caller: socket.socket | None = None
        self._begun = False
        self._until: float | None = None
        """When the child is ended, once the cell at work was interrupted."""
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        while True:
            self._reap()
            for fd, _ in self._ready():
                if fd == self._wake:
                    os.read(fd, 4096)
                elif fd == self._link.fileno():
                    self._hear()
                elif fd == self._listener.fileno():
                    self._accept()
                elif self._caller is not None and fd == self._caller.fileno():
                    self._interrupt()
            if self._until is not None and time.monotonic() >= self._until:
                self._end_child()

    def _ready(self) -> list[tuple[int, int]]:
        poll = select.poll()
        for fd in (self._wake, self._link.fileno()):
            poll.register(fd, select.POLLIN)
        if self._caller is None:
            poll.register(self._listener.fileno(), select.POLLIN)
        elif self._until is None and self._begun:
            poll.register(self._caller.fileno(), select.POLLIN)  # its request was read, so only its end can come
        wait_s = None if self._until is None else max(0.0, self._until - time.monotonic())
        return poll.poll(None if wait_s is None else wait_s * 1000 + 1)

    def _accept(self) -> None:
        """Takes the next cell, and nothing from processes that no call of the host began."""
        import socket

        try:
            caller, _ = self._listener.accept()
        except OSError:  # it is gone already
            return
        peer = int.from_bytes(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        if not _is_program(peer):
            caller.close()
            return
        self._caller, self._begun = caller, False
        try:
            socket.send_fds(self._link, [_DONE], [caller.fileno()])
        except OSError:
            self._end_child()

    def _hear(self) -> None:
        """Learns that the cell began or is over, or that the child closed its end."""
        try:
            said = self._link.recv(1)
        except OSError:
            said = b""
        if not said:
            self._end_child()
        elif said == _BEGUN:
            self._begun = True
        elif self._caller is not None:
            self._answer(_DONE)
            self._caller = self._until = None

    def _answer(self, word: bytes) -> None:
        if self._caller is not None:
            with suppress(OSError):  # the cell was ended
                self._caller.sendall(word)
            self._caller.close()

    def _interrupt(self) -> None:
        """Interrupts the cell and what it started, as a terminal does. Its caller is gone."""
        self._until = time.monotonic() + GRACE_S
        try:
            os.killpg(self._child, signal.SIGINT)
        except OSError:
            self._end_child()

    def _end_child(self) -> None:
        self._until = time.monotonic() + GRACE_S
        try:
            os.kill(self._child, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _reap(self) -> None:
        """Takes the ends of processes that came to us, and ends with the child as that did."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                _exit(1)
            if pid == 0:
                return
            if pid == self._child:
                self._end_like(os.waitstatus_to_exitcode(status))

    def _end_like(self, code: int) -> NoReturn:
        self._answer(f"exit code {code}".encode() if code >= 0 else _signal_name(-code).encode())
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            _kill(_getpid(), -code)
        _exit(code & 0xFF)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_program(pid: int) -> bool:
    """Returns whether the process that began this one began ``pid`` as well.

    No cell or service did, then. It is the sandbox's first one, or an agent, which has a supervisor for each program.
    """
    parent, ours = _parent(pid), os.getppid()
    if ours == 1:
        return parent == 1
    return parent > 1 and _parent(parent) == _parent(ours) > 0


def _parent(pid: int) -> int:
    """Returns the parent of a process; 0 where none is told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


class _Blobs:
    """``runtime.blobs`` of the cell at work, also for names that earlier cells gave it."""

    now: Blobs

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.now, name)
        if not isinstance(value, MethodType):
            return value
        return lambda *args, **named: getattr(self.now, name)(*args, **named)


class _Cells:
    """The child: what cells define stays in its module ``__main__``."""

    def __init__(self, link: socket.socket, workspace: str, libraries: list[str]) -> None:
        self._link = link
        self._workspace = workspace
        self._libraries = libraries
        self._pid = _getpid()
        self._outside = os.dup(1)
        """The output while no cell runs: that of the leader, of which the latest bytes are kept."""
        self._count = 0
        self._at_work = False
        self._module = ModuleType("__main__")
        sys.modules["__main__"] = self._module
        sys.path.insert(0, workspace)
        sys.argv = [""]
        signal.signal(signal.SIGINT, self._interrupted)
        self._shows: display.Shows | None = None
        self._errors: display.Errors | None = None
        self._blobs = _Blobs()
        publish(self._blobs)  # type: ignore[arg-type]  # it has all that one has

    def show_values(self, request: Mapping[str, Any]) -> None:
        """Lets cells show values, and tells their standard error apart. Raises OSError."""
        os.chdir(request.get("cwd") or self._workspace)
        self._shows, self._errors = display.Shows(), display.Errors()
        display.prepare(self._shows, self._module.__dict__)

    def serve(self) -> NoReturn:
        while True:
            try:
                self._next()
            except KeyboardInterrupt:  # it came when the cell was over
                continue
            except OSError:
                _exit(1)

    def _interrupted(self, _number: int, _frame: object) -> None:
        """Interrupts a cell once: what comes later would hit our own code."""
        if self._at_work:
            self._at_work = False
            raise KeyboardInterrupt

    def _next(self) -> None:
        import socket

        _, [fd], _, _ = socket.recv_fds(self._link, 1, 1, socket.MSG_CMSG_CLOEXEC)
        with socket.socket(fileno=fd) as caller:
            try:
                _, fds, _, _ = socket.recv_fds(caller, 1, 2, socket.MSG_CMSG_CLOEXEC)
                request = _received(caller)
            except OSError:  # the cell was ended
                request, fds = None, []
        if request is not None and len(fds) == 2 and request["code"] is not None:
            self._link.sendall(_BEGUN)
            self._cell(request, *fds)
        for fd in fds:
            os.close(fd)
        self._link.sendall(_DONE)

    def _cell(self, request: Mapping[str, Any], channel_fd: int, output_fd: int) -> None:
        """Runs a cell, and writes its frames and its output where its caller would."""
        channel = Channel()
        channel.open(channel_fd)
        blobs = Blobs(channel)
        blobs._mount(request)
        self._blobs.now = blobs
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        if self._shows is not None and self._errors is not None:
            self._shows.begin(channel, request["shows"], request["max_result_bytes"])
            self._errors.begin(channel)
        before = {name: os.environ.get(name) for name in request["env"]}
        os.environ.update(request["env"])
        since = time.time_ns() - _SLACK_NS
        kind, payload = self._result(request)
        if _getpid() != self._pid:  # a process that the cell forked came back
            if kind == b"X":
                sys.stderr.write(json.loads(payload)["traceback"])
            process.flush_stdio()
            _exit(0 if kind == b"R" else 1)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        process.flush_stdio()
        os.dup2(self._outside, 1)
        os.dup2(self._outside, 2)
        if self._shows is not None and self._errors is not None:
            self._errors.end()
            self._shows.end()
        try:
            notes = {} if self._shows is not None else send_new(self._workspace, request, blobs, since)
            channel.finish(kind, payload, _write_json(notes).encode() if notes else b"")
        except Exception:  # noqa: BLE001 - the cell was ended, or its code broke what ours needs: it has no result
            return

    def _result(self, request: Mapping[str, Any]) -> tuple[bytes, bytes]:
        hint = ""
        try:
            try:
                self._at_work = True
                value = self._run(request["code"])
                payload = b"{}" if self._shows is not None else _told(value, request["max_result_bytes"])
                if self._shows is not None:
                    self._show(self._shows, value)
                self._at_work = False
                return b"R", payload
            except SyntaxError as error:
                hint = failure.spelling(error, request["code"])
                raise
        except BaseException as error:  # noqa: BLE001 - whatever ends the cell is reported
            self._at_work = False
            if is_success(error):
                return b"R", b"{}"
            return b"X", failure.describe(error, self._libraries, hint)

    def _show(self, shows: display.Shows, value: object) -> None:
        shows.figures()
        if value is not None:
            shows.show(display.forms_of(value), main=True)

    def _run(self, source: str) -> object:
        """Returns the value of the last expression; None where the last statement is not one."""
        self._count += 1
        filename = f"<cell {self._count}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        tree = compile(source, filename, "exec", _ast.PyCF_ONLY_AST | _TOP_LEVEL_AWAIT, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        names = self._module.__dict__
        code = compile(tree, filename, "exec", _TOP_LEVEL_AWAIT, dont_inherit=True)
        finished(eval(code, names))  # noqa: S307 - our purpose
        if last is None:
            return None
        code = compile(_ast.Expression(last.value), filename, "eval", _TOP_LEVEL_AWAIT, dont_inherit=True)
        return finished(finished(eval(code, names)))  # noqa: S307 - our purpose


def _told(value: object, max_bytes: int) -> bytes:
    """Returns ``{}`` for None, else ``result``, or ``repr`` where JSON has no form for it. Raises OutputTooLarge."""
    if value is None:
        return b"{}"
    try:
        return encode({"result": value}, max_bytes)
    except OutputNotSerializable:
        text = repr(value)
        return encode({"repr": text if len(text) <= _LONGEST else text[:_LONGEST] + "…"}, max_bytes)


def _received(caller: socket.socket) -> Mapping[str, Any] | None:
    """Returns the request; None when the cell was ended before it was whole."""
    data = bytearray()
    size = _SIZE
    while len(data) < size:
        piece = caller.recv(1 << 16)
        if not piece:
            return None
        data += piece
        if len(data) >= _SIZE:
            size = _SIZE + int.from_bytes(data[:_SIZE], "big")
    request: dict[str, Any] = json.loads(data[_SIZE:])
    return request
