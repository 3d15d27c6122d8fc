"""Programs: their start, streams, deadline and ending, as the agent sees them."""

from __future__ import annotations

import os
import resource
from time import monotonic

from ..programs import terminal
from . import jsontext
from .kernel import Kills
from .spool import Spool
from .start import is_clear, is_forked, start
from .supervisor import end_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from functools import partial
    from typing import Any

    from .loop import Loop, Timer
    from .start import Place
else:
    import _signal as signal
    from _functools import partial

CHUNK = 256 * 1024
STREAMS = ("stdout", "stderr", "channel")
KEPT = 256
"""Programs that ended and whose output is kept: of older ones the ending alone is known."""
LIVE = 256
"""Programs that may run at once."""
_STUCK_S = 2.0
"""A supervisor that was told to end its tree and has not after this time is ended itself."""
_LEFT = "something of it could not be ended, and its whole sandbox was"
_PIPE = 1 << 20
_REST_S = 0.05
"""How long after a clearing the next interpreter begins: a call that follows at once does not wait for two."""
_AHEAD, _KEPT = 1 << 20, 4 << 20
"""Bytes that a program which waits may be ahead of its reader, and bytes that are kept.

The difference holds all that a lost channel had under way, one more piece and a full pipe.
"""
_INPUT_HIGH = 256 * 1024


class Refused(Exception):
    """An operation that cannot be: ``kind`` is for the host, which has an error for each."""

    def __init__(self, kind: str, text: str, **more: object) -> None:
        super().__init__(text)
        self.kind, self.text, self.more = kind, text, more


