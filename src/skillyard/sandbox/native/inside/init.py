"""pid 1 of a sandbox: starts programs, reaps all processes, and ends them when it ends.

It never runs foreign code, and it reads nothing that foreign code can write.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket

from skillyard.guest import main as guest
from skillyard.guest.programs import terminal
from skillyard.ipc import packets
from skillyard.sandbox.native.inside import kept
from skillyard.sandbox.native.inside.agreed import CHANNEL_FD, DONE, READY, STACK_FD
from skillyard.sandbox.native.linux import kernel

TYPE_CHECKING = False  # gVisor imports this in each sandbox, and typing takes a tenth of that
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, Self

_exit, _pause = os._exit, signal.pause  # foreign code may replace what it finds in modules
BLOCKED = {signal.SIGCHLD, signal.SIGINT}
BROKEN_STATUS = 125
"""The exit status of a program that could not be set up, as env(1) has it."""
LAST_WORDS_MS = 1000
"""The time that a worker has to write its stack before it is killed."""


class Init:
    """One sandbox's init. ``channel`` and ``output`` belong to the worker that is forked ahead.

    The keeper ends a ``single`` sandbox when that worker says that it is done.
    """

    cannot_keep = ""
    """The reason why it can keep no program when others are ended; empty where it can."""

    def __init__(self, control: int, channel: int, output: int, *, single: bool = False) -> None:
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        self._open(control, nothing, kernel.signal_descriptor({signal.SIGCHLD}), -1)
        self._stack, last_words = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._worker = self._fork_guest(channel, output, last_words, waits=single)
        os.close(last_words)
        os.close(channel)
        os.close(output)

    @classmethod
    def begun(cls, control: int, nothing: int, children: int, stack: int, worker: int) -> Self:
        """Returns the init of a sandbox whose worker was forked, and who said that it is ready."""
        init = cls.__new__(cls)
        init._open(control, nothing, children, stack)
        init._worker = worker
        return init

    def _open(self, control: int, nothing: int, children: int, stack: int) -> None:
        self._control_fd = control
        self._opened: socket.socket | None = None
        self._single = False
        self._running: dict[int, str] = {}
        self._kept: set[int] = set()
        """Those of them that outlive the end of others."""
        self._killed: set[int] = set()
        self._devnull, self._children, self._stack = nothing, children, stack

    def run(self) -> None:
        """Says that it is ready, and serves until the keeper lets go."""
        os.write(self._control_fd, READY)
        self.serve()

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._control_fd, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._children:
                    os.read(self._children, 4096)
                    self._reap()
                elif not self._command():
                    return

    @property
    def _control(self) -> socket.socket:
        """Returns a socket object, made when it is needed: in most sandboxes it never is."""
        if self._opened is None:
            self._opened = socket.socket(fileno=self._control_fd)
        return self._opened

    def _command(self) -> bool:
        got = packets.receive(self._control)
        if got is None:
            return False
        message, fds = got
        if "start" in message:
            self._start(message, fds)
        elif "lend" in message:
            self._lend(message["lend"], message["single"])
        elif "kill" in message:
            self.end_tree(message["kill"])
        elif "wind_up" in message:
            self._wind_up()
        else:
            self.heard(message)
        for fd in fds:
            os.close(fd)
        return True

    def _wind_up(self) -> None:
        """Ends the programs and stays. The worker is asked for its stack first, which its code cannot hinder."""
        if self._worker > 0:
            os.kill(self._worker, signal.SIGXCPU)
            poll = select.poll()
            poll.register(self._children, select.POLLIN)
            poll.poll(LAST_WORDS_MS)
        end_all_others(self._reaped)

    def _reaped(self, pid: int, status: int) -> None:
        if pid == self._worker:
            self._worker_gone(status)

    def _worker_gone(self, status: int) -> None:
        self._worker = -1
        if not self._running:  # else another program ended it, whose own end is to be told
            end_all_others()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu, rss = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        packets.send(self._control, {"idle_worker_gone": status, "cpu": cpu, "rss": rss})

    def heard(self, message: dict[str, Any]) -> None:
        """Takes a message that only another backend's init understands."""

    def _lend(self, id: str, single: bool) -> None:
        """Learns that the waiting worker gets a request, unless it ended with an earlier program."""
        self._single = single
        if self._worker < 0:
            packets.send(self._control, {"not_lent": id})
        else:
            self._running[self._worker] = id

    def _start(self, message: dict[str, Any], fds: list[int]) -> None:
        self._single = message["single"]
        keep, spared = message.get("kept", False), frozenset[int]()
        if keep and self.cannot_keep:
            packets.send(self._control, {"failed": message["start"], "why": self.cannot_keep})
            return
        if message.get("alone", False):
            spared = self._be_alone()
        try:
            if message["argv"] is None:
                pid = self._fork_guest(fds[0], fds[1], self._stack, keep=keep, spared=spared)
            else:
                pid = self._fork_argv(message, fds)
        except OSError as error:
            packets.send(self._control, {"failed": message["start"], "why": f"fork: {error.strerror}"})
            self._go_on()
            return
        self._running[pid] = message["start"]
        if keep:
            self._kept.add(pid)

    def _be_alone(self) -> frozenset[int]:
        """Ends all but the kept programs, which stand still from now on; returns their processes."""
        self._worker = -1
        spared = kept.stop_all_but(self._kept) if self._kept else frozenset()
        if not spared:  # there is none, or it cannot be told what is whose
            end_all_others(self._tell_end)
        return spared

    def _go_on(self) -> None:
        if self._kept:
            kept.go_on()

    def end_tree(self, id: str) -> None:
        for pid, name in list(self._running.items()):
            if name == id:
                self._killed.add(pid)
                # Where only kept programs are beside it, all but those end with it.
                self.kill_tree(pid, beside=bool(self._running.keys() - {pid} - self._kept))

    def kill_tree(self, leader: int, *, beside: bool) -> None:
        """Kills a program's tree; other programs are ``beside`` it."""
        if not beside:
            _kill_tree(leader)  # what it does not find ends with the program
        elif not kept.end_tree(leader):
            end_all_others(self._tell_end)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                self._ended(pid, status)
            elif pid == self._worker:
                self._worker_gone(status)

    def _ended(self, pid: int, status: int) -> None:
        if self._running.keys() - {pid} <= self._kept:
            self._kept.discard(pid)
            self._be_alone()
            self._go_on()
        self._tell_end(pid, status)
        if self._single:
            os._exit(0)

    def _tell_end(self, pid: int, status: int) -> None:
        if (id := self._running.pop(pid, None)) is None:
            return
        self._kept.discard(pid)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        packets.send(
            self._control,
            {
                "ended": id,
                "status": status,
                "cpu": used.ru_utime + used.ru_stime,
                "rss": used.ru_maxrss * 1024,
            },
        )

    def _fork_guest(
        self,
        channel: int,
        output: int,
        stack: int,
        *,
        keep: bool = False,
        waits: bool = False,
        spared: frozenset[int] = frozenset(),
    ) -> int:
        def serve() -> None:
            self.be_child((self._devnull, output, output, channel, stack))
            if keep:
                kept.be_reaper()
            serve_guest(spared, waits=waits)

        return _fork(serve)

    def _fork_argv(self, message: dict[str, Any], fds: list[int]) -> int:
        def execute() -> None:
            self.be_child((fds[0], fds[1], fds[2]))
            run_command(message, self.place(message["cwd"]))

        return _fork(execute)

    def place(self, path: str) -> str:
        """Returns the place of a port's path in here."""
        return path

    def be_child(self, fds: tuple[int, ...]) -> None:
        """Closes init's descriptors, and sets signals as a fresh process has them."""
        be_child(fds)


def be_guest() -> None:
    """Runs the one request of a worker whose descriptors are arranged. Returns when it said DONE."""
    try:
        guest.reseed()
        if not guest.serve(CHANNEL_FD, CHANNEL_FD, STACK_FD, end=DONE):
            _exit(0)
    except BaseException as error:  # noqa: BLE001 - it never goes on as a second zygote
        _say_broken(error)
        _exit(BROKEN_STATUS)


def be_child(fds: tuple[int, ...]) -> None:
    """Makes ``fds`` the only descriptors, from 0 on, and sets signals as at a fresh start."""
    _arrange(fds)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def serve_guest(spared: frozenset[int], *, waits: bool = False) -> None:
    """Runs the one request of this process, and never returns.

    With ``waits`` the keeper ends the sandbox at the word that it is done. The kernel wakes the keeper on this
    processor, where it would run behind our own exit.
    """
    guest.reseed()
    said = guest.serve(CHANNEL_FD, CHANNEL_FD, STACK_FD, spared, DONE)
    try:
        if _close_channel() and said and waits:
            _pause()  # also a signal that is handled ends it, as the one that asks for the last stack
    finally:
        _exit(0)


def _fork(child: Callable[[], None]) -> int:
    """Returns the pid of a child, which ends with ``child`` however that fails. It never goes on as a second init."""
    pid = os.fork()
    if pid == 0:
        end_with(child)
    return pid


