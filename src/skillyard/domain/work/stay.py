"""A sandbox that its caller keeps, and in which it starts programs at will."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import InvalidInput, shape
from skillyard.values import dataclass

MOST_PAIRS = 64
MOST_METADATA = 16 * 1024
"""Characters of all names and values together."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The wishes of its caller.

    It ends ``seconds`` after it was asked for, unless its caller moves that. With ``pauses`` it is paused then, and
    with ``wakes`` a request for it lets it go on. ``template`` and ``metadata`` are the caller's own words.
    """

    seconds: float
    template: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    pauses: bool = False
    wakes: bool = False

    def stored(self) -> dict[str, Any]:
        """Returns the JSON form, which has the names of the fields."""
        return {**asdict(self), "metadata": dict(self.metadata)}

    def begun(self, now: float, terminals: bool, ports: bool) -> dict[str, Any]:
        """Returns what the record of its run says. ``until`` is in seconds of CLOCK_BOOTTIME, as ``now`` is."""
        return {"until": now + self.seconds, "terminals": terminals, "ports": ports, **self.stored()}


def check_metadata(given: Mapping[str, object]) -> dict[str, str]:
    """Returns metadata. Raises InvalidInput for what is not text, and for too much of it."""
    checked = {}
    for name, value in given.items():
        if not isinstance(value, str):
            raise InvalidInput("metadata", "must have values that are text", shape(value))
        check_unicode("metadata", name)
        check_unicode("metadata", value)
        checked[name] = value
    if len(checked) > MOST_PAIRS or sum(len(name) + len(value) for name, value in checked.items()) > MOST_METADATA:
        raise InvalidInput("metadata", f"must be at most {MOST_PAIRS} pairs of {MOST_METADATA} characters together")
    return checked
