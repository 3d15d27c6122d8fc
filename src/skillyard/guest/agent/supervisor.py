"""The supervisor of one program: a child of the agent that owns the program's whole tree.

There are supervisors where the agent is not pid 1. One is a subreaper, so orphans of its program come to it and never
to anybody else. It tells the agent how the program ended, stays while anything of the tree lives, and ends all of it
when the agent lets go of the leash, or dies.
"""

from __future__ import annotations

import os
import resource
import select

from ..programs import terminal
from . import jsontext
from .kernel import be_subreaper, no_new_privileges

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import NoReturn
else:
    import _signal as signal

_ROUND_MS = 2
_ROUNDS = 500


def supervise(program: Callable[[], NoReturn], leash: int, report: int, *, single: bool) -> NoReturn:
    """Runs a program in a child of this child of the agent.

    With ``single`` the end is told when nothing of the tree is left.
    """
    be_subreaper()
    wake, waker = os.pipe()
    for fd in (wake, waker):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    leader = os.fork()
    if leader == 0:
        program()
    close_others({leash, report, wake, waker})
    poll = select.poll()
    poll.register(leash, select.POLLIN)
    poll.register(wake, select.POLLIN)
    ended = None
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if leash in ready:
            end_tree(leader)
        status, alive = _reap(leader)
        ended = status if ended is None else ended
        if leash in ready or (ended is not None and (single or not alive)):
            end_tree(leader)
            late, _ = _reap(leader)
            _tell(report, late if ended is None else ended)
            os._exit(0)
        if ended is not None and report >= 0:
            _tell(report, ended)
            os.close(report)
            report = -1
        if wake in ready:
            os.read(wake, 4096)


def become(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    stdio: tuple[int, int, int],
    kept: Sequence[int],
    user: tuple[int, int] | None,
    files: tuple[int, int],
    size: tuple[int, int] | None = None,
) -> NoReturn:
    """Turns this child into the program, on a terminal of ``size`` where one is given.

    ``kept`` are descriptors that it keeps, ``files`` its limit of descriptors.
    """
    try:
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not None:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        settle(cwd, stdio, kept, user, files)
        if size is not None:
            terminal.run(*size, lambda: _execute(argv, env))
        _execute(argv, env)
    except (OSError, ValueError) as failure:
        _fail(argv[0], failure)
    finally:
        os._exit(127)


def _execute(argv: Sequence[str], env: Mapping[str, str]) -> None:
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except (OSError, ValueError) as failure:
        _fail(argv[0], failure)


def _fail(name: str, failure: OSError | ValueError) -> NoReturn:
    text = f"{name}: {getattr(failure, 'strerror', None) or failure}\n"
    os.write(2, text.encode("utf-8", "replace"))
    os._exit(126 if isinstance(failure, PermissionError) else 127)


def settle(
    cwd: str, stdio: Sequence[int], kept: Sequence[int], user: tuple[int, int] | None, files: tuple[int, int]
) -> None:
    """Gives this child all that a program has, but for signals and variables. Raises OSError."""
    signal.set_wakeup_fd(-1)
    os.setsid()
    high = [os.dup(fd) for fd in stdio]
    for number, fd in enumerate(high):
        os.dup2(fd, number)
    close_others({0, 1, 2, *kept})
    for fd in kept:
        os.set_inheritable(fd, True)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    if user is not None:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
    no_new_privileges()
    os.umask(0o022)
    os.chdir(cwd)


def close_others(kept: set[int]) -> None:
    low = 0
    for fd in sorted(kept):
        if low < fd:  # of an empty range at 0 Python makes one of everything
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def _reap(leader: int) -> tuple[int | None, bool]:
    """Returns the leader's status, if it ended now, and whether any child is left."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found, False
        if pid == 0:
            return found, True
        if pid == leader:
            found = status


def _tell(report: int, status: int | None) -> None:
    if report >= 0:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = {"status": status, "cpu_ms": (used.ru_utime + used.ru_stime) * 1000, "rss": used.ru_maxrss * 1024}
        os.write(report, jsontext.encode(told))


def end_tree(leader: int) -> None:
    """Kills all descendants of this process, of which ``leader`` is one."""
    for _ in range(_ROUNDS):
        if not _living_children():
            return
        if not end_below(os.getpid()):
            _signal(-leader, signal.SIGKILL)  # where /proc shows nothing, the group is all that can be ended
        select.poll().poll(_ROUND_MS)


def end_below(root: int, spared: Collection[int] = (), *, itself: bool = False) -> bool:
    """Kills all descendants of ``root``, without ``spared`` and theirs. Returns whether there were any.

    Each is stopped before any is killed, so that none can start another in the place of one that is gone.
    """
    stopped: set[int] = set()
    while found := {*descendants(root, spared), *((root,) if itself else ())} - stopped:
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    return bool(stopped)


def end_others(spared: Collection[int]) -> bool:
    """Kills all descendants of this process but ``spared``; returns whether they are gone."""
    for _ in range(_ROUNDS):
        if not end_below(os.getpid(), spared):
            return True
        select.poll().poll(_ROUND_MS)
    return False


def _living_children() -> bool:
    """Returns whether anything is left that has not ended. Statuses stay for :func:`_reap`."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return True
    except ChildProcessError:
        return False
    return bool(descendants(os.getpid()))


def descendants(root: int, spared: Collection[int] = ()) -> list[int]:
    """Returns the living processes below ``root``, without ``spared`` and those below them."""
    below: dict[int, list[int]] = {}
    dead = set()
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if words[0] in b"ZX":
            dead.add(int(name))
        below.setdefault(int(words[1]), []).append(int(name))
    found, open_ = [], [root]
    while open_:
        children = [pid for pid in below.get(open_.pop(), []) if pid not in spared]
        found += [pid for pid in children if pid not in dead]
        open_ += children
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return
