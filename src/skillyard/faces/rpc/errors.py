"""The errors of the protocol itself, and how any error becomes a JSON-RPC ``error`` object."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from skillyard.domain.errors import SkillyardError

logger = logging.getLogger("skillyard.rpc")

INTERNAL = -32603


class ParseError(SkillyardError):
    """The body is not JSON text that we take (JSON-RPC 2.0 §5.1)."""

    type = "ParseError"
    code = -32700


class InvalidRequest(SkillyardError):
    """JSON, but no Request object, or no batch that we take (JSON-RPC 2.0 §4, §6).

    ``id`` is the request's own when it could be read, else None.
    """

    type = "InvalidRequest"
    code = -32600

    def __init__(self, message: str, *, id: Any = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.id = id


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


def error_object(exc: Exception) -> dict[str, Any]:
    """Returns the ``error`` member for ``exc``: ``code``, ``message``, ``data`` with at least ``type``.

    What is our own fault is logged under an incident id, and the caller learns that id alone
    (skills-protocol §6: no internals leaked).
    """
    if isinstance(exc, SkillyardError) and exc.code != INTERNAL:
        return {"code": exc.code, "message": exc.message, "data": exc.data()}
    incident = secrets.token_hex(8)
    logger.error("internal fault", extra={"incident": incident}, exc_info=exc)
    data = {"type": "InternalError", "incident": incident}
    return {"code": INTERNAL, "message": f"internal error (incident {incident})", "data": data}
