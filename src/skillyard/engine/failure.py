"""Why a run failed, as ``error`` tells it (skills-protocol §4, rows 7, 11 and 12)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skillyard.domain.outcome import ERROR_TYPES, Outcome
from skillyard.engine.redact import Redaction
from skillyard.engine.text import clean, cut_tail, shorten

MAX_MESSAGE = 2048
MAX_TRACEBACK = 2048
SUMMARY_CHARACTERS = 280


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed, ready for ``error``; ``reason`` goes into the record."""

    type: str
    message: str
    outcome: Outcome | None = None
    traceback: str = ""

    def as_dict(self) -> dict[str, str]:
        error = {"type": self.type, "message": shorten(self.message, MAX_MESSAGE)}
        if self.traceback:
            error["traceback"] = _end(self.traceback, MAX_TRACEBACK)
        return error

    def redacted(self, redaction: Redaction) -> Failure:
        """Without secret values; before anything is cut, so that no piece of one is left."""
        if not redaction:
            return self
        message, traceback = redaction.text(self.message), redaction.text(self.traceback)
        return replace(self, message=message, traceback=traceback)

    def summary(self) -> str:
        lines = self.message.strip().splitlines()
        return f"{self.type}: {lines[0] if lines else 'no message'}"[:SUMMARY_CHARACTERS]


def cancelled(reason: str) -> Failure:
    message = f"the run was cancelled: {reason}" if reason else "the run was cancelled"
    return Failure(ERROR_TYPES[Outcome.CANCELLED], clean(message), Outcome.CANCELLED)


def _end(text: str, max_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= max_bytes else cut_tail(data[-max_bytes:]).decode()
