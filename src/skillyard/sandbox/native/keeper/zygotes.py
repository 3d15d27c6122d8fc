"""The warm interpreters of a keeper: one an environment and group, replaced before it grows old."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from skillyard.sandbox.native import kernel, packets
from skillyard.sandbox.native.keeper import orphans
from skillyard.sandbox.native.keeper.box import Box
from skillyard.sandbox.native.keeper.loop import READ, Loop

_MAX_ERROR_TEXT = 4096
_ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Retirement:
    """All forks of one zygote share its address layout and hash seed, so none serves for long."""

    runs: int = 2000
    seconds: float = 1800.0


class Plan(Protocol):
    """How the process is made that becomes a zygote."""

    def start(self, sock: socket.socket, errors: int) -> int:
        """Fork and exec it; it speaks on ``sock`` and complains on ``errors``. Its pid. Raises OSError."""
        ...


@dataclass(slots=True)
class Order:
    """A sandbox to be cloned: INTO_CGROUP or PLAIN, then the encoded Build of its walls."""

    box: Box
    message: bytes


class Zygote:
    """``on_failed(box, why)`` is called for each order that comes to nothing."""

    def __init__(self, loop: Loop, plan: Plan, retirement: Retirement, on_failed: Callable[[Box, str], None]) -> None:
        self._loop = loop
        self._plan = plan
        self._retirement = retirement
        self._on_failed = on_failed
        self._waiting: deque[Order] = deque()
        self._asked: deque[Box] = deque()
        self._current: _Process | None = None
        self._why = ""

    def order(self, order: Order) -> None:
        if self._ensure() is None:
            self._on_failed(order.box, f"the zygote cannot start: {self._why}")
        else:
            self._waiting.append(order)
            self._hand_out()

    def warm(self) -> None:
        """Start the interpreter now, before anybody asks."""
        self._ensure()

    def close(self) -> None:
        while self._current is not None:
            self._ended(self._current)

    def _ensure(self) -> _Process | None:
        if self._current is None or self._current.old(self._retirement):
            old = self._current
            try:
                fresh = _Process(self._loop, self._plan, self._heard, self._ended)
            except OSError as error:
                self._why = error.strerror or str(error)
                return old
            if old is None:
                self._current = fresh
            else:
                old.replaced_by = fresh
                return old
        return self._current

    def _hand_out(self) -> None:
        """No more at once than a socket takes; none to a process whose successor stands ready."""
        while self._waiting and len(self._asked) < _ASKED_AT_ONCE:
            current = self._current
            if current is None or not current.ready or (current.replaced_by and current.replaced_by.ready):
                return
            self._ask(current, self._waiting.popleft())

    def _ask(self, current: _Process, order: Order) -> None:
        fds = order.box.descriptors()
        try:
            packets.send_raw(current.sock, order.message, fds)
        except OSError as error:
            order.box.handed_over(fds)
            self._ended(current)
            self._on_failed(order.box, f"the zygote is gone: {error.strerror}")
            return
        order.box.handed_over(fds)
        current.runs += 1
        self._asked.append(order.box)

    def _heard(self, process: _Process, message: dict[str, Any], fds: list[int]) -> None:
        if "ready" in message:
            process.ready = True
            process.failed_imports = message["failed"]
            self._promote(process)
            return
        box = self._asked.popleft()
        if "pid" in message:
            process.told.add(message["pid"])
            box.cloned(message["pid"], fds[0])
        else:
            self._on_failed(box, str(message["failed"]))
        self._hand_out()

    def _promote(self, process: _Process) -> None:
        """A fresh process serves from now on; the one it replaces ends, its sandboxes go on without it."""
        if self._current is not None and self._current.replaced_by is process:
            if self._asked:
                self._loop.after(0.01, lambda: self._promote(process))
                return
            self._current.close()
            self._current = process
        self._hand_out()

    def _ended(self, process: _Process) -> None:
        process.close()
        orphans.end(self._loop, process.pid, process.told)
        if process is not self._current:
            if self._current is not None and self._current.replaced_by is process:
                self._current.replaced_by = None
            return
        self._current = process.replaced_by
        why = process.complaint() or "the zygote ended"
        failed = [*self._asked, *(order.box for order in self._waiting)]
        self._asked.clear()
        self._waiting.clear()
        for box in failed:
            self._on_failed(box, why)


class _Process:
    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        on_message: Callable[[_Process, dict[str, Any], list[int]], None],
        on_end: Callable[[_Process], None],
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_end = on_end
        self.ready = False
        self.failed_imports: dict[str, str] = {}
        self.runs = 0
        self.told: set[int] = set()
        """Pids of those that it cloned and told of."""
        self.born = time.monotonic()
        self.replaced_by: _Process | None = None
        self._text = bytearray()
        self._open = True
        self.sock, theirs = packets.pair()
        self._errors, errors = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = plan.start(theirs, errors)
        except OSError:
            self.sock.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            os.close(errors)
        self._pidfd = kernel.pidfd_open(self.pid)
        os.set_blocking(self._errors, False)
        self.sock.setblocking(False)
        loop.watch(self.sock.fileno(), READ, lambda _: self._hear())
        loop.watch(self._errors, READ, lambda _: self._complain())

    def old(self, retirement: Retirement) -> bool:
        if self.replaced_by is not None:
            return False
        return self.runs >= retirement.runs or time.monotonic() - self.born > retirement.seconds

    def complaint(self) -> str:
        """The last line that names something: of a traceback the one that says what was wrong."""
        lines = self._text.decode("utf-8", "replace").strip().splitlines()
        naming = [line for line in lines if not line.startswith((" ", "Current thread")) and ": " in line]
        return next(reversed(naming or lines), "")[-500:]

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._complain()
        for fd in (self.sock.fileno(), self._errors):
            self._loop.forget(fd)
        self.sock.close()
        os.close(self._errors)
        kernel.pidfd_kill(self._pidfd)
        os.waitpid(self.pid, 0)
        os.close(self._pidfd)

    def _hear(self) -> None:
        while self._open:
            try:
                got = packets.receive(self.sock)
            except BlockingIOError:
                return
            except OSError:
                got = None
            if got is None:
                self._on_end(self)
                return
            self._on_message(self, *got)

    def _complain(self) -> None:
        try:
            data = os.read(self._errors, 65536)
        except OSError:
            return
        if not data:
            self._loop.forget(self._errors)
        self._text = (self._text + data)[-_MAX_ERROR_TEXT:]
