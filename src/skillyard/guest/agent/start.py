"""The start of programs, and an interpreter for the next guest that begins ahead.

A guest spends most of its start on imports, which the spare interpreter has done when it is asked for. It is used once
and runs no foreign code before. It begins while no program runs, and is ended before another begins, so that foreign
code never meets it. The guest of a command executes programs and nothing else, so a fork of the agent is enough.
"""

from __future__ import annotations

import os
import select
import sys

from ..command import START
from . import jsontext
from .supervisor import become, below, end_below, settle, supervise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from .kernel import Fork

_MOST_COPIED = 1 << 20
_MOST_CLEAR = 64 * 1024
_MEMORY = "/proc/self/fd/"


class Place:
    """The surroundings of programs: the settings that they all share."""

    def __init__(self, settings: Mapping[str, Any], bundle: str, files: tuple[int, int], fork: Fork) -> None:
        self.fork = fork
        self.ways: Callable[[], list[int]] = list
        """Gives the processes that join the host to the agent: a program that clears the sandbox spares them."""
        self.env: dict[str, str] = dict(settings.get("env") or {})
        self.python: str = settings["python"]
        self.bundle = bundle
        self.kept: tuple[int, ...] = ()
        """The descriptor of a guest that lies in memory (``/proc/self/fd/N``)."""
        if bundle.startswith(_MEMORY):
            self.kept = (int(bundle.removeprefix(_MEMORY)),)
        self.user: tuple[int, int] | None = tuple(settings["user"]) if settings.get("user") else None
        self.single = bool(settings.get("single"))
        self.spool: str = settings["spool"]
        self.timeout_ms: int = settings["timeout_ms"]
        self.cwd: str = settings["cwd"]
        self.files = files
        self.direct = os.getpid() == 1
        """Whether programs are children of the agent: nobody inside can end pid 1, but any process beside it."""
        self.spare = Spare(self)


class Started:
    """A process, and our ends of its pipes: ``stdin`` or -1, and others by name."""

    def __init__(self, pid: int, stdin: int, pipes: dict[str, int]) -> None:
        self.pid, self.stdin, self.pipes = pid, stdin, pipes

    def close(self) -> None:
        for fd in (*self.pipes.values(), self.stdin):
            if fd >= 0:
                os.close(fd)


def start(place: Place, order: Mapping[str, Any], request: int = -1, go: int = -1) -> Started:
    """Starts supervisor and program. Raises OSError where no process or descriptor is to be had.

    A guest reads its ``request`` once nobody can write to ``go`` any more.
    """
    theirs: list[int] = []
    pipes: dict[str, int] = {}
    given = -1
    try:
        stdin = nothing = os.open(os.devnull, os.O_RDONLY)
        theirs.append(nothing)
        out = error = _output(pipes, theirs, "stdout")
        if request >= 0:
            channel = _output(pipes, theirs, "channel")
            kept = (request, channel) if go < 0 else (request, channel, go)
            program = _guest(place, order, (nothing, out, out), kept)
        else:
            error = _output(pipes, theirs, "stderr")
            if order.get("stdin") or order.get("terminal"):
                stdin, given = os.pipe()
                theirs.append(stdin)
                os.set_blocking(given, False)
            program = _exec(place, order["args"], order, (stdin, out, error), ())
        ends: tuple[int, ...] = ()
        if not place.direct:
            leash, pipes["leash"] = os.pipe()
            pipes["report"], report = os.pipe()
            ends = leash, report
            theirs += ends
        pid = place.fork()
        if pid == 0:
            _child(program, ends, single=place.single)
    except OSError:
        Started(0, given, pipes).close()
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Started(pid, given, pipes)


def _output(pipes: dict[str, int], theirs: list[int], name: str) -> int:
    pipes[name], end = os.pipe()
    theirs.append(end)
    return end


def _child(program: Callable[[], NoReturn], ends: tuple[int, ...], *, single: bool) -> NoReturn:
    """Becomes the program, or its supervisor."""
    try:
        if ends:
            supervise(program, *ends, single=single)
        program()
    finally:
        os._exit(1)


def _exec(
    place: Place, argv: tuple[str, ...], order: Mapping[str, Any], stdio: tuple[int, int, int], kept: tuple[int, ...]
) -> Callable[[], NoReturn]:
    env = {**place.env, **order.get("env", {})}
    cwd = order.get("cwd") or place.cwd
    return lambda: become(argv, env, cwd, stdio, kept, place.user, place.files, order.get("terminal"))


def _guest(
    place: Place, order: Mapping[str, Any], stdio: tuple[int, int, int], kept: tuple[int, ...]
) -> Callable[[], NoReturn]:
    if order.get("clear"):
        import_clearing()
        ways = frozenset(place.ways())
        return lambda: _clear(place, stdio, kept, ways)
    if is_forked(place, order):
        from .. import main, process  # noqa: F401 - a fork of the agent needs them

        main.import_all()
        return lambda: _command(place, order, stdio, kept)
    argv = (
        place.python,
        "-I",
        "-c",
        START,
        place.bundle,
        "call",
        *(f"fd:{fd}" for fd in kept[:2]),
        *map(str, kept[2:]),
    )
    return _exec(place, argv, order, stdio, (*kept, *place.kept))


