"""The baseline: the same job by an interpreter of its own for each run, without skillyard and without any walls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from skillyard.bench.job import DATA, PLAIN, SUM, Job, WrongResult
from skillyard.bench.subject import Blocking, Subject

PYTHON = "python"
PYTHON_BARE = "python_bare"
SLOW = 6
"""The number of rounds in which a slow subject takes part once."""
BARE = ("-I", "-S")
"""Without the site module, whose .pth files can cost more than all the rest."""
_SITE = """
import json, os, site
print(json.dumps([name for path in site.getsitepackages() if os.path.isdir(path) for name in os.listdir(path)]))
"""
"""Debian's interpreters name directories that a virtual environment does not have."""
_CLEAN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
_PATIENCE_S = 60.0

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns what it prints. Raises OSError, WrongResult."""


def baselines(python: str, packages: Path | None) -> list[Subject]:
    """Returns the plain interpreters; ``packages`` holds numpy and pandas, when they are wanted."""
    found = [
        Subject(PYTHON, "python3 -I", "none", SUM, job_of([python, "-I"], SUM), loaded=True, peer=True),
        Subject(PYTHON_BARE, "python3 -I -S", "none", SUM, job_of([python, *BARE], SUM), peer=True),
    ]
    if packages:
        doing = job_of([python, "-I"], DATA, packages)
        found.append(Subject(f"{PYTHON}_data", "python3 -I", "none", DATA, doing, block=1, every=SLOW, peer=True))
    return found


def job_of(python: Sequence[str], job: Job, packages: Path | None = None, run: Run | None = None) -> Blocking:
    """Returns what does the job with a new interpreter. ``run`` starts its command, within walls perhaps."""
    command = [*python, "-c", PLAIN, job.request(packages)]
    run = run or (lambda command: printed(command, _CLEAN))
    return Blocking(lambda: job.check(json.loads(run(command))))


def interpreter() -> str:
    """Returns the path of the interpreter below any virtual environment, which sandboxes run as well."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def clean_interpreter(home: Path) -> str:
    """Returns the interpreter of a new virtual environment with empty site-packages. So the comparison holds no cost of
    a version manager's shim or of an installation's .pth files. Raises WrongResult."""
    place = home / "clean"
    printed([interpreter(), "-I", "-m", "venv", "--without-pip", str(place)])
    python = str(place / "bin" / "python3")
    seen: list[str] = json.loads(printed([python, "-I", "-c", _SITE]))
    if seen:
        raise WrongResult(f"the baseline is not clean: {', '.join(seen)[:200]}")
    return python


def printed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Returns the standard output of a command that succeeds. Raises OSError, WrongResult, TimeoutExpired."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, env=environment
    )
    if done.returncode:
        raise WrongResult(f"{Path(command[0]).name} ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout
