"""An environment that a sandbox can be made with, and the interpreter that it is built for."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path

from skillyard.domain.errors import SkillyardError
from skillyard.domain.package.environment import BuiltEnvironment, Lock, Wanted
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.spec import EnvironmentRef, SandboxSpec
from skillyard.engine.backends import Offer
from skillyard.ports.sandbox import Foreign
from skillyard.values import dataclass


class BuildFailed(SkillyardError):
    """The packages of an environment could not be had.

    The message names them, the cause and the remedy. ``log`` is the blob with the whole log, when there is one.
    """

    type = "SandboxError"

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, **({"log": log} if log else {}))
        self.log = log


@dataclass(frozen=True, slots=True)
class Environment:
    """A ready environment.

    ``distributions`` are normalized names with their installed versions. ``built`` is None for the standard library
    alone.
    """

    ref: EnvironmentRef
    distributions: Mapping[str, str] = field(default_factory=dict)
    built: BuiltEnvironment | None = None

    @property
    def digest(self) -> str:
        """Of the lock; empty for the standard library alone."""
        return self.built.digest if self.built is not None else ""


def base_interpreter() -> str:
    """The interpreter below any virtual environment: the one that sandboxes run."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


@lru_cache
def platform_name() -> str:
    """Interpreter, version, system and C library: what decides which wheels fit."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    libc = "-".join(filter(None, platform.libc_ver()[:1])) or "libc"
    return f"{sys.implementation.name}-{version}-{sysconfig.get_platform()}-{libc}"


def standard_library(name: str) -> EnvironmentRef:
    """No packages at all."""
    return EnvironmentRef(name, digest=Lock("", platform_name()).digest)


async def platform_of(offer: Offer, name: str, language: str = "python", image: str = "") -> Platform | None:
    """Returns what packages of a run are built for; None stands for this server.

    ``name`` is that of its environment. Raises InvalidInput, SandboxFault.
    """
    backend = offer.backend
    if not isinstance(backend, Foreign):
        return None
    return await backend.platform_of(SandboxSpec(environment=EnvironmentRef(name), language=language, image=image))


async def wanted_on(wanted: Wanted, offer: Offer, name: str, language: str = "python", image: str = "") -> Wanted:
    """Returns the requirements as those of a run there. Raises as :func:`platform_of` does."""
    return replace(wanted, platform=await platform_of(offer, name, language, image)) if wanted else wanted


def uv_program() -> Path:
    """uv's own executable, which is a dependency of ours. Raises BuildFailed."""
    import uv

    try:
        return Path(os.path.realpath(uv.find_uv_bin()))
    except FileNotFoundError as error:
        raise BuildFailed(f"uv is missing ({error}): reinstall skillyard") from error
