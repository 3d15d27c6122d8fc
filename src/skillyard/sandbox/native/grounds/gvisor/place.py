"""The place of a gVisor sandbox: id, control group, mounts, and the memory of its sentry.

Its programs are not processes of the host. All of their memory, and of the files they write, is in memory files of the
sentry, whose st_blocks count what is really held. The sentry's own memory grows with the programs' work, and counts
beyond an allowance.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.host import Host, Share
from skillyard.sandbox.native.grounds.namespaces.mounts import Shower, new_tree
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper import messages
from skillyard.sandbox.native.keeper.account import Account, Used, cpu_seconds
from skillyard.sandbox.native.keeper.loop import READ, Loop, Timer
from skillyard.sandbox.native.keeper.request import MIB, Shape, Show
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.processes import tree_of
from skillyard.sandbox.native.linux import kernel

_BLOCK = 512
_ALLOWANCE = 48 * MIB


@dataclass(frozen=True, slots=True)
class Sentry:
    """The process that runs the programs; ``files`` are paths of its memory files."""

    pid: int
    files: tuple[str, ...]

    def guest_bytes(self) -> int:
        total = 0
        for path in self.files:
            with contextlib.suppress(OSError):
                total += os.stat(path).st_blocks * _BLOCK
        return total

    def own_bytes(self) -> int:
        return _status_bytes(self.pid, "RssAnon:")


def find_sentry(root: int) -> Sentry | None:
    """Returns the process below ``root`` that holds the memory of the programs."""
    for pid in tree_of(root):
        files = tuple(_memory_files(pid))
        if files and _is_boot(pid):
            return Sentry(pid, files)
    return None


class SentryMeter:
    """Counts from :meth:`begin` on: use before the sandbox was lent belongs to no run.

    The memory of a program that is at work by then counts from the time when its sandbox was ready.
    """

    worker = 0

    def __init__(self) -> None:
        self.used = Used()
        self.sentry: Sentry | None = None
        self._root = -1
        self._guest_before = self._own_before = 0
        self._seconds_before = self._seen_seconds = 0.0

    def meet(self, init: int) -> None:
        self._root = init
        self.sentry = find_sentry(init)
        self._weigh()

    def begin(self, *, begun: bool) -> None:
        if not begun:
            self._weigh()
        self._seconds_before = _seconds(self._root)

    def _weigh(self) -> None:
        if self.sentry is not None:
            self._guest_before, self._own_before = self.sentry.guest_bytes(), self.sentry.own_bytes()

    def held(self) -> int:
        """Returns bytes of memory and of files that the programs hold, as far as the host can tell."""
        if self.sentry is None:
            return 0
        own = self.sentry.own_bytes() - self._own_before - _ALLOWANCE
        return max(0, self.sentry.guest_bytes() - self._guest_before) + max(0, own)

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        # gVisor counts the processor time that programs wanted; only the host knows the time that they got.
        self.used.peak_rss = max(self.used.peak_rss, peak_rss)
        self.look()

    def look(self) -> None:
        """Counts the use so far. After the end, no process is left to tell it."""
        if self._root >= 0:
            self.used.saw(self.held())
            self._seen_seconds = max(self._seen_seconds, _seconds(self._root) - self._seconds_before)
            self.used.cpu_seconds = self._seen_seconds

    def settle(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        self.used.cpu_seconds = self._seen_seconds or None


def _memory_files(pid: int) -> list[str]:
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    found.append(path)
    except OSError:
        return []
    return found


def _is_boot(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        return bool(words) and words[0] == b"runsc-sandbox"
    return False


def _status_bytes(pid: int, key: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(key)), 0)
    return 0


def _seconds(root: int) -> float:
    """Returns the processor time of a whole tree so far, ended processes included."""
    total = 0.0
    for pid in tree_of(root):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += cpu_seconds(pid)
    return total


BOOT_BOUND_S = 20.0
_TEXT_KEPT = 4096
_PIECES_A_TURN = 64
_LOOKS = 2
"""Looks in a row that must find memory over its limit: gVisor gives freed memory back a little later."""


class Starts(Protocol):
    """Hears how the start of a sandbox went."""

    def is_ready(self, place: GvisorPlace) -> None: ...

    def is_dead(self, place: GvisorPlace, why: str, *, was_ready: bool) -> None: ...


class GvisorPlace:
    """``platform`` is that of its runsc; ``cpus`` bound it where no controller counts."""

    stays = False
    lingers = True
    ends_whole = False
    made = ""
    order = b""

    def __init__(
        self, loop: Loop, host: Host, share: Share, shape: Shape, shower: Shower, starts: Starts, cpus: tuple[int, ...]
    ) -> None:
        """Raises OSError."""
        self._loop = loop
        self._host = host
        self._share = share
        self._shower = shower
        self._starts = starts
        self.group = share.group
        self.shape = shape
        self.cpus = cpus
        self.platform = ""
        self.meter = SentryMeter()
        self.account = Account(self.group, shape.memory_mb, self.meter)
        with contextlib.ExitStack() as undo:
            self.shown: dict[str, int] = {}
            for name in walls.SHOWN:
                self.shown[name] = new_tree()
                undo.callback(os.close, self.shown[name])
            self._said, self.errors = os.pipe2(os.O_CLOEXEC)
            undo.pop_all()
        os.set_blocking(self._said, False)
        self._text = bytearray()
        self._times_over = 0
        self._files_bytes = 0
        self._asked_files = self._files_known = False
        self._boot_bound: Timer | None = None

    @property
    def uid(self) -> int:
        """Returns the id, as the keeper counts them, that is 0 in its jail."""
        return self._host.ids.base + self._share.slot if self._host.ids.count > 1 else 0

    def started(self, sandbox: Sandbox, pid: int, pidfd: int, platform: str, groups: list[int]) -> None:
        """Sends init its descriptors, for which it waits on the control socket."""
        self.platform = platform
        sandbox.loop.watch(self._said, READ, lambda _: self._listen())
        packets.send(sandbox.control, {"stdio": True}, [sandbox.inside_channel.fileno(), sandbox.inside_output])
        self._hand_over(sandbox, groups)
        sandbox.cloned(pid, pidfd)
        self._boot_bound = sandbox.loop.after(BOOT_BOUND_S, lambda: _consider_boot(sandbox))

    def not_started(self, sandbox: Sandbox, groups: list[int]) -> None:
        self._hand_over(sandbox, groups)

    def ready(self, sandbox: Sandbox) -> None:
        self._starts.is_ready(self)

    def show(self, sandbox: Sandbox, shows: Sequence[Show], then: Callable[[OSError | None], None]) -> None:
        self._shower.show(sandbox.pidfd, shows, {walls.SHOWN[name]: fd for name, fd in self.shown.items()})
        then(None)

    def end(self, sandbox: Sandbox) -> None:
        self.meter.look()
        kernel.pidfd_kill(sandbox.pidfd)

    def told(self, sandbox: Sandbox, message: dict[str, Any]) -> bool:
        if "weighed" in message:
            self._files_bytes, self._asked_files, self._files_known = message["weighed"], False, True
        return "weighed" in message

    def ending(self, status: int) -> dict[str, Any] | None:
        return None

    def gone(self, sandbox: Sandbox, then: Callable[[], None]) -> None:
        self._listen()
        if sandbox.ready_at is None and not sandbox.broken:
            sandbox.broken = self._complaint()
        self._starts.is_dead(self, sandbox.broken, was_ready=sandbox.ready_at is not None)
        then()

    def release(self) -> None:
        if self._boot_bound is not None:
            self._boot_bound.cancel()
        self._loop.forget(self._said)
        for fd in (self._said, self.errors, *self.shown.values()):
            if fd >= 0:
                os.close(fd)
        self._host.give_back(self._share)

    def check_memory(self, sandbox: Sandbox) -> None:
        """Ends a sandbox over its limit. Memory and files come as one sum; init is asked for the files when needed."""
        limit, held = self.shape.memory_mb * MIB, self.meter.held()
        if held > limit and not self._asked_files:
            self._asked_files = True
            with contextlib.suppress(OSError):  # it ends, or listens to nobody: both limits together hold all the same
                packets.send(sandbox.control, {"weigh": True})
        self.meter.used.saw(max(0, held - self._files_bytes))
        files = min(self._files_bytes, held)
        beyond_both = held > limit + self.shape.disk_mb * MIB
        self._times_over = self._times_over + 1 if beyond_both or (self._files_known and held - files > limit) else 0
        if sandbox.forced is None and (self._times_over >= _LOOKS or self.account.out_of_memory()):
            sandbox.end_for("memory", f"over the memory limit of {self.shape.memory_mb} MiB")

    def _hand_over(self, sandbox: Sandbox, groups: list[int]) -> None:
        os.close(self.errors)
        self.errors = -1
        sandbox.handed_over([-1, -1, -1, *groups])

    def _complaint(self) -> str:
        """Returns the last words of runsc."""
        return messages.plain(self._text.decode("utf-8", "replace")) or "runsc ended without a word"

    def _listen(self) -> None:
        """Reads all errors, so that no writer waits for us, and keeps the last of them."""
        for _ in range(_PIECES_A_TURN):
            try:
                data = os.read(self._said, 1 << 16)
            except OSError:
                return
            if not data:
                self._loop.forget(self._said)
                return
            self._text = (self._text + data)[-_TEXT_KEPT:]


def _consider_boot(sandbox: Sandbox) -> None:
    if sandbox.ready_at is None and not sandbox.dead:
        sandbox.broken = f"it did not start within {BOOT_BOUND_S:.0f} s"
        sandbox.kill()
