"""The strict reader of an init's words to its keeper.

Packages that were imported ahead have been in an init's memory, and before gVisor's stands a sentry, which foreign code
may have got hold of: nothing that comes from there is believed to have a form. What is said is about the sandbox that
says it, and about no other.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from skillyard.ipc import channel, packets
from skillyard.ipc.channel import BadMessage
from skillyard.sandbox.native.keeper.watch.processes import children, status
from skillyard.sandbox.native.linux import kernel

TEXT_KEPT = 400
MOST_BYTES = 16 * 1024
"""Bytes of one message: so few that neither nesting nor numbers hurt the parser."""
_MOST = 1 << 62
_MOST_STATUS = 0xFFFF

Form = Mapping[str, type]

FORMS: tuple[Form, ...] = (
    {"ready": bool},
    {"broken": str},
    {"idle_worker_gone": int, "cpu": float, "rss": int},
    {"not_lent": str},
    {"failed": str, "why": str},
    {"ended": str, "status": int, "cpu": float, "rss": int},
    {"weighed": int},
    {"end_tree": int},
)
"""The forms of messages, told apart by their first fields. The last two are gVisor's and landlock's."""


def hear_init(sock: socket.socket) -> dict[str, Any] | None:
    """Returns the next message, None at the end; init has no descriptors to give.

    Raises BlockingIOError when there is none yet, OSError, and BadMessage.
    """
    got = channel.receive(sock, MOST_BYTES, fds=0)
    return None if got is None else read(got[0])


def read(said: dict[str, Any]) -> dict[str, Any]:
    """Returns the message. Raises BadMessage for an object of another form, and nothing else."""
    form = next((form for form in FORMS if next(iter(form)) in said), None)
    if form is None or said.keys() != form.keys():
        raise BadMessage("its message has no meaning")
    told = {name: _value(said[name], kind) for name, kind in form.items()}
    if not all(0 <= told.get(name, 0) <= _MOST_STATUS for name in ("status", "idle_worker_gone")):
        raise BadMessage("it gave a wrong wait status")
    return told


def plain(text: str) -> str:
    """Returns the end of a text on one line and printable, as operators and records show it."""
    letters = "".join(letter if letter.isprintable() else " " for letter in text[-4 * TEXT_KEPT :])
    return " ".join(letters.split())[-TEXT_KEPT:]


def _value(value: object, kind: type) -> Any:
    if kind is str and isinstance(value, str):
        return plain(value)
    if kind is bool and value is True:
        return value
    number = (kind is int and type(value) is int) or (kind is float and type(value) in (int, float))
    if number and isinstance(value, int | float) and 0 <= value < _MOST:
        return kind(value)
    raise BadMessage("its message has a field of another form")


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


def hear_zygote(sock: socket.socket) -> Said | None:
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
            return Said(Word.FAULT, _plain_zygote(text))
        case {"failed": str(text)} if not fds:
            return Said(Word.NOT_CLONED, _plain_zygote(text))
        case {"pid": int(pid)}:
            return Said(Word.CLONED, pid=pid, pidfd=fds[0] if fds else -1)
    raise BadMessage("its message has no meaning")


def _plain_zygote(text: str) -> str:
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
