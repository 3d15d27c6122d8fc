"""What a keeper found out about its host."""

from __future__ import annotations

import os
from dataclasses import dataclass

from skillyard.sandbox.native.grounds.interpreter import Interpreter
from skillyard.sandbox.native.grounds.namespaces.zygote import Ids
from skillyard.sandbox.native.groups.groups import Cgroups
from skillyard.sandbox.native.inside import walls


@dataclass(frozen=True, slots=True)
class Host:
    """What was found about this host when the keeper started."""

    python: Interpreter
    ids: Ids
    cgroups: Cgroups
    landlock: int
    cpus: tuple[int, ...]
    proc_files: tuple[str, ...]
    proc_directories: tuple[str, ...]
    run_dir: str


def _for_everybody(path: str) -> bool:
    """What only root may touch, no sandbox can: root's id is mapped in none."""
    try:
        return bool(os.stat(path).st_mode & 0o007)
    except FileNotFoundError:
        return False


def masked_proc() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which of the dangerous parts of /proc exist on this kernel: files, directories."""
    files = tuple(name for name in walls.MASKED_FILES if _for_everybody(f"/proc/{name}"))
    directories = tuple(name for name in walls.MASKED_DIRECTORIES if os.path.isdir(f"/proc/{name}"))
    return files, directories
