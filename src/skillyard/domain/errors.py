"""The errors of skillyard, raised alike by a runtime, a client and every face.

``type`` is the stable name that a face sends as ``data.type``; ``code`` is the JSON-RPC code (skills-protocol §6,
JSON-RPC 2.0 §5.1). Our own codes stay within -32000 to -32019. A run that fails raises no error: see
:mod:`skillyard.domain.work.record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class Fault(Exception):
    """The root of all errors; ``message`` is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SkillyardError(Fault):
    """An error that a method answers with; ``type`` is the stable name to tell errors apart by."""

    type: str = "InternalError"
    code: int = -32603

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    @property
    def data(self) -> dict[str, Any]:
        """The JSON-RPC ``error.data`` object: ``type`` and the details."""
        return {"type": self.type, **self.details}

    @classmethod
    def received(cls, code: int, message: str, data: Mapping[str, Any]) -> SkillyardError:
        """Returns the error that a server sent as a JSON-RPC error object."""
        error = cls.__new__(cls, message)
        SkillyardError.__init__(error, message)
        error.details = {name: value for name, value in data.items() if name != "type"}
        error.type, error.code = str(data.get("type", cls.type)), code
        return error


class ParseError(SkillyardError):
    """The request is not JSON text within the bounds of a server (JSON-RPC 2.0 §5.1)."""

    type = "ParseError"
    code = -32700


class InvalidRequest(SkillyardError):
    """The request is not a valid JSON-RPC request or batch.

    ``id`` is its own where it could be read.
    """

    type = "InvalidRequest"
    code = -32600
    id: Any = None

    def __init__(self, message: str, *, id: Any = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.id = id


class MethodNotFound(SkillyardError):
    """The server does not have this method."""

    type = "MethodNotFound"
    code = -32601


class InvalidInput(SkillyardError):
    """A value breaks a rule.

    ``data["field"]`` is the path of the parameter, such as ``limits.timeout_ms``.
    """

    type = "InvalidParams"
    code = -32602
    field: str = ""
    rule: str = ""
    within: str | None = None
    """Where the field was found, when its own name came from outside."""

    def __init__(self, field: str, rule: str, got: str | None = None, **details: Any) -> None:
        """``got`` is of :func:`shown`, or of :func:`shape` where the field may hold a secret."""
        super().__init__(f"{field}: {rule}" + (f" (got {got})" if got else ""), field=field, **details)
        self.field = field
        self.rule = rule

    def below(self, place: str) -> Self:
        """Returns the error as that of a field of ``place``, such as ``steps[2]``."""
        self.field = self.details["field"] = f"{place}.{self.field}"
        self.message = f"{place}.{self.message}"
        self.args = (self.message,)
        return self

    def forget_value(self) -> None:
        """Takes the value out of the message, and a name that nobody knows."""
        if self.within is not None:
            self.field = self.details["field"] = self.within
        self.message = f"{self.field}: {self.rule}"
        self.args = (self.message,)


class SkillNotFound(InvalidInput):
    """The skill or its version does not exist, or the principal may not use it."""

    type = "SkillNotFound"


class BlobNotFound(InvalidInput):
    """The blob does not exist, has expired, or belongs to another principal."""

    type = "BlobNotFound"


class BundleRefused(InvalidInput):
    """An uploaded bundle is not a readable archive or not a valid skill.

    ``data["findings"]`` are objects with ``level``, ``file``, ``line``, ``rule``, ``message`` and ``mend``.
    """

    type = "BundleRefused"


class VersionTaken(InvalidInput):
    """The version has other content already, published or in a directory: publish a higher one.

    ``data["stored_digest"]`` and ``data["offered_digest"]`` tell the two contents apart.
    """

    type = "VersionTaken"


class EnvironmentNotFound(InvalidInput):
    """The environment is not defined or not built."""

    type = "EnvironmentNotFound"


class FileNotFound(InvalidInput):
    """The skill does not have this file."""

    type = "FileNotFound"


class RunNotFound(InvalidInput):
    """The run does not exist, or belongs to another principal."""

    type = "RunNotFound"


class TaskNotFound(InvalidInput):
    """The task does not exist, or belongs to another agent."""

    type = "TaskNotFound"


class SessionNotFound(InvalidInput):
    """The agent has no live session of this alias."""

    type = "SessionNotFound"


class JobNotFound(InvalidInput):
    """The job does not exist, or belongs to another agent."""

    type = "JobNotFound"


class ToolNotFound(InvalidInput):
    """The MCP server or its tool does not exist, is held back, or the principal may not use it."""

    type = "ToolNotFound"


class SecretNotFound(InvalidInput):
    """The secret or its version does not exist."""

    type = "SecretNotFound"


class NotExecutable(InvalidInput):
    """The skill is text for the model to read, not code."""

    type = "NotExecutable"


class UnsupportedLanguage(InvalidInput):
    """The server runs Python only."""

    type = "UnsupportedLanguage"


class IdempotencyConflict(InvalidInput):
    """The key was used before with other parameters."""

    type = "IdempotencyConflict"


class QuotaExceeded(InvalidInput):
    """Storing this would exceed a limit; nothing was stored."""

    type = "QuotaExceeded"


class OutputDropped(InvalidInput):
    """The output before ``data["first"]`` is not kept any more: read on from there."""

    type = "OutputDropped"

    def __init__(self, first: int) -> None:
        super().__init__("offset", f"only the output from {first} on is kept; read on from there", first=first)

    @property
    def first(self) -> int:
        """The offset of the first byte that is kept."""
        return int(self.details.get("first", 0))


class Unauthenticated(SkillyardError):
    """The token is missing or not valid."""

    type = "Unauthenticated"
    code = -32001


class Forbidden(SkillyardError):
    """The principal or its token lacks the scope for this call."""

    type = "Forbidden"
    code = -32003


class ProtectionMissing(SkillyardError):
    """The host cannot enforce a demanded protection.

    The message names the protection and the remedy.
    """

    type = "ProtectionMissing"
    code = -32004


class Busy(SkillyardError):
    """There are too many runs or calls; the call may be repeated after ``retry_after_ms``."""

    type = "Busy"
    code = -32005

    def __init__(self, message: str, retry_after_ms: int, **details: Any) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, **details)

    @property
    def retry_after_ms(self) -> int:
        """Milliseconds after which to come again."""
        return int(self.details.get("retry_after_ms", 1000))


