"""Every error that crosses a face. A failed run is not an error: see :mod:`skillyard.domain.work.outcome`.

``type`` is the stable name that a face sends as ``data.type``; ``code`` is the JSON-RPC code
(skills-protocol §6, JSON-RPC 2.0 §5.1). Our own codes stay within -32000 to -32019.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SkillyardError(Exception):
    """Something of ours went wrong; the message is fit for the caller."""

    type: ClassVar[str] = "InternalError"
    code: ClassVar[int] = -32603

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def data(self) -> dict[str, Any]:
        """The JSON-RPC ``error.data`` object: ``type`` and whatever the error knows besides."""
        return {"type": self.type, **self.details}


class InvalidInput(SkillyardError):
    """A value breaks a rule. ``field`` is a path (``limits.timeout_ms``); ``got`` is of :func:`shown`, or of
    :func:`shape` where the field may hold a secret."""

    type = "InvalidParams"
    code = -32602

    def __init__(self, field: str, rule: str, got: str | None = None, **details: Any) -> None:
        super().__init__(f"{field}: {rule}" + (f" (got {got})" if got else ""), field=field, **details)
        self.field = field
        self.rule = rule
        self.within: str | None = None
        """Where the field was found, when its own name came from outside."""

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
    """An uploaded bundle is not a readable archive or not a valid skill; ``findings`` say why."""

    type = "BundleRefused"


class VersionTaken(InvalidInput):
    """That version was published with other content, or is served from a directory: publish a higher one."""

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
    """Storing this would pass a limit; nothing was stored."""

    type = "QuotaExceeded"


class Unauthenticated(SkillyardError):
    """The token is missing or not valid."""

    type = "Unauthenticated"
    code = -32001


class Forbidden(SkillyardError):
    """The principal lacks the scope for this call."""

    type = "Forbidden"
    code = -32003


class ProtectionMissing(SkillyardError):
    """A protection that was asked for cannot be enforced here; the message names it and the remedy."""

    type = "ProtectionMissing"
    code = -32004


class Busy(SkillyardError):
    """Too many runs at once. ``retry_after_ms`` says when to come again."""

    type = "Busy"
    code = -32005

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.retry_after_ms = retry_after_ms


class SandboxFault(SkillyardError):
    """The sandbox machinery failed; what foreign code does is an outcome instead."""

    type = "SandboxError"


class SandboxGone(SandboxFault):
    """No such sandbox or process any more."""


class GateFault(SandboxFault):
    """The gate, which is a sandbox's only way out, failed or knows no such session."""


class ValidatorFault(SkillyardError):
    """No validator of schemas can be started; nothing is accepted unchecked."""


class StoreFault(SkillyardError):
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
