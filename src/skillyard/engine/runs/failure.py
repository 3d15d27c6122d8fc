"""Why a run failed, as ``error`` tells it (skills-protocol §4, rows 7, 11 and 12)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skillyard.domain.sandbox.frames import Failure as Raised
from skillyard.domain.work.outcome import ERROR_TYPES, Outcome
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.text import clean, first, lines, shorten

MAX_MESSAGE = 2048
MAX_TRACEBACK = 2048
SUMMARY_CHARACTERS = 280
MAX_GUEST_MESSAGE = 8192
"""Characters above which the guest cuts a message."""

_HEAD = 640
_MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed, ready for ``error``; ``reason`` goes into the record."""

    type: str
    message: str
    outcome: Outcome | None = None
    traceback: str = ""

    def as_dict(self, redaction: Redaction = NOTHING) -> dict[str, str]:
        """Returns the error for the record; a type whose name holds a secret becomes ``Exception``."""
        error = {
            "type": self.type if redaction.text(self.type) == self.type else "Exception",
            "message": redaction.cut(self.message, lambda text: shorten(text, MAX_MESSAGE)),
        }
        if self.traceback:
            error["traceback"] = redaction.cut(self.traceback, lines(MAX_TRACEBACK, _HEAD))
        return error

    def summary(self, redaction: Redaction = NOTHING) -> str:
        return redaction.cut(self.message, lambda text: _summary(self.as_dict(redaction)["type"], text))

    def reason(self, redaction: Redaction = NOTHING, also: str = "") -> str:
        """Returns the reason for the record, with the further fault ``also``."""
        return redaction.cut("; ".join(filter(None, (self.message, also))), first(_MAX_REASON))


def _summary(kind: str, message: str) -> str:
    lines = message.strip().splitlines()
    return f"{kind}: {lines[0] if lines else 'no message'}"[:SUMMARY_CHARACTERS]


def of_guest(said: Raised, redaction: Redaction) -> Raised:
    """Reads the guest's report and takes secrets out. The guest knows of none, and cuts very long texts."""
    head, rest = said.message[:MAX_GUEST_MESSAGE], said.message[MAX_GUEST_MESSAGE:]
    message = redaction.text(head, whole=False) + redaction.text(rest) if rest else redaction.text(head)
    return replace(said, message=message, traceback=redaction.text(said.traceback))


def cancelled(reason: str) -> Failure:
    message = f"the run was cancelled: {reason}" if reason else "the run was cancelled"
    return Failure(ERROR_TYPES[Outcome.CANCELLED], clean(message), Outcome.CANCELLED)


class Refused(Exception):
    """A run that fails before it starts. ``type`` is one of the reserved error types (skills-protocol §4)."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(message)
        self.type = type_
        self.message = message
