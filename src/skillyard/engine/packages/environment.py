"""An environment that a sandbox can be made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skillyard.domain.errors import SkillyardError
from skillyard.domain.package.environment import BuiltEnvironment
from skillyard.domain.sandbox.spec import EnvironmentRef


class BuildFailed(SkillyardError):
    """The packages of an environment could not be had; the message says which, why, and what to do. ``log`` is the blob
    with the whole log, when there is one."""

    type = "SandboxError"

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, **({"log": log} if log else {}))
        self.log = log


@dataclass(frozen=True, slots=True)
class Environment:
    """A ready environment; ``distributions`` are normalized names with their installed versions, ``built`` what was
    built, None for the standard library alone."""

    ref: EnvironmentRef
    distributions: Mapping[str, str] = field(default_factory=dict)
    built: BuiltEnvironment | None = None

    @property
    def digest(self) -> str:
        """Of the lock; empty for the standard library alone."""
        return self.built.digest if self.built is not None else ""
