"""One sandbox: from the clone of a zygote to the last trace of it."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from skillyard.guest.programs import terminal
from skillyard.ipc import packets
from skillyard.ipc.channel import BadMessage, is_quiet
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper import messages
from skillyard.sandbox.native.keeper.account import Account, forced
from skillyard.sandbox.native.keeper.loop import READ, Loop
from skillyard.sandbox.native.keeper.program import Caps, Program, close_descriptors, open_pipes
from skillyard.sandbox.native.keeper.request import Lease, Opened, Shape, Show
from skillyard.sandbox.native.linux import kernel
from skillyard.sandbox.native.protocol import is_begun

KILL_GRACE_S, KEPT_GRACE_S = 2.0, 10.0  # kept sandboxes have files to lose, and a busy host lets init wait
_WORDS_A_TURN = 64  # words of one init that are read before others have their turn
_BY_ITSELF = ("", "")
_STAYS_AFTER = ("", "timeout", "output")
"""The limit that ended a program; empty when none did."""


class Place(Protocol):
    """The place of one sandbox on its keeper's ground."""

    @property
    def group(self) -> Group | None: ...

    @property
    def account(self) -> Account: ...

    @property
    def order(self) -> bytes:
        """Returns the order by which a zygote makes its clone a sandbox."""

    @property
    def made(self) -> str:
        """Returns which part of several makes its walls; empty where there is one."""

    @property
    def stays(self) -> bool:
        """Returns whether the sandbox can outlive the one program that it was made for."""

    @property
    def lingers(self) -> bool:
        """Returns whether its first process lives on after it told of the program's end."""

    @property
    def ends_whole(self) -> bool:
        """Returns whether the kernel ends all its processes by itself once :meth:`end` was called."""

    def ready(self, sandbox: Sandbox) -> None:
        """Learns that all its walls stand, and its worker waits."""

    def show(self, sandbox: Sandbox, shows: Sequence[Show], then: Callable[[OSError | None], None]) -> None:
        """Shows skills and blobs in it, and calls ``then``, perhaps later. Raises OSError."""

    def end(self, sandbox: Sandbox) -> None:
        """Ends all its processes. It may be called again."""

    def told(self, sandbox: Sandbox, message: dict[str, Any]) -> bool:
        """Takes a message of init for this ground alone; returns whether it is one."""

    def ending(self, status: int) -> dict[str, Any] | None:
        """Returns the ending for a wait status that has a meaning on this ground alone."""

    def gone(self, sandbox: Sandbox, then: Callable[[], None]) -> None:
        """Removes traces after the end of its first process; calls ``then``, perhaps later."""

    def release(self) -> None:
        """Frees all that it holds. No process of it is left."""