class Program:
    """One program. ``ended`` holds its ending as the host gets it; ``watchers`` are called once when it is there."""

    def __init__(
        self,
        loop: Loop,
        place: Place,
        order: Mapping[str, Any],
        request: int,
        kills: Kills,
        sweep: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        """``sweep`` ends processes that have lost their supervisor; ``give_up`` ends the sandbox.

        The one tells whether they are gone, the other is called when this program's tree cannot be ended by itself.
        """
        self.id: str = order["id"]
        self._sweep, self._give_up = sweep, give_up
        self._left = False
        self._stuck: Timer | None = None
        self.ended: dict[str, Any] | None = None
        self.watchers: set[Callable[[], None]] = set()
        self.ring = bool(order.get("ring"))
        self._waits = bool(order.get("waits"))
        self._read = dict.fromkeys(STREAMS, 0)
        self._loop, self._kills, self._direct = loop, kills, place.direct
        self._verdict: tuple[str, str] | None = None
        self._began = monotonic()
        self._kills_before = kills.count()
        self._make_spools(order, place.spool)
        self._input = bytearray()
        self._input_ends = False
        self._on_terminal = bool(order.get("terminal"))
        self._taken: list[Callable[[], None]] = []
        self._report_text = b""
        self._launch(place, order, request)
        self._deadline = loop.after(max(0, order["timeout_ms"]) / 1000, self._too_late)
        self.until = self._began + order["timeout_ms"] / 1000

    def _make_spools(self, order: Mapping[str, Any], directory: str) -> None:
        log, error = max(1, order["log_bytes"]), order.get("stderr_bytes")
        self.caps = {"stdout": log, "stderr": max(1, error if error is not None else log)}
        if self._waits:
            self.caps = dict.fromkeys(self.caps, _KEPT)
        self.caps["channel"] = max(1, order["channel_bytes"])
        self.spools = {name: Spool(cap, directory) for name, cap in self.caps.items()}
        logs = [order["log_bytes"]]
        errors = logs if error is None else [error]
        self._budgets = {"stdout": logs, "stderr": errors, "channel": [order["channel_bytes"]]}

    def _launch(self, place: Place, order: Mapping[str, Any], request: int) -> None:
        """Starts supervisor and program. Raises Refused where no process or descriptor is to be had."""
        guest = request >= 0 and not is_forked(place, order)
        try:
            started = place.spare.take(request) if guest else None
            if started is None:
                place.spare.end()
                started = start(place, order, request)
        except OSError as error:
            raise Refused("busy", f"no process can be started: {error.strerror}") from None
        self.pid, self._stdin, pipes = started.pid, started.stdin, started.pipes
        self._leash, self._report = pipes.pop("leash", -1), pipes.pop("report", -1)
        self._pipes = pipes
        for name, fd in pipes.items():
            os.set_blocking(fd, False)
            self._loop.watch(fd, partial(self._take, name))
        if self._report >= 0:
            os.set_blocking(self._report, False)
            self._loop.watch(self._report, self._told)

    def was_read(self, name: str, offset: int) -> None:
        """Learns how far a reader has come. A program that waited for it goes on."""
        self._read[name] = max(self._read[name], offset)
        if self._waits and name in self._pipes:
            self._loop.watch(self._pipes[name], partial(self._take, name))

    def _take(self, name: str, *, last: bool = False) -> int:
        """Moves output into its spool; returns how much.

        A program that is to wait for its reader fills its pipe, but for what is left at the end.
        """
        fd = self._pipes.get(name, -1)
        if fd < 0:
            return 0
        if self._waits and not last and self.spools[name].size - self._read[name] >= _AHEAD:
            self._loop.watch(fd)
            return 0
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._shut(name)
            return 0
        if name == "channel" or not (self.ring or self._waits):
            budget = self._budgets[name]
            kept = data[: budget[0]]
            budget[0] -= len(kept)
            if len(kept) < len(data):
                self.end("output", "it wrote more than its limit")
        else:
            kept = data
        try:
            if kept:
                self.spools[name].append(kept)
        except OSError as error:
            self.end("disk", f"its output cannot be kept: {error.strerror}")
        return len(data)

    def _shut(self, name: str) -> None:
        fd = self._pipes.pop(name, -1)
        if fd >= 0:
            self._loop.close(fd)

    def _too_late(self) -> None:
        self.end("timeout", "")

    def end(self, outcome: str, reason: str) -> None:
        """Ends the whole tree. The first outcome counts; an ended program keeps its own."""
        if self._verdict is None and self.ended is None:
            self._verdict = (outcome, reason)
            self._let_go()

    def _let_go(self) -> None:
        """The supervisor ends its tree. One that does not is ended itself, and its tree with it."""
        if self._direct:
            self._force()
        elif self._leash >= 0:
            os.close(self._leash)
            self._leash = -1
            self._stuck = self._loop.after(_STUCK_S, self._force)

    def _force(self) -> None:
        if self.pid > 0 and not end_below(self.pid, itself=True, first=self._direct) and self._direct:
            self._leave()
            self._over({})

    def _leave(self) -> None:
        self._left = True
        self._give_up()

    def release(self) -> None:
        """Ends all that an ended program left, with its supervisor."""
        self.end("cancelled", "the sandbox was ended")
        self._let_go()

    def _told(self) -> None:
        """The supervisor reported the end, or is gone without a report."""
        try:
            data = os.read(self._report, 4096)
        except BlockingIOError:
            return
        self._report_text += data
        if data and not data.endswith(b"}"):
            return
        self._loop.close(self._report)
        told = jsontext.decode(self._report_text or b"{}")
        if not told:
            self._await_supervisor()
            self._left = not self._sweep()
        elif told.get("left"):
            self._leave()
        self._over(told)

    def _over(self, told: Mapping[str, Any]) -> None:
        """Takes what is left of the output, and tells the ending."""
        self._deadline.cancel()
        for name in tuple(self._pipes):
            left = _PIPE
            while left > 0 and (taken := self._take(name, last=True)):
                left -= taken
            self._shut(name)
        self._drop_input()
        self.ended = {**self._judge(told), "sizes": {name: spool.size for name, spool in self.spools.items()}}
        for spool in self.spools.values():
            spool.end()
        watchers, self.watchers = self.watchers, set()
        for watcher in watchers:
            watcher()

    def _judge(self, told: Mapping[str, Any]) -> dict[str, Any]:
        judged = self._judged(told)
        if self._left:
            judged["reason"] = "; ".join(filter(None, (judged.get("reason"), _LEFT)))
        return judged

    def _judged(self, told: Mapping[str, Any]) -> dict[str, Any]:
        ending = {"cpu_ms": told.get("cpu_ms"), "rss": told.get("rss"), "wall_ms": (monotonic() - self._began) * 1000}
        starved = self._kills.count() > self._kills_before
        status = told.get("status")
        if starved:
            ending["hits"] = ["memory"]
        if self._verdict is not None:
            return {"outcome": self._verdict[0], "reason": self._verdict[1], **ending}
        if status is None:
            return {"outcome": "lost", "reason": "its supervisor in the sandbox was killed", **ending}
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return {"outcome": "exit", "code": code, **ending}
        if starved and code == -signal.SIGKILL:
            return {"outcome": "memory", "reason": "the kernel ended it for want of memory", **ending}
        return {"outcome": "signal", "signal": -code, "reason": f"ended by signal {-code}", **ending}

    def _await_supervisor(self) -> None:
        """Its descriptors close a moment before its children are handed to the agent."""
        if self.pid > 0:
            os.waitpid(self.pid, 0)
            self.gone()

    def reaped(self, status: int, used: resource.struct_rusage) -> None:
        """The agent's child has ended: the supervisor, or the program itself."""
        self.gone()
        if self._direct and self.ended is None:
            self._left = not self._sweep() or self._left
            self._over({"status": status, **_usage(used)})

    def gone(self) -> None:
        self.pid = 0
        if self._stuck is not None:
            self._stuck.cancel()
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1

    def feed(self, data: bytes) -> None:
        """Takes bytes for standard input. Raises Refused when nobody reads it."""
        if self._stdin < 0 or self._input_ends:
            raise Refused("gone", "nobody reads this standard input")
        self._input += terminal.frame(terminal.DATA, data) if self._on_terminal else data
        self._pour()

    def when_taken(self, function: Callable[[], None]) -> None:
        """Calls ``function`` as soon as there is room for more input, or nobody reads it any more."""
        if len(self._input) <= _INPUT_HIGH or self._stdin < 0:
            function()
        else:
            self._taken.append(function)

    @property
    def reads_input(self) -> bool:
        return self._stdin >= 0

    def close_input(self) -> None:
        if self._on_terminal:
            self._input += terminal.frame(terminal.END)
        else:
            self._input_ends = True
        self._pour()

    def resize(self, size: tuple[int, int]) -> bool:
        """Gives its terminal another size; returns False where it has none. Raises Refused."""
        if not terminal.fits(size):
            raise Refused("invalid", "a terminal has no such size")
        if self._on_terminal and self._stdin < 0:
            raise Refused("gone", "the program has ended")
        if self._on_terminal:
            self._input += terminal.size_frame(*size)
            self._pour()
        return self._on_terminal

    def _pour(self) -> None:
        if self._stdin < 0:
            return
        try:
            while self._input:
                written = os.write(self._stdin, memoryview(self._input)[:CHUNK])
                del self._input[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._drop_input()
            return
        if not self._input and self._input_ends:
            self._drop_input()
            return
        self._loop.watch(self._stdin, write=self._pour if self._input else None)
        if len(self._input) <= _INPUT_HIGH:
            self._tell_taken()

    def _drop_input(self) -> None:
        if self._stdin >= 0:
            self._loop.close(self._stdin)
            self._stdin = -1
        self._input.clear()
        self._tell_taken()

    def _tell_taken(self) -> None:
        taken, self._taken = self._taken, []
        for function in taken:
            function()

    def forget(self) -> None:
        """Drops the output; the ending stays."""
        for spool in self.spools.values():
            spool.drop()


class Programs:
    """All programs of a sandbox, by the host's ids."""

    def __init__(self, loop: Loop, place: Place, sweep: Callable[[], bool], give_up: Callable[[], None]) -> None:
        self._loop, self._place = loop, place
        self._sweep, self._give_up = sweep, give_up
        self._by_id: dict[str, Program] = {}
        self._kills = Kills()
        self._interprets = True
        """Whether the next guest is expected to need an interpreter, as the last did."""
        self.closed = False

    def __iter__(self) -> Any:
        return iter(self._by_id.values())

    def get(self, id: object) -> Program:
        """Raises Refused for an id that was never started."""
        found = self._by_id.get(id) if isinstance(id, str) else None
        if found is None:
            raise Refused("gone", "no program was started under this id")
        return found

    def known(self, id: object) -> bool:
        return id in self._by_id

    def start(self, order: Mapping[str, Any], request: int = -1) -> Program:
        """Starts a program; one that was started under the id before is given instead. Raises Refused."""
        if order["id"] in self._by_id:
            return self._by_id[order["id"]]
        if self.closed:
            raise Refused("gone", "the sandbox is ending")
        if sum(program.pid > 0 for program in self) >= LIVE:
            raise Refused("busy", f"{LIVE} programs are running in this sandbox")
        program = Program(self._loop, self._place, order, request, self._kills, self._sweep, self._give_up)
        self._by_id[program.id] = program
        if order.get("clear"):
            program.watchers.add(self._rest)
        elif order.get("guest"):
            self._interprets = not is_forked(self._place, order)
        self._trim()
        return program

    def is_clear(self, order: Mapping[str, Any], request: int) -> bool:
        """Returns whether an order clears the sandbox and has nothing to do. It needs no process then.

        To fork one takes longer than to look.
        """
        if not order.get("clear") or self.closed or not is_clear(self._place, request):
            return False
        self._rest()
        return True

    def _rest(self) -> None:
        if self._interprets:
            self._loop.after(_REST_S, self.make_ahead)

    def make_ahead(self) -> None:
        """Begins the interpreter of the next guest while no program runs."""
        if not self.closed and all(program.pid == 0 for program in self):
            self._place.spare.begin()

    def _trim(self) -> None:
        ended = [p for p in self if p.ended is not None and not p.spools["stdout"].dropped]
        for program in ended[: max(0, len(ended) - KEPT)]:
            program.forget()

    def reaped(self, pid: int, status: int, used: resource.struct_rusage) -> bool:
        """Returns whether the child that ended was a program's."""
        for program in self:
            if program.pid == pid:
                program.reaped(status, used)
                return True
        return False

    def pids(self) -> set[int]:
        return {program.pid for program in self if program.pid > 0}

    def end(self) -> None:
        self.closed = True
        for program in tuple(self):
            program.release()


def raise_files() -> tuple[int, int]:
    """Lets the agent open as many descriptors as it may. Returns the limit of programs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def spent() -> dict[str, Any]:
    """Returns what all children that have ended used."""
    return _usage(resource.getrusage(resource.RUSAGE_CHILDREN))


def _usage(used: resource.struct_rusage) -> dict[str, Any]:
    return {"cpu_ms": (used.ru_utime + used.ru_stime) * 1000, "rss": used.ru_maxrss * 1024}
