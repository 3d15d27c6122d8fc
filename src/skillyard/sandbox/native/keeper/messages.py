"""The strict readers of messages from inits and zygotes to their keeper.

Packages that were imported ahead run in a zygote and have been in an init's memory, and foreign code may have taken
over the sentry before a gVisor init. So no message is trusted to have a form. A message of an init is about its own
sandbox only. A process that a zygote names must be one that the kernel knows as the zygote's own.
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
"""Bytes of one message. Neither nesting nor numbers hurt the parser within them."""
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
    {"end_stopped": int},
)
"""The forms of an init's messages, told apart by the first fields. The last three are gVisor's and landlock's."""


def hear_init(sock: socket.socket) -> dict[str, Any] | None:
    """Returns an init's next message, None at the end. Descriptors are refused.

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
    """Returns the end of a text, printable and on one line, for operators and records."""
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
    """The zygote serves clones."""
    IMPORTED = auto()
    """Its next module is imported; it waits to be told to go on."""
    FAULT = auto()
    """Its next module cannot be imported, with the reason; it ends."""
    CLONED = auto()
    NOT_CLONED = auto()


@dataclass(frozen=True, slots=True)
class Said:
    """A zygote's message: ``pid`` and perhaps ``pidfd`` with CLONED, ``text`` with faults.

    ``ready`` says that a clone's walls stand, where its first process does not say so itself.
    """

    word: Word
    text: str = ""
    pid: int = -1
    pidfd: int = -1
    ready: bool = False


def hear_zygote(sock: socket.socket) -> Said | None:
    """Returns a zygote's next message, None at the end. Stray descriptors are closed.

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
            return Said(Word.CLONED, pid=pid, pidfd=fds[0] if fds else -1, ready=message.get("ready") is True)
    raise BadMessage("its message has no meaning")


def _plain_zygote(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_MOST_TEXT])


def opened(told: int, group: int) -> int:
    """Opens our child in the process group ``group`` that its zygote knows as ``told``.

    The zygote knows the pid in its own pid namespace or the one above (NSpid in proc_pid_status(5)). Raises
    BadMessage, OSError.
    """
    for pid in children(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if str(told) in status(pid).get("NSpid", "").split()[-2:] and os.getpgid(pid) == group:
                return kernel.pidfd_open(pid)
    raise BadMessage("it spoke of a process that is not there")


def vouched(pidfd: int, group: int) -> int:
    """Returns the pid behind ``pidfd``, which must be in the process group ``group``.

    Nobody can put another's process there. Raises BadMessage.
    """
    pid = _pid_of(pidfd)
    try:
        if pid > 0 and os.getpgid(pid) == group:
            return pid
    except ProcessLookupError:
        pass
    raise BadMessage("it spoke of a process that is not its own")


def _pid_of(pidfd: int) -> int:
    """Returns the pid of a pidfd; -1 for a reaped process or another descriptor."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("Pid:")), -1)
