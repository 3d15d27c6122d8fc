"""Refusals that HTTP itself has words for, and the status that goes with any error."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, ClassVar

from skillyard.domain.errors import (
    BlobNotFound,
    BundleRefused,
    Busy,
    Forbidden,
    InvalidInput,
    QuotaExceeded,
    SkillNotFound,
    SkillyardError,
    TaskNotFound,
    Unauthenticated,
    VersionTaken,
)


class HttpRefusal(SkillyardError):
    """A request that never gets as far as a method. ``status`` is the HTTP status it is answered with."""

    code = -32600
    status: ClassVar[int] = 400

    def headers(self) -> Mapping[str, str]:
        return {}


class BadRequest(HttpRefusal):
    type = "BadRequest"


class NotFound(HttpRefusal):
    type = "NotFound"
    status = 404


class MethodNotAllowed(HttpRefusal):
    type = "MethodNotAllowed"
    status = 405

    def __init__(self, *allowed: str) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"this path takes {self.allowed} only")

    def headers(self) -> Mapping[str, str]:
        return {"allow": self.allowed}


class SlowBody(HttpRefusal):
    type = "RequestTimeout"
    status = 408


class PayloadTooLarge(HttpRefusal):
    type = "PayloadTooLarge"
    status = 413

    def __init__(self, maximum: int, mend: str = "") -> None:
        super().__init__(f"the body is larger than {maximum} bytes{mend}", maximum=maximum)


class UnsupportedMediaType(HttpRefusal):
    type = "UnsupportedMediaType"
    status = 415


class RangeNotSatisfiable(HttpRefusal):
    type = "RangeNotSatisfiable"
    status = 416

    def __init__(self, size: int) -> None:
        super().__init__(f"the range is outside the {size} bytes", size_bytes=size)
        self.size = size

    def headers(self) -> Mapping[str, str]:
        return {"content-range": f"bytes */{self.size}"}


class Misdirected(HttpRefusal):
    """The Host header names somebody else: a browser that was lured here by DNS rebinding."""

    type = "Misdirected"
    status = 421


class HeadTooLarge(HttpRefusal):
    type = "HeadTooLarge"
    status = 431


class NotImplementedHere(HttpRefusal):
    """A transfer coding that we do not know (RFC 9112 §6.1)."""

    type = "NotImplemented"
    status = 501


class VersionNotSupported(HttpRefusal):
    type = "VersionNotSupported"
    status = 505

    def headers(self) -> Mapping[str, str]:
        return {"connection": "close"}


class Unavailable(Busy):
    """The server as a whole cannot take this now: it starts, it stops, or it is full."""

    type = "Unavailable"

    def __init__(self, message: str, retry_after_ms: int, **details: Any) -> None:
        super().__init__(message, retry_after_ms)
        self.details.update(details)


_STATUSES: tuple[tuple[type[SkillyardError], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (Unavailable, 503),
    (Busy, 429),
    (BlobNotFound, 404),
    (SkillNotFound, 404),
    (TaskNotFound, 404),
    (VersionTaken, 409),
    (BundleRefused, 422),
    (QuotaExceeded, 413),
    (InvalidInput, 400),
)


def status_of(exc: Exception) -> int:
    """Returns the HTTP status for an error that is the answer to a whole HTTP request."""
    if isinstance(exc, HttpRefusal):
        return exc.status
    return next((status for kind, status in _STATUSES if isinstance(exc, kind)), 500)


def headers_of(exc: Exception) -> dict[str, str]:
    """Returns the headers that HTTP wants beside that status."""
    if isinstance(exc, HttpRefusal):
        return dict(exc.headers())
    if isinstance(exc, Busy):
        return {"retry-after": str(max(1, ceil(exc.retry_after_ms / 1000)))}
    if isinstance(exc, Unauthenticated):
        return {"www-authenticate": _challenge(exc)}
    return {}


def _challenge(exc: Unauthenticated) -> str:
    """Returns the challenge; without an error code when no credentials came (RFC 6750 §3)."""
    bearer = 'Bearer realm="skillyard"'
    bearer += ', error="invalid_token"' if exc.details.get("presented") else ""
    about = exc.details.get("resource_metadata")
    return f'{bearer}, resource_metadata="{about}"' if about else bearer
