"""The events of a run: an append-only list, numbered from 1, of bounded length."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.values import dataclass

MOST_EVENTS = 1000
DROPPED = "dropped"
"""The kind of the event that stands for those for which there was no room."""


@dataclass(frozen=True, slots=True)
class Event:
    """``at`` is in UTC seconds. ``kind`` is a status that the run got, or a word for another happening."""

    seq: int
    at: float
    kind: str
    data: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "at": self.at, "kind": self.kind, "data": self.data}


def next_event(last: int, at: float, kind: str, data: dict[str, Any]) -> Event | None:
    """Returns the event to add behind number ``last``; None when the list is full.

    The end always finds a place. The last event before it tells that others were dropped.
    """
    ends = kind in (RunStatus.COMPLETED, RunStatus.FAILED)
    if ends or last < MOST_EVENTS - 2:
        return Event(last + 1, at, kind, data)
    return Event(last + 1, at, DROPPED) if last == MOST_EVENTS - 2 else None


def of_end(record: RunRecord) -> dict[str, Any]:
    """Returns the data of the event that ends a run."""
    return {"outcome": record.outcome.value if record.outcome else None, "reason": record.reason}


def told_by(record: RunRecord) -> list[Event]:
    """Returns the events of a run that is owned by its server: its record tells all of them."""
    events = [Event(1, record.created_at, RunStatus.RUNNING.value)]
    if not record.status.live:
        at = record.created_at if record.ended_at is None else record.ended_at
        events.append(Event(2, at, record.status.value, of_end(record)))
    return events
