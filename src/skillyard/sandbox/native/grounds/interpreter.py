"""Which directories of the host make a plain Python inside: found once, from the interpreter that asks."""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from dataclasses import dataclass

_PARTS = ("bin", "lib", "lib64", "include", "share", "ssl")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """``directories`` are bound as they are; ``masked`` hide the host's packages; ``packages`` is the one of them
    where an environment's packages are shown."""

    executable: str
    directories: tuple[str, ...]
    masked: tuple[str, ...]
    packages: str


def _base_executable() -> str:
    found: str = getattr(sys, "_base_executable", "") or sys.executable
    return os.path.realpath(found)


def describe() -> Interpreter:
    """The base interpreter behind this one, virtual environments seen through."""
    prefixes = sorted({sys.base_prefix, sys.base_exec_prefix})
    directories = [
        path
        for prefix in prefixes
        if prefix != "/usr"
        for part in _PARTS
        if os.path.isdir(path := os.path.join(prefix, part))
    ]
    roots = {*directories, "/usr/lib", "/usr/lib64"}
    masked = sorted(
        {
            os.path.realpath(path)
            for root in roots
            for pattern in ("python3*/site-packages", "python3*/dist-packages")
            for path in glob.glob(os.path.join(root, pattern))
        }
    )
    return Interpreter(_base_executable(), tuple(directories), tuple(masked), _home_of_packages(masked))


def _home_of_packages(masked: list[str]) -> str:
    """Where this interpreter itself looks for packages, among what exists; the first of all else."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = os.path.realpath(sysconfig.get_path("purelib", vars={"base": sys.base_prefix}))
    ranked = [own, *(path for path in masked if f"/{version}/" in path), "/usr/lib/python3/dist-packages", *masked]
    return next((path for path in ranked if path in masked), "")