def end_with(child: Callable[[], None]) -> NoReturn:
    """Ends this process with ``child``, however that fails."""
    try:
        child()
    except BaseException as error:  # noqa: BLE001 - nothing above may catch it and serve on
        _say_broken(error)
    finally:
        _exit(BROKEN_STATUS)


def _say_broken(error: BaseException) -> None:
    os.write(2, f"the program could not be started: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))


def _close_channel() -> bool:
    """Closes the channel before this process is torn down; returns whether it could.

    shutdown(2) reaches every copy of the descriptor, so a child that was left behind cannot hold the channel open.
    """
    try:
        socket.socket(fileno=CHANNEL_FD).shutdown(socket.SHUT_WR)
    except OSError:
        return False  # the program closed it
    return True


def _arrange(fds: tuple[int, ...]) -> None:
    """Makes ``fds`` the descriptors 0, 1, 2 and so on, and closes all others."""
    high = [os.dup(fd) if fd < len(fds) else fd for fd in fds]
    while any(fd < len(fds) for fd in high):
        high = [os.dup(fd) if fd < len(fds) else fd for fd in high]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=True)
    kernel.close_from(len(fds))


def run_command(message: dict[str, Any], cwd: str) -> None:
    """Becomes the program of the keeper's message, on a terminal where that says so."""
    words = (message["argv"], {**os.environ, **message["env"]}, cwd)
    if size := message.get("terminal"):
        rows, columns = size
        terminal.run(rows, columns, lambda: _exec(*words))
    _exec(*words)


def _exec(argv: list[str], env: dict[str, str], cwd: str) -> None:
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {error}\n".encode("utf-8", "replace"))
        os._exit(126 if isinstance(error, PermissionError) else 127)


def end_all_others(reaped: Callable[[int, int], None] = lambda pid, status: None) -> None:
    """Ends all processes of the sandbox but pid 1 by kill(-1). ``reaped`` hears of each."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        try:
            reaped(*os.waitpid(-1, 0))
        except ChildProcessError:
            return


def _children_of(pid: int) -> list[int]:
    """Returns the children of every thread (proc_pid_task(5))."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found.extend(int(word) for word in file.read().split())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # it ended meanwhile: its children are ours now, and end with the rest
    return found


def _kill_tree(leader: int) -> None:
    """Kills a tree. Each process is stopped before its children, so that none forks away."""
    seen: list[int] = []
    queue = [leader]
    while queue:
        pid = queue.pop()
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        seen.append(pid)
        queue.extend(_children_of(pid))
    for pid in seen:
        os.kill(pid, signal.SIGKILL)