class InternalError(SkillyardError):
    """The server failed."""


class SandboxFault(InternalError):
    """The sandbox machinery failed; what foreign code does is an outcome instead."""

    type = "SandboxError"


class BackendAway(SandboxFault):
    """The engine or server behind a backend does not answer. Its sandboxes may live on, and it may come back."""


class SandboxGone(SandboxFault):
    """The sandbox or the process does not exist any more."""


class SandboxCutOff(SandboxGone):
    """The connection to the sandbox broke, and nothing more can be told over it. The sandbox may live on."""


class GateFault(SandboxFault):
    """The gate, which is a sandbox's only way out, failed or knows no such session."""


class ToolServerFault(InternalError):
    """An MCP server could not be started, ended, or broke its protocol or a bound."""

    type = "ToolServerError"


class ValidatorFault(InternalError):
    """No process for hostile input can be started; nothing is accepted unchecked."""


class StoreFault(InternalError):
    """A store cannot be read or written."""

    type = "StoreError"


_SHOWN = 60


def shown(value: object) -> str:
    """Returns the value as an error repeats it: bounded, and without control characters. For fields that never hold a
    secret. A URL may hold a password all the same, so :func:`shape` describes it."""
    match value:
        case bool() | float():
            return repr(value).lower()
        case int() if -(10**20) < value < 10**20:
            return str(value)
        case str() if "://" not in value and "@" not in value:
            return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}… of {len(value)} characters"
        case _:
            return shape(value)


def shape(value: object) -> str:
    """How an error describes a value without repeating it: ``string of 12 characters``, ``integer``."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return f"string of {len(value)} characters"
        case list() | tuple():
            return f"array of {len(value)}"
        case dict():
            return f"object of {len(value)} keys"
        case bytes():
            return f"{len(value)} bytes"
        case _:
            return type(value).__name__
