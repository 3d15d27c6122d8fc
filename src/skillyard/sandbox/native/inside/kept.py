"""Programs beside each other in a sandbox: whose each process is, and the end of some.

A process is a program's when the kernel's chain of parents leads from it to that program. A kept one is the
subreaper of its tree (PR_SET_CHILD_SUBREAPER(2const)), so its orphans stay below it. Nothing comes there from
elsewhere: an orphan goes to a reaper above itself, and no call gives a process another parent.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from skillyard.sandbox.native.linux import kernel

PATIENCE_S = 1.5
"""Seconds within which all others must be gone and the kept ones stand still. Then nothing is spared any more."""
_PAUSE_S = 0.001
_STILL, _DEAD = frozenset("TtDX"), frozenset("ZX")


class _Seen:
    """The processes of one look. ``calm`` says that none came or went meanwhile."""

    def __init__(self, parents: dict[int, int], moving: frozenset[int], calm: bool) -> None:
        self.parents = parents
        self.moving = moving
        self.calm = calm


def be_reaper() -> None:
    """Lets the orphans of this kept program stay below it. Older gVisors cannot: there they are ended as others are."""
    try:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    except OSError:
        return


def stop_all_but(leaders: Collection[int]) -> frozenset[int]:
    """Ends the processes that are in no leader's tree, and stops the others; returns their pids.

    Empty when that could not be had in time: then nothing of the sandbox may be spared. The caller is pid 1, and has
    not waited for the leaders yet, so that no pid of theirs is another's.
    """
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if not stop_all():
            return frozenset()
        seen = _look()
        spared = _below(leaders, seen.parents)
        others = seen.parents.keys() - spared
        if seen.calm and not others and not seen.moving:
            return spared
        _kill(others)
        time.sleep(_PAUSE_S)
    return frozenset()


def end_tree(leader: int) -> bool:
    """Ends a program's tree while all stand still, and lets the others go on.

    Returns False when they did not stand still in time: then nothing of the sandbox may be spared. The caller is pid 1.
    """
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and stop_all():
        seen = _look()
        if seen.calm and not seen.moving:
            _kill(_below([leader], seen.parents))
            go_on()
            return True
        time.sleep(_PAUSE_S)
    return False


def stop_all() -> bool:
    """Stops all processes; returns whether there is any.

    It reaches all at once: no fork gets away from it (signal(7)). Processes that stand still can be told apart.
    """
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


def _kill(pids: Collection[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def go_on() -> None:
    """Lets all processes go on that were stopped."""
    try:
        os.kill(-1, signal.SIGCONT)
    except ProcessLookupError:
        return


def _below(leaders: Collection[int], parents: dict[int, int]) -> frozenset[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = [pid for pid in leaders if pid in parents]
    while queue:
        pid = queue.pop()
        found.add(pid)
        queue += children.get(pid, ())
    return frozenset(found)


def _look() -> _Seen:
    """Returns all processes but this one and the dead."""
    parents, moving = {}, set()
    last = _last_pid()
    calm = True
    for name in filter(str.isdigit, os.listdir("/proc")):
        pid = int(name)
        if pid == os.getpid():
            continue
        try:
            state, parent = _state(f"/proc/{name}/stat")
            if state in _DEAD and not _has_threads(name):
                continue
            threads = os.listdir(f"/proc/{name}/task")
            parents[pid] = parent
            if any(_state(f"/proc/{name}/task/{thread}/stat")[0] not in _STILL | _DEAD for thread in threads):
                moving.add(pid)
        except (OSError, ValueError, IndexError):
            calm = False  # it ended meanwhile, or begins
    return _Seen(parents, frozenset(moving), calm and _last_pid() == last)


def _has_threads(pid: str) -> bool:
    """Returns whether threads are left where the first one has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:  # gVisor has no such directory then
        return False


def _state(path: str) -> tuple[str, int]:
    """Returns state and parent of a process or thread (proc_pid_stat(5))."""
    with open(path, "rb") as file:
        state, parent = file.read().rpartition(b")")[2].split()[:2]
    return state.decode(), int(parent)


def _last_pid() -> str:
    """Returns the pid that was given last. It changes with each fork (proc_loadavg(5))."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return file.read().split()[-1]
    except (OSError, IndexError):
        return ""
