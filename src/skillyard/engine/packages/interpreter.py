"""The interpreter that sandboxes run, and what it is built for."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

from skillyard.domain.package.environment import Lock
from skillyard.domain.sandbox.spec import EnvironmentRef
from skillyard.engine.packages.environment import BuildFailed


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


def uv_program() -> Path:
    """uv's own executable, which is a dependency of ours. Raises BuildFailed."""
    import uv

    try:
        return Path(os.path.realpath(uv.find_uv_bin()))
    except FileNotFoundError as error:
        raise BuildFailed(f"uv is missing ({error}): reinstall skillyard") from error
