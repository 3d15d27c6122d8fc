"""The strict reader of an init's words to its keeper.

Packages that were imported ahead have been in an init's memory, and before gVisor's stands a sentry, which foreign code
may have got hold of: nothing that comes from there is believed to have a form. What is said is about the sandbox that
says it, and about no other.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from skillyard.ipc import channel
from skillyard.ipc.channel import BadMessage

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


def hear(sock: socket.socket) -> dict[str, Any] | None:
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