def _clear(place: Place, stdio: tuple[int, int, int], kept: tuple[int, ...], spared: frozenset[int]) -> NoReturn:
    """Clears the sandbox in this child of the agent, and answers as a guest does."""
    from ..clearing import clear

    status = 1  # no foreign code is ever in this process
    try:
        settle("/", stdio, (*kept, *place.kept), place.user, place.files)
        request, channel = kept
        os.write(channel, cleared(clear(_workspace(request), spared)))
        status = 0
    except Exception as error:  # noqa: BLE001 - the host reads it
        os.write(1, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(status)


def is_clear(place: Place, request: int) -> bool:
    """Returns whether a guest that clears the sandbox would find nothing to do."""
    from ..clearing import is_clear

    try:
        return is_clear(_workspace(request), frozenset(place.ways()))
    except (OSError, ValueError):
        return False  # such a guest tells what is wrong


def cleared(left: list[str]) -> bytes:
    """Returns the last frame of a guest that cleared the sandbox."""
    said = jsontext.encode({"left": left})
    return b"R" + len(said).to_bytes(4, "big") + said


def _workspace(request: int) -> str:
    from ..clearing import WORKSPACE

    workspace: str = jsontext.decode(os.pread(request, _MOST_CLEAR, 0)).get("workspace", WORKSPACE)
    return workspace


def import_ahead() -> None:
    """Imports what forks of the agent for guests without foreign code need."""
    from .. import clearing, main, process  # noqa: F401

    main.import_all()


def import_clearing() -> None:
    """Imports what a fork of the agent that clears the sandbox needs."""
    from .. import clearing  # noqa: F401


def is_forked(place: Place, order: Mapping[str, Any]) -> bool:
    """Returns whether a guest needs no interpreter of its own: no foreign code is ever in it."""
    return bool(order.get("clear") or (order.get("command") and place.python == sys.executable))


def _command(place: Place, order: Mapping[str, Any], stdio: tuple[int, int, int], kept: tuple[int, ...]) -> NoReturn:
    """Runs the guest of a command in this child of the agent.

    It knows the agent's key, so it stays undumpable.
    """
    from ..main import serve
    from ..process import open_stdio, reset_signals

    status = 1
    try:
        settle(order.get("cwd") or place.cwd, stdio, (*kept, *place.kept), place.user, place.files)
        request, channel = kept
        for fd in (*kept, *place.kept):
            os.set_inheritable(fd, False)
        os.environ.update({**place.env, **order.get("env", {})})
        open_stdio()
        reset_signals()
        serve(request, channel)
        status = 0
    except BaseException as error:  # noqa: BLE001 - the host reads it
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(status)


class Spare:
    """The interpreter that begins ahead, if there is one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._started: Started | None = None
        self._request = self._go = -1

    def begin(self) -> None:
        """Begins it. The caller has no program that runs."""
        if self._started is not None:
            return
        waits = -1
        try:
            waits, self._go = os.pipe()
            self._request = os.memfd_create("request")
            self._started = start(self._place, {}, self._request, waits)
        except OSError:
            self._close()
        finally:
            if waits >= 0:
                os.close(waits)

    def take(self, request: int) -> Started | None:
        """Gives it a request; returns its process. None where there is none that can take it."""
        if self._started is None or _has_ended(self._started) or os.fstat(request).st_size > _MOST_COPIED:
            return None
        while data := os.read(request, _MOST_COPIED):
            os.write(self._request, data)
        os.lseek(self._request, 0, os.SEEK_SET)
        taken, self._started = self._started, None
        self._close()
        return taken

    def end(self) -> None:
        """Ends it; returns when nothing is left of it."""
        if self._started is None:
            return
        started, self._started = self._started, None
        pids = [started.pid, *below(started.pid)]
        end_below(started.pid, itself=True)
        started.close()
        self._close()
        for pid in pids:  # what its supervisor leaves is a child of the agent
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue

    def reaped(self, pid: int) -> bool:
        """Returns whether it is the child that ended."""
        if self._started is None or pid != self._started.pid:
            return False
        self._started.close()
        self._started = None
        self._close()
        return True

    def pids(self) -> set[int]:
        return set() if self._started is None else {self._started.pid}

    def _close(self) -> None:
        for fd in (self._request, self._go):
            if fd >= 0:
                os.close(fd)
        self._request = self._go = -1


def _has_ended(started: Started) -> bool:
    poll = select.poll()
    poll.register(started.pipes["channel"], select.POLLIN)
    return bool(poll.poll(0))
