"""The errors that a client raises: ``RpcError`` is a server's answer, and the rest happens on the way there.

A server's answer is the exception that a runtime in process raises: both are of :mod:`skillyard.domain.errors`.
A run that fails is not an error: look at :attr:`Run.status`, or let :meth:`Run.raise_for_status` raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import (
    BlobNotFound,
    BundleRefused,
    Busy,
    EnvironmentNotFound,
    FileNotFound,
    Forbidden,
    IdempotencyConflict,
    InternalError,
    InvalidRequest,
    JobNotFound,
    MethodNotFound,
    NotExecutable,
    ParseError,
    ProtectionMissing,
    QuotaExceeded,
    RunNotFound,
    SecretNotFound,
    SessionNotFound,
    SkillNotFound,
    TaskNotFound,
    Unauthenticated,
    UnsupportedLanguage,
    VersionTaken,
)
from skillyard.domain.errors import (
    Fault as ClientError,
)
from skillyard.domain.errors import (
    InvalidInput as InvalidParams,
)
from skillyard.domain.errors import (
    SandboxFault as SandboxError,
)
from skillyard.domain.errors import (
    SkillyardError as RpcError,
)
from skillyard.domain.errors import (
    StoreFault as StoreError,
)

__all__ = [
    "BadArgument",
    "BadReply",
    "BlobNotFound",
    "BundleRefused",
    "Busy",
    "ClientError",
    "ConnectionFailed",
    "ConnectionLost",
    "EnvironmentNotFound",
    "FileNotFound",
    "Forbidden",
    "IdempotencyConflict",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "JobNotFound",
    "MethodNotFound",
    "NotExecutable",
    "ParseError",
    "ProtectionMissing",
    "QuotaExceeded",
    "ResponseTimeout",
    "RpcError",
    "RunFailed",
    "RunNotFound",
    "SandboxError",
    "SecretNotFound",
    "SessionNotFound",
    "SkillNotFound",
    "StoreError",
    "TaskNotFound",
    "Unauthenticated",
    "Unreachable",
    "UnsupportedLanguage",
    "VersionTaken",
    "rpc_error",
]


class BadArgument(ClientError, ValueError):
    """A value given to the client itself cannot be used: a URL, a token, a range."""


class ConnectionFailed(ClientError):
    """No answer came. The message names the server, the reason and the remedy."""


class Unreachable(ConnectionFailed):
    """Nothing was sent: no server is known, the name does not resolve, or nobody listens there."""


class ConnectionLost(ConnectionFailed):
    """The connection broke. It is not known whether the server acted on the request."""


class ResponseTimeout(ConnectionFailed):
    """The server kept silent for longer than the timeout."""


class BadReply(ConnectionFailed):
    """The answer does not follow the Skills Protocol, or has other bytes than were announced."""


class RunFailed(ClientError):
    """Raised by :meth:`Run.raise_for_status` only. ``run`` is that run, which is a mapping too."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        error = run.get("error") or {}
        self.run = run
        self.type = str(error.get("type", "Error"))
        super().__init__(f"{run['run_id']} failed: {self.type}: {error.get('message', run['summary'])}")


_BY_CODE: dict[int, type[RpcError]] = {
    kind.code: kind
    for kind in (
        ParseError,
        InvalidRequest,
        MethodNotFound,
        InvalidParams,
        InternalError,
        Unauthenticated,
        Forbidden,
        ProtectionMissing,
        Busy,
    )
}
_BY_TYPE: dict[str, type[RpcError]] = {
    kind.type: kind
    for kind in (
        SkillNotFound,
        BlobNotFound,
        FileNotFound,
        RunNotFound,
        TaskNotFound,
        JobNotFound,
        SessionNotFound,
        SecretNotFound,
        EnvironmentNotFound,
        NotExecutable,
        UnsupportedLanguage,
        IdempotencyConflict,
        QuotaExceeded,
        BundleRefused,
        VersionTaken,
        SandboxError,
        StoreError,
    )
}


def rpc_error(code: int, message: str, data: Mapping[str, Any] | None = None) -> RpcError:
    """Returns the exception for ``data.type``, else for ``code`` (skills-protocol §6)."""
    kind = _BY_TYPE.get(str((data or {}).get("type"))) or _BY_CODE.get(code, RpcError)
    return kind.received(code, message, data or {})
