"""What a zygote tells the keeper. One that imports packages runs their code: all that it says is held against what it
may say, and which process it speaks of against what the kernel knows."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from skillyard.ipc import channel, packets
from skillyard.ipc.channel import BadMessage
from skillyard.sandbox.native.keeper.watch.processes import children, status
from skillyard.sandbox.native.linux import kernel

_MOST_TEXT = 500


class Word(Enum):
    READY = auto()
    """It serves clones."""
    IMPORTED = auto()
    """The next of its modules is there; it waits to be told to go on."""
    FAULT = auto()
    """The next of its modules cannot be imported, and why; it ends."""
    CLONED = auto()
    NOT_CLONED = auto()


@dataclass(frozen=True, slots=True)
class Said:
    """``pid`` with CLONED, and ``pidfd`` unless it could send none; ``text`` with FAULT and NOT_CLONED."""

    word: Word
    text: str = ""
    pid: int = -1
    pidfd: int = -1


def hear(sock: socket.socket) -> Said | None:
    """The next word; None at the end. Descriptors that belong to none are closed.

    Raises BlockingIOError when there is none yet, OSError, and BadMessage.
    """
    got = channel.receive(sock, packets.MAX_PACKET, fds=1)
    if got is None:
        return None
    try:
        return _said(*got)
    except BadMessage:
        for fd in got[1]:
            os.close(fd)
        raise


def _said(message: dict[str, Any], fds: list[int]) -> Said:
    match message:
        case {"ready": True} if not fds:
            return Said(Word.READY)
        case {"imported": True} if not fds:
            return Said(Word.IMPORTED)
        case {"fault": str(text)} if not fds:
            return Said(Word.FAULT, _plain(text))
        case {"failed": str(text)} if not fds:
            return Said(Word.NOT_CLONED, _plain(text))
        case {"pid": int(pid)}:
            return Said(Word.CLONED, pid=pid, pidfd=fds[0] if fds else -1)
    raise BadMessage("its message has no meaning")


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_MOST_TEXT])


def opened(told: int, group: int) -> int:
    """Returns a pidfd of our child in the process group ``group`` that its zygote knows as ``told``: in its own pid
    namespace or the one above (NSpid in proc_pid_status(5)). Raises BadMessage, OSError."""
    for pid in children(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if str(told) in status(pid).get("NSpid", "").split()[-2:] and os.getpgid(pid) == group:
                return kernel.pidfd_open(pid)
    raise BadMessage("it spoke of a process that is not there")


def vouched(pidfd: int, group: int) -> int:
    """The pid that the kernel knows for ``pidfd``, of a process in the process group ``group``: nobody can put
    another's process there. Raises BadMessage."""
    pid = _pid_of(pidfd)
    try:
        if pid > 0 and os.getpgid(pid) == group:
            return pid
    except ProcessLookupError:
        pass
    raise BadMessage("it spoke of a process that is not its own")


def _pid_of(pidfd: int) -> int:
    """-1 for what is no pidfd, or one of a process that was reaped (pidfd_open(2))."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("Pid:")), -1)
