"""The supervisor of one program: a child of the agent that owns the program's whole tree.

There are supervisors where the agent is not pid 1. One is a subreaper, so orphans of its program come to it and never
to anybody else. It tells the agent how the program ended, stays while anything of the tree lives, and ends all of it
when the agent lets go of the leash, or dies. It tells the agent, too, when something of the tree could not be ended.
"""

from __future__ import annotations

import os
import resource
import select
from time import monotonic

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

PATIENCE_S, _FIRST_S = 1.5, 5.0
"""Seconds within which all must be gone that are to be ended. The others cannot be ended by themselves.

An agent that can stop everybody needs two looks for it, which take long on a busy host with many processes.
"""
_SHORT_S = 0.2
"""Seconds within which a tree must stand still before it is killed, where not everybody can be stopped.

Nobody reaps meanwhile: a process that goes on as another again and again runs into the limit of processes.
"""
_GENTLE = 4
"""Looks before everybody is stopped, where others are to go on."""
_ROUND_MS, _PAUSE_MS = 2, 1
_DEAD, _HELD = frozenset({b"Z", b"X"}), frozenset({b"T", b"t", b"Z", b"X"})
_STILL = _HELD | {b"D"}


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
        status, alive = _reap(leader)
        ended = status if ended is None else ended
        if leash in ready or (ended is not None and (single or not alive)):
            late, gone = end_tree(leader)
            _tell(report, late if ended is None else ended, gone=gone)
            os._exit(0 if gone else 1)
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


def _tell(report: int, status: int | None, *, gone: bool = True) -> None:
    if report >= 0:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = {"status": status, "cpu_ms": (used.ru_utime + used.ru_stime) * 1000, "rss": used.ru_maxrss * 1024}
        told |= {} if gone else {"left": True}
        os.write(report, jsontext.encode(told))


def end_tree(leader: int) -> tuple[int | None, bool]:
    """Kills all descendants of this process, of which ``leader`` is one.

    Returns the leader's status, if it ended now, and whether all are gone. Orphans of the tree come to this process, so
    nothing of it is left when this process has no child.
    """
    status, until = None, monotonic() + PATIENCE_S
    while True:
        found, alive = _reap(leader)
        status = found if status is None else status
        if not alive or monotonic() > until:
            return status, not alive
        end_below(os.getpid())
        if not _names():
            _signal(-leader, signal.SIGKILL)  # where /proc shows nothing, the group is all that can be ended
        select.poll().poll(_ROUND_MS)


def end_others(spared: Collection[int], *, first: bool) -> bool:
    """Kills all descendants of this process but ``spared`` and theirs.

    Returns whether they are gone for sure. ``first`` says that this process is the first of its namespace. One that
    goes on as another leaves children of this process that have ended, also where others come and go.
    """
    before, until = None, monotonic() + (_FIRST_S if first else PATIENCE_S)
    while has_children():
        seen = _look()
        ended = {pid for pid in seen.dead if seen.parents[pid] == os.getpid()}
        if not seen.below(os.getpid(), spared) and (seen.whole or (not first and ended == before)):
            return True
        if monotonic() > until:
            return False
        before = ended
        end_below(os.getpid(), spared, first=first, gentle=0)
        select.poll().poll(_ROUND_MS)
    return True


def has_children() -> bool:
    """Returns whether this process has a child, or one that ended and was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_below(
    root: int, spared: Collection[int] = (), *, itself: bool = False, first: bool = False, gentle: int = _GENTLE
) -> bool:
    """Kills all descendants of ``root``, without ``spared`` and theirs.

    Returns whether none got away. They stand still before any is killed, so that none can start another in the place of
    one that is gone. A process that goes on as another faster than it is found cannot be stopped by its number. The
    first process of a namespace stops everybody then, which no fork gets away from (signal(7)), and lets all others go
    on afterwards.
    """
    until = monotonic() + (_FIRST_S if first else _SHORT_S)
    stood: set[int] | None = None
    looks = 0
    while True:
        seen = _look()
        tree = seen.below(root, spared) | ({root} & seen.living if itself else set())
        # Who moves can wake others. All are stopped by then, but for those who have joined from elsewhere.
        moving = (tree if stood is None else seen.below(os.getpid())) - seen.still
        caught = not moving and (seen.whole or not first)
        if caught or monotonic() > until:
            break
        if first and looks >= gentle:
            stood = seen.held if stood is None else stood
            _signal(-1, signal.SIGSTOP)
        for pid in moving:
            _signal(pid, signal.SIGSTOP)
        if looks:
            select.poll().poll(_PAUSE_MS)
        looks += 1
    for pid in tree:
        _signal(pid, signal.SIGKILL)
    if stood is not None:
        for pid in seen.living - tree - stood:
            _signal(pid, signal.SIGCONT)
    return caught


class _Seen:
    """The processes of one look with their parents, by what they do.

    ``whole`` says that it shows all of them: none came or went meanwhile.
    """

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.living: set[int] = set()
        self.dead: set[int] = set()
        self.still: set[int] = set()
        self.held: set[int] = set()
        self.whole = True

    def below(self, root: int, spared: Collection[int] = ()) -> set[int]:
        """Returns the living ones below ``root``, without ``spared`` and those below them."""
        children: dict[int, list[int]] = {}
        for pid, parent in self.parents.items():
            children.setdefault(parent, []).append(pid)
        found, open_ = set[int](), [root]
        while open_:
            nearest = [pid for pid in children.get(open_.pop(), ()) if pid not in spared and pid not in found]
            found.update(nearest)
            open_ += nearest
        return found & self.living


def _look() -> _Seen:
    seen, last, names = _Seen(), _last_pid(), _names()
    for name in names:
        try:
            parent, states = _seen(name)
        except (FileNotFoundError, ProcessLookupError):
            seen.whole = seen.whole and name == "1"  # some isolations cover that of the first process
            continue
        except (OSError, IndexError):
            continue
        pid = int(name)
        seen.parents[pid] = parent
        if states <= _DEAD:
            seen.dead.add(pid)
            continue
        seen.living.add(pid)
        if states <= _STILL:
            seen.still.add(pid)
        if states <= _HELD:
            seen.held.add(pid)
    known = {0, 1, *seen.parents}
    seen.whole = seen.whole and _last_pid() == last and _names() <= names and known.issuperset(seen.parents.values())
    return seen


def _seen(pid: str) -> tuple[int, set[bytes]]:
    """Returns the parent of a process, and the states of its threads. Raises OSError, IndexError."""
    words = _words(f"/proc/{pid}/stat")
    state, parent, threads = words[0], int(words[1]), words[17]
    if threads == b"1":
        return parent, {state}
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        if {state} <= _DEAD:  # it was waited for meanwhile; some kernels show no threads of it before
            return parent, {state}
        raise
    return parent, {_words(f"/proc/{pid}/task/{task}/stat")[0] for task in tasks}


def _names() -> set[str]:
    try:
        return set(filter(str.isdigit, os.listdir("/proc")))
    except OSError:
        return set()


def _words(path: str) -> list[bytes]:
    """Returns what is told of a process or thread behind its name (proc_pid_stat(5))."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _last_pid() -> bytes:
    """Returns the pid that was given last. It changes with each fork (proc_loadavg(5))."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return file.read().split()[-1]
    except (OSError, IndexError):
        return b""


def below(root: int) -> set[int]:
    """Returns the living processes below ``root``."""
    return _look().below(root)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return
