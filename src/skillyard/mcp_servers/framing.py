"""JSON-RPC messages of a program, one a line, within bounds.

A line is measured before it is parsed, parsed before the SDK sees it, and what nobody waits for is counted: a program
that writes a line without an end, JSON that is nested too deep or notifications without an end breaks its connection.
"""

from __future__ import annotations

from typing import Any

from skillyard.domain.errors import ToolServerFault
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.ports.tools import LinkBounds

_PASSED_ON = frozenset({"notifications/tools/list_changed", "notifications/subscriptions/acknowledged"})
"""Notifications that mean something here. Others, such as log messages and progress, are dropped."""


class Frames:
    """Takes the bytes of a program, and gives the messages that are of use."""

    def __init__(self, bounds: LinkBounds) -> None:
        self._bounds = bounds
        self._line = bytearray()
        self._idle = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Returns the messages that are whole now. Raises ToolServerFault for a breach."""
        *whole, rest = data.split(b"\n")
        found = []
        for piece in whole:
            self._add(piece)
            line, self._line = bytes(self._line), bytearray()
            if line.strip() and (message := self._message(line)) is not None:
                found.append(message)
        self._add(rest)
        return found

    def _add(self, piece: bytes) -> None:
        if len(self._line) + len(piece) > self._bounds.message_bytes:
            raise ToolServerFault(f"it sent a message of more than {self._bounds.message_bytes} bytes")
        self._line += piece

    def _message(self, line: bytes) -> dict[str, Any] | None:
        try:
            message = parse_json(line)
        except BadJson as bad:
            raise ToolServerFault(f"it sent a line on standard output that is not a message: {bad}") from None
        if not isinstance(message, dict):
            raise ToolServerFault("it sent a line on standard output that is not a message: it is not an object")
        if "method" not in message:
            self._idle = 0
            return message
        self._idle += 1
        if self._idle > self._bounds.flood:
            raise ToolServerFault(f"it sent more than {self._bounds.flood} notifications and requests in a row")
        return message if "id" in message or message["method"] in _PASSED_ON else None
