"""What it costs to begin: importing the package, and client commands from their start to their end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from skillyard.bench.subject import WrongResult

_PATIENCE_S = 60.0


def commands(data_dir: Path) -> Mapping[str, Sequence[str]]:
    """By title; client commands ask the server that runs on ``data_dir``."""
    skillyard = (sys.executable, "-m", "skillyard")
    asking = ("--data-dir", str(data_dir), "--json")
    return {
        "python3 -c pass": (sys.executable, "-c", "pass"),
        "import skillyard": (sys.executable, "-c", "import skillyard"),
        "skillyard version": (*skillyard, "version"),
        "skillyard runs list": (*skillyard, "runs", "list", *asking),
        "skillyard skill list": (*skillyard, "skill", "list", *asking),
        "skillyard blob list": (*skillyard, "blob", "list", *asking),
    }


def measure(data_dir: Path, times: int) -> dict[str, list[float]]:
    """Seconds by title, the commands taking turns. Raises WrongResult for one that fails."""
    wanted = commands(data_dir)
    found: dict[str, list[float]] = {title: [] for title in wanted}
    for command in wanted.values():
        _timed(command)  # the bytecode and the disk's cache
    for _ in range(times):
        for title, command in wanted.items():
            found[title].append(_timed(command))
    return found


def _timed(command: Sequence[str]) -> float:
    environment = {k: v for k, v in os.environ.items() if k not in ("SKILLYARD_URL", "SKILLYARD_TOKEN")}
    began = time.perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, env=environment
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise WrongResult(f"{' '.join(command[1:4])} ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
    return took
