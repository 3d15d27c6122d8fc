"""A command that listens: its ports, the sign that it is ready, its restarts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.values import dataclass

NEVER, ON_FAILURE = "never", "on-failure"
RESTARTS = (NEVER, ON_FAILURE)
MOST_PORTS = 16
MOST_PATTERN = 200
STARTUP_S = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """The wishes of a service.

    It is ready when its output has ``ready_pattern``; without one, when all of ``ports`` listen. One that is not ready
    after ``startup_s`` has failed. ``restart`` says whether it is started again when it fails.
    """

    ports: tuple[int, ...] = ()
    ready_pattern: str = ""
    startup_s: float = STARTUP_S
    restart: str = NEVER

    def stored(self) -> dict[str, Any]:
        """Returns the JSON form that :func:`from_stored` takes."""
        return {**asdict(self), "ports": list(self.ports)}

    def begun(self) -> dict[str, Any]:
        """Returns what the record of a run says of it before it was started."""
        return {"ports": list(self.ports), "restart": self.restart, "ready": False, "restarts": 0, "exit_code": None}


def from_stored(stored: Mapping[str, Any]) -> Service:
    """Returns the service of :meth:`Service.stored`, which was checked when it came."""
    return Service(**{**stored, "ports": tuple(stored["ports"])})


def from_params(params: Mapping[str, Any]) -> Service:
    """Returns the service that checked parameters mean. Raises InvalidInput."""
    ports: Sequence[int] = params.get("expose_ports") or ()
    if len(set(ports)) < len(ports):
        raise InvalidInput("expose_ports", "must name each port once", shape(list(ports)))
    return Service(
        ports=tuple(ports),
        ready_pattern=_pattern(params.get("ready_pattern") or ""),
        startup_s=params.get("startup_timeout_sec") or STARTUP_S,
        restart=params.get("restart") or NEVER,
    )


def _pattern(text: str) -> str:
    """Returns a regular expression that Python knows for bytes.

    So it is matched, inside of the sandbox alone.
    """
    try:
        # For text, a range of all characters without regard to case takes ten thousand times as long to compile.
        re.compile(text.encode())
    except (re.error, ValueError, OverflowError, RecursionError):
        rule = "must be a regular expression as Python's re knows it for bytes"
        raise InvalidInput("ready_pattern", rule, shown(text)) from None
    return text