class Sandbox:
    """``place`` is what it has on the keeper's ground.

    ``on_ready(sandbox)``, ``on_dead(sandbox, reason)`` and ``on_program_end(sandbox, program)`` tell the keeper.
    ``on_left()`` tells its zygote, when no process of it is left.
    """

    def __init__(self, loop: Loop, handle: str, shape: Shape, place: Place, spool_dir: str) -> None:
        self.loop = loop.guarded(self.fault)
        self.handle = handle
        self.shape = shape
        self.place = place
        self.group = place.group
        self.account = place.account
        self._spool_dir = spool_dir
        self.asked_at = time.monotonic()
        self.ready_at: float | None = None
        self.lease: Lease | None = None
        self.pid = -1
        self.pidfd = -1
        self.programs: dict[str, Program] = {}
        self.listeners = 0
        """Sockets of ours in its network."""
        self.opened: Opened | None = None
        """Those that nobody was given yet."""
        self.dead = False
        self.parting = False  # whether the ending of its program was told before that
        self.forced: tuple[str, str] | None = None
        self.on_ready: Callable[[Sandbox], None]
        self.on_dead: Callable[[Sandbox, str], None]
        self.on_left: Callable[[], None] = lambda: None
        self.lacks: Callable[[], str] = str
        """Returns the missing wall, if any, where that is to be checked."""
        self.on_program_end: Callable[[Sandbox, Program], None]
        self.broken = ""
        """The reason why it cannot be used, where that is known."""
        self._faulty = False
        self._staying = False
        self._said_ready = False
        self.given = ""
        """The program that the waiting worker was given."""
        self._early: int | None = None  # of a worker that ended with its program before the server's word of that came
        self.control, self.inside_control = packets.pair()
        self.channel: socket.socket | None  # while its worker waits
        self.channel, self.inside_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._output, self.inside_output = os.pipe2(os.O_CLOEXEC)
        self.control.setblocking(False)
        try:
            self.loop.watch(self.control.fileno(), READ, lambda _: self._hear())
        except OSError:
            os.close(self._output)
            os.close(self.inside_output)
            raise

    def descriptors(self) -> list[int]:
        """Returns init's descriptors: control, the worker's channel and output, the group's."""
        groups = self.group.join_descriptors() if self.group is not None else []
        return [self.inside_control.fileno(), self.inside_channel.fileno(), self.inside_output, *groups]

    def handed_over(self, fds: list[int]) -> None:
        """Closes our copies of the inner ends, once the zygote has its own."""
        if self.group is not None:
            self.group.joined(fds[3:])
        self.inside_control.close()
        self.inside_channel.close()
        os.close(self.inside_output)
        self.inside_output = -1

    def cloned(self, pid: int, pidfd: int, *, ready: bool = False) -> None:
        self.pid, self.pidfd = pid, pidfd
        self._said_ready = self._said_ready or ready
        try:
            self.loop.watch(pidfd, READ, lambda _: self._init_gone())
        except OSError as error:  # nobody would hear of its end: it ends now
            self.loop.report(error)
            self.fault(error)
            self._init_gone()
            return
        self._safely(self.kill if self._faulty else self._consider_ready)

    def fault(self, error: Exception) -> None:
        """Ends the sandbox, and nothing else, after a call of ours for it failed."""
        self._faulty = True
        self.broken = self.broken or f"the keeper had a fault with it: {type(error).__name__}"
        try:
            self.kill()
        finally:
            if self.pidfd >= 0 and not self.dead:
                kernel.pidfd_kill(self.pidfd)

    def _safely(self, step: Callable[[], None]) -> None:
        """Calls a step; its exception does not keep the caller from the other steps."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - told of, and ends this sandbox
            self.loop.report(error)
            self.fault(error)

    def give_time(self, program: Program, asked_ms: int | None) -> None:
        """Sets the deadline: the lease's, unless the program has its own."""
        bound_ms = asked_ms if asked_ms is not None else self.lease.timeout_ms if self.lease is not None else 0
        late = f"over the time limit of {bound_ms} ms"
        program.deadline = self.loop.after(bound_ms / 1000, lambda: self.kill_program(program, "timeout", late))

    def start(self, id: str, message: dict[str, Any], caps: Caps, request: bytes | None) -> Program:
        """Starts a program.

        Raises BrokenPipeError or ConnectionResetError when init is gone, ValueError for a message that is too long."""
        single = self.lease is not None and self.lease.single
        program = Program(
            self.loop, id, self._spool_dir, caps, lambda over, why: self.kill_program(over, "output", why)
        )
        program.kept = not single and bool(message.get("kept"))
        if single:
            program.on_done = self._done
        self.programs[id] = program
        try:
            self._begin(program, message, request)
        except BaseException:
            del self.programs[id]
            program.drop()
            raise
        return program

    def _begin(self, program: Program, message: dict[str, Any], request: bytes | None) -> None:
        single = self.lease is not None and self.lease.single
        if alone := bool(message.get("alone")):
            self._forget_worker()  # init ends it with the others
        if request is None:
            self._start_argv(program, message)
        elif self.channel is not None and not program.kept:
            channel, self.channel = self.channel, None
            self.given = program.id
            program.read_pipe(self._output, "stdout")
            if not single:
                packets.send(self.control, {"lend": program.id, "single": single})
            program.request = request if len(self.programs) > 1 else b""
            program.talk(channel, None if message.get("begun") else request)
            if (early := self._early) is not None:
                self.loop.after(0, lambda: self._idle_worker_gone(early))
        else:
            self._start_guest(program, request, kept=program.kept, alone=alone)

    def kill_program(self, program: Program, outcome: str, reason: str) -> None:
        """Ends a program's whole tree; if init does not manage, the sandbox ends."""
        if program.ending is not None or program.forced is not None:
            return
        program.forced = (outcome, reason)
        single = self.lease is not None and self.lease.single
        if single:
            self._hurry()
        if single and not self._can_stay(program):
            self.kill()
            return
        try:
            packets.send(self.control, {"wind_up": program.id} if single else {"kill": program.id})
        except OSError:
            self.kill()
            return
        grace_s = KILL_GRACE_S if single else KEPT_GRACE_S
        self.loop.after(grace_s, lambda: self.kill() if program.ending is None else None)

    def _can_stay(self, program: Program) -> bool:
        """Returns whether the sandbox outlives its one program, whose files can be collected then."""
        return self.place.stays and program.id == self.given and (program.forced or _BY_ITSELF)[0] in _STAYS_AFTER

    def waits(self) -> bool:
        """Returns whether its worker waits to be used."""
        return not self.dead and self.channel is not None and is_quiet(self.channel)

    def running(self) -> bool:
        return any(program.ending is None for program in self.programs.values())

    def end_for(self, outcome: str, reason: str) -> None:
        """Ends the whole sandbox and its programs for one reason."""
        self.forced = (outcome, reason)
        for program in self.programs.values():
            if program.ending is None and program.forced is None:
                program.forced = self.forced
        self._hurry()
        self.kill()

    def _hurry(self) -> None:
        if self.group is not None:
            self.group.hurry()

    def kill(self) -> None:
        """Ends all its processes, some time soon."""
        if self.pidfd >= 0 and not self.dead:
            self.place.end(self)

    def _start_argv(self, program: Program, message: dict[str, Any]) -> None:
        size = message.get("terminal")
        if size is not None and not terminal.fits(size):
            raise ValueError("a terminal has rows and columns")
        ours, theirs = open_pipes(stdin=message["stdin"])
        try:
            packets.send(self.control, {**self._start_message(program), **message}, theirs)
        except (OSError, ValueError):
            close_descriptors(ours)
            raise
        finally:
            close_descriptors(theirs)
        if message["stdin"]:
            program.open_stdin(ours.pop(0), on_terminal=size is not None)
        program.read_pipe(ours[0], "stdout")
        program.read_pipe(ours[1], "stderr")

    def _start_message(self, program: Program) -> dict[str, Any]:
        return {"start": program.id, "single": self.lease is not None and self.lease.single}

    def _start_guest(self, program: Program, request: bytes, **how: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        start = {**self._start_message(program), "argv": None, **how}
        try:
            packets.send(self.control, start, [theirs.fileno(), writing])
        except OSError:
            ours.close()
            os.close(reading)
            raise
        finally:
            theirs.close()
            os.close(writing)
        program.read_pipe(reading, "stdout")
        program.talk(ours, request)

    def _done(self, program: Program) -> None:
        """Ends the sandbox of a guest that is done, while its worker is still taken down."""
        if program.ending is None and program.forced is None:
            program.forced = ("exit", "")
            self.kill()
            self._part(program)

    def _part(self, program: Program) -> None:
        """Tells of a program whose sandbox was told to end. A task may have another server when it is gone."""
        own = self.lease is not None and self.lease.owner == "run" and self.place.ends_whole
        if not own or self.pidfd < 0 or self.dead or self.account.meter.used.cpu_seconds is None:
            return
        ending = forced("exit", "") | {"hits": self.account.hits()}
        program.end_of_output()
        if program.is_small() and len(self.programs) == 1:
            self.parting = True
            self._tell(program, ending)
            self.loop.forget(self.control.fileno())  # its end is heard by the pidfd

    def _idle_worker_gone(self, status: int) -> None:
        """Ends a single sandbox with its worker. Its init does not know the worker's program."""
        if self.lease is None and self.channel is not None and is_begun(self.channel):
            self._early = status
        elif self.lease is None:
            self.broken = "the waiting worker ended"
            self.kill()
        elif self.lease.single and self.given:
            program = self.programs[self.given]
            program.end_of_output()  # says whether it came to its end in order
            self._staying = self._can_stay(program)
            if not self._staying:
                self.kill()
            self._finish(self.given, self._ending(self.given, status))
        else:
            self._forget_worker()

    def _forget_worker(self) -> None:
        """Lets go of a worker that ended. The next guest is forked when it is asked for."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
            os.close(self._output)

    def _start_again(self, program: Program) -> None:
        """Starts a guest again whose worker ended before it got the request."""
        request, program.request = program.request, b""
        program.hang_up()
        try:
            self._start_guest(program, request)
        except OSError:
            self.kill()

    def _hear(self) -> None:
        """Takes a few messages of init, and none after one that breaks the rules."""
        for _ in range(_WORDS_A_TURN):
            try:
                if (said := messages.hear_init(self.control)) is None:
                    raise EOFError
                self._told(said)
            except BlockingIOError:
                return
            except BadMessage as bad:
                self.loop.forget(self.control.fileno())
                self.broken = f"its init cannot be believed: {bad}"
                self._faulty = True  # and ends when there is something to kill it by
                self.kill()
                return
            except (EOFError, OSError):
                self.loop.forget(self.control.fileno())
                return

    def _consider_ready(self) -> None:
        """Makes it ready once init said so and the zygote told the pid, by which it can be killed."""
        if self._said_ready and self.pidfd >= 0:
            if why := self.lacks():
                self.broken = why
                self.kill()
                return
            self.ready_at = time.monotonic()
            self.account.meter.meet(self.pid)
            self.place.ready(self)
            self.on_ready(self)

    def _told(self, message: dict[str, Any]) -> None:
        """Takes a message. Raises BadMessage for one that init cannot send now."""
        if "ready" in message:
            if self._said_ready:  # it would be lent twice
                raise BadMessage("it was ready before")
            self._said_ready = True
            self._consider_ready()
        elif "broken" in message:
            self.broken = message["broken"]
        elif "idle_worker_gone" in message:
            self.account.meter.told(message["cpu"], message["rss"])
            self._idle_worker_gone(message["idle_worker_gone"])
        elif "not_lent" in message:
            if not self._started(message["not_lent"]).request:
                raise BadMessage("it was lent nothing")
            self._start_again(self._started(message["not_lent"]))
        elif "failed" in message:
            self._started(message["failed"])
            self._finish(message["failed"], {"outcome": "exit", "code": 126, "reason": message["why"]})
        elif "ended" in message:
            self._started(message["ended"])
            if not any(p.ending is None and not p.kept and p.id != message["ended"] for p in self.programs.values()):
                self._forget_worker()
            self.account.meter.told(message["cpu"], message["rss"])
            self._finish(message["ended"], self._ending(message["ended"], message["status"]))
        elif not self.place.told(self, message):
            raise BadMessage("its message belongs to another kind of sandbox")

    def _started(self, id: str) -> Program:
        if (program := self.programs.get(id)) is None:
            raise BadMessage("it spoke of a program that was never started")
        return program

    def _ending(self, id: str, status: int) -> dict[str, Any]:
        program = self.programs.get(id)
        if program is not None and program.forced is not None:
            return forced(*program.forced)
        return self.place.ending(status) or self.account.ending(status)

    def _finish(self, id: str, ending: dict[str, Any]) -> None:
        self._end_program(id, ending)
        if self.place.lingers and self.lease is not None and self.lease.single:
            self.kill()

    def _end_program(self, id: str, ending: dict[str, Any]) -> None:
        program = self.programs.get(id)
        if program is None or program.ending is not None:
            return
        ending["hits"] = self.account.hits()
        program.end_of_output()
        if self.lease is not None and self.lease.single and not self.dead and not self._staying:
            program.ending = ending
            return  # told when init is gone too, which is at once
        self._tell(program, ending)

    def _tell(self, program: Program, ending: dict[str, Any]) -> None:
        program.ending = ending
        ending["usage"] = self.usage()
        self.on_program_end(self, program)

    def _init_gone(self) -> None:
        """Learns from the pidfd that its first process has ended."""
        self.loop.forget(self.pidfd)
        try:
            self.place.gone(self, self._bury)
        except Exception as error:  # noqa: BLE001 - callers that wait for its end hear of it
            self.loop.report(error)
            if not self.dead:
                self._bury()

    def _bury(self) -> None:
        """Tells everybody of the end. A failing step does not stop the others."""
        for step in (self._hear, lambda: self.account.meter.settle(self.pid), self.on_left):
            self._safely(step)
        self.dead = True
        for program in self.programs.values():
            self._safely(functools.partial(self._conclude, program))
        self.on_dead(self, self.broken or "its init ended")

    def _conclude(self, program: Program) -> None:
        if program.ending is None:
            known = program.forced or self.forced
            self._finish(program.id, forced(*known) if known else self.account.unexplained(self.broken))
        elif "usage" not in program.ending:
            self._tell(program, program.ending)

    def usage(self) -> dict[str, Any]:
        """Of the whole sandbox so far: the fields of :class:`skillyard.domain.work.record.Usage`."""
        end = time.monotonic()
        return self.account.used() | {
            "wall_ms": round((end - self.lease.at) * 1000, 3) if self.lease else None,
            "startup_ms": round((self.ready_at - self.asked_at) * 1000, 3) if self.ready_at else None,
        }

    def release(self) -> None:
        """Closes its descriptors. Its processes are gone."""
        for program in self.programs.values():
            self._safely(program.drop)
        self.loop.forget(self.control.fileno())
        self.control.close()
        if self.inside_output >= 0:
            self.handed_over([])
        self._forget_worker()
        if self.opened is not None:
            self.opened.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
