"""The errors that a client raises. ``RpcError`` mirrors the server's error object; the rest happens on the way there.

A run that fails is not an error: look at :attr:`Run.status`, or let :meth:`Run.raise_for_status` raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The root of everything below; ``message`` is one line, fit for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadArgument(ClientError, ValueError):
    """A value given to the client itself cannot be used: a URL, a token, a range."""


class ConnectionFailed(ClientError):
    """No answer came. The message names the server, the reason and the remedy."""


class Unreachable(ConnectionFailed):
    """Nothing was sent: no server is known, the name does not resolve, or nobody listens there."""


class ConnectionLost(ConnectionFailed):
    """The connection broke after it was made; whether the server acted on the request is not known."""


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


class RpcError(ClientError):
    """A JSON-RPC error object. ``type`` is ``data.type``, the stable name to tell errors apart by."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data: dict[str, Any] = dict(data or {})
        self.type = str(self.data.get("type", type(self).__name__))


class ParseError(RpcError):
    """The request was not valid JSON."""


class InvalidRequest(RpcError):
    """The request was not a valid JSON-RPC request."""


class MethodNotFound(RpcError):
    """The server does not have this method."""


class InvalidParams(RpcError):
    """``data["field"]`` is the path of the parameter where the server knows it."""


class SkillNotFound(InvalidParams):
    """The skill or its version does not exist, or the token may not use it."""


class BlobNotFound(InvalidParams):
    """The blob does not exist, has expired, or belongs to another principal."""


class FileNotFound(InvalidParams):
    """The skill does not have this file."""


class RunNotFound(InvalidParams):
    """The run does not exist, or belongs to another principal."""


class EnvironmentNotFound(InvalidParams):
    """The environment is not defined or not built."""


class NotExecutable(InvalidParams):
    """The skill is text for the model to read, not code."""


class UnsupportedLanguage(InvalidParams):
    """The server runs Python only."""


class IdempotencyConflict(InvalidParams):
    """The key was used before with other parameters."""


class QuotaExceeded(InvalidParams):
    """Storing this would exceed a limit; nothing was stored."""


class BundleRefused(InvalidParams):
    """``data["findings"]`` are objects with ``level``, ``file``, ``line``, ``rule``, ``message`` and ``mend``."""


class VersionTaken(InvalidParams):
    """``data["stored_digest"]`` and ``data["offered_digest"]`` tell the two contents apart."""


class Unauthenticated(RpcError):
    """The token is missing or not valid."""


class Forbidden(RpcError):
    """The token lacks the scope for this call."""


class ProtectionMissing(RpcError):
    """The host cannot enforce a protection that was demanded."""


class Busy(RpcError):
    """Too many runs wait or work at once; the call may be repeated later."""

    @property
    def retry_after_ms(self) -> int:
        """Milliseconds after which to come again."""
        return int(self.data.get("retry_after_ms", 1000))


class InternalError(RpcError):
    """The server failed."""


class SandboxError(InternalError):
    """The machinery of sandboxes failed."""


class StoreError(InternalError):
    """A store of the server cannot be read or written."""


_BY_CODE: dict[int, type[RpcError]] = {
    -32700: ParseError,
    -32600: InvalidRequest,
    -32601: MethodNotFound,
    -32602: InvalidParams,
    -32603: InternalError,
    -32001: Unauthenticated,
    -32003: Forbidden,
    -32004: ProtectionMissing,
    -32005: Busy,
}
_BY_TYPE: dict[str, type[RpcError]] = {
    cls.__name__: cls
    for cls in (
        SkillNotFound,
        BlobNotFound,
        FileNotFound,
        RunNotFound,
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
    """The most fitting class: by ``data.type`` where we know it, else by ``code`` (skills-protocol §6)."""
    known = _BY_TYPE.get(str((data or {}).get("type")))
    return (known or _BY_CODE.get(code, RpcError))(code, message, data)
