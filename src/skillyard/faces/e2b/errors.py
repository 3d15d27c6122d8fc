"""The shapes in which E2B tells errors, at its API and at its daemon, which speaks Connect.

An SDK chooses its exception by the HTTP status, or by the code of Connect, and shows the message.
"""

from __future__ import annotations

from typing import ClassVar

from skillyard.domain.errors import (
    BackendAway,
    Busy,
    EnvironmentNotFound,
    FileNotFound,
    Forbidden,
    InvalidInput,
    ProtectionMissing,
    QuotaExceeded,
    RunNotFound,
    SandboxGone,
    SkillyardError,
    Unauthenticated,
)
from skillyard.engine.services.sandboxes import PauseRefused
from skillyard.faces.http.errors import HttpRefusal, Unavailable, headers_of, status_of
from skillyard.faces.http.replies import JSON
from skillyard.faces.rpc.wire import dumps

NOT_FOUND, ALREADY_EXISTS, INVALID = "not_found", "already_exists", "invalid_argument"
UNIMPLEMENTED, UNAUTHENTICATED, DEADLINE = "unimplemented", "unauthenticated", "deadline_exceeded"
UNAVAILABLE, INTERNAL, EXHAUSTED, DENIED = "unavailable", "internal", "resource_exhausted", "permission_denied"
PRECONDITION = "failed_precondition"
_STATUS = {
    NOT_FOUND: 404,
    ALREADY_EXISTS: 409,
    INVALID: 400,
    UNIMPLEMENTED: 501,
    UNAUTHENTICATED: 401,
    DEADLINE: 504,
    UNAVAILABLE: 503,
    INTERNAL: 500,
    EXHAUSTED: 429,
    DENIED: 403,
    PRECONDITION: 400,
}
"""The HTTP status of each code in an answer that is not a stream (connectrpc.com/docs/protocol)."""
_CODES: tuple[tuple[type[SkillyardError], str], ...] = (
    (Unauthenticated, UNAUTHENTICATED),
    (Forbidden, DENIED),
    (FileNotFound, NOT_FOUND),
    (QuotaExceeded, EXHAUSTED),
    (ProtectionMissing, PRECONDITION),
    (Busy, UNAVAILABLE),
    (InvalidInput, INVALID),
)
_GONE = 502
_FULL = 507


class ApiRefusal(HttpRefusal):
    """A refusal with the status that the API of E2B has for it."""

    type = "E2bRefusal"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.told: int = status


class NotHere(ApiRefusal):
    """Something of E2B that this server does not have; the message names the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(400, f"{message}; docs/e2b.md tells what differs")


class RpcRefusal(SkillyardError):
    """A refusal with a code of Connect."""

    type = "E2bRefusal"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.rpc = code


class NotRunning(SkillyardError):
    """The sandbox of a request has ended, never was, or belongs to somebody who knows its token."""

    type = "E2bNotRunning"
    status: ClassVar[int] = _GONE

    def __init__(self, sandbox_id: str) -> None:
        super().__init__("The sandbox was not found")
        self.sandbox_id = sandbox_id


Told = tuple[int, dict[str, str], bytes]
"""Status, headers and body of an answer."""


def api_refusal(exc: Exception) -> Told:
    """Returns the answer of the API: an object with ``code`` and ``message``."""
    status = _status(exc)
    content = {"code": status, "message": _message(exc)}
    if isinstance(exc, NotRunning):
        content["sandboxId"] = exc.sandbox_id
    return _told(status, content, exc)


def rpc_refusal(exc: Exception) -> Told:
    """Returns the answer of Connect to a call that is not a stream."""
    if isinstance(exc, NotRunning | HttpRefusal | Unavailable):
        return api_refusal(exc)
    content = rpc_error(exc)
    return _told(_STATUS[content["code"]], dict(content), exc)


def rpc_error(exc: Exception) -> dict[str, str]:
    """Returns the error that ends a stream of Connect."""
    return {"code": code_of(exc), "message": _message(exc)}


def code_of(exc: Exception) -> str:
    """Returns the code of Connect for an error."""
    if isinstance(exc, RpcRefusal):
        return exc.rpc
    if isinstance(exc, NotRunning | SandboxGone):
        return UNAVAILABLE
    return next((code for kind, code in _CODES if isinstance(exc, kind)), INTERNAL)


def _status(exc: Exception) -> int:
    match exc:
        case ApiRefusal():
            return exc.told
        case RpcRefusal():
            return _STATUS[exc.rpc]
        case NotRunning() | SandboxGone():
            return _GONE
        case RunNotFound() | EnvironmentNotFound() | FileNotFound():
            return 404
        case PauseRefused():
            return 400
        case QuotaExceeded():
            return _FULL if exc.details.get("field") in ("path", "content", "disk") else 400
        case BackendAway() | ProtectionMissing():
            return 503
    return status_of(exc)


def _message(exc: Exception) -> str:
    return exc.message if isinstance(exc, SkillyardError) else "the server failed"


def _told(status: int, content: dict[str, object], exc: Exception) -> Told:
    body = dumps(content)
    headers = {} if isinstance(exc, ApiRefusal | NotRunning | RpcRefusal) else headers_of(exc)
    headers.pop("www-authenticate", None)  # no browser shall ask its user for a password here
    return status, {"content-type": JSON, "content-length": str(len(body)), **headers}, body
