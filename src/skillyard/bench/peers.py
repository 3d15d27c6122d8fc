"""Others who can do the job: a plain interpreter without walls, and sandboxes that are installed here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from skillyard.bench.helpers import FORKING, SANDLOCK, Helpers
from skillyard.bench.job import DATA, PLAIN, SUM, Job, WrongResult
from skillyard.bench.subject import Blocking, Skipped, Subject

PYTHON = "python"
PYTHON_BARE = "python_bare"
BUBBLEWRAP = "bubblewrap"
_BARE = ("-I", "-S")
"""Without the site module, whose .pth files can cost more than all the rest."""
_SITE = """
import json, os, site
print(json.dumps([name for path in site.getsitepackages() if os.path.isdir(path) for name in os.listdir(path)]))
"""
"""Debian's interpreters name directories that a virtual environment does not have."""
_CLEAN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
_PATIENCE_S = 60.0
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
_SLOW = 6
"""In how many rounds a slow peer takes part once."""

Run = Callable[[Sequence[str]], str]
"""From a command to what it prints. Raises OSError, WrongResult."""


class Missing(Exception):
    """A peer cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """``prepare`` gives what wraps an interpreter's command, or raises Missing."""

    id: str
    title: str
    walls: str
    prepare: Callable[[ExitStack, Path], Run]
    every: int = 1
    loaded: bool = False
    flags: tuple[str, ...] = ("-I",)
    python: str = ""

    def job(self, run: Run, job: Job, packages: Path | None, python: str) -> Callable[[], None]:
        command = [self.python or python, *self.flags, "-c", PLAIN, job.request(packages)]

        def work() -> None:
            job.check(json.loads(run(command)))

        return work


@contextmanager
def open_peers(home: Path, packages: Path | None) -> Iterator[tuple[list[Subject], list[Skipped]]]:
    """Who is here, tried once, and who is not. ``packages`` holds numpy and pandas, when they are wanted."""
    found: list[Subject] = []
    skipped: list[Skipped] = []
    python = clean_interpreter(home)
    with ExitStack() as stack:
        for peer in PEERS:
            try:
                run = peer.prepare(stack, home)
                work = peer.job(run, SUM, None, python)
                work()
            except (Missing, OSError, ValueError, WrongResult, subprocess.SubprocessError) as error:
                skipped.append(Skipped(peer.id, peer.title, " ".join(str(error).split())[:200]))
                continue
            found.append(
                Subject(
                    peer.id,
                    peer.title,
                    peer.walls,
                    SUM,
                    Blocking(work),
                    every=peer.every,
                    loaded=peer.loaded,
                    peer=True,
                )
            )
            if packages and peer.id in (PYTHON, BUBBLEWRAP):
                with_data = Blocking(peer.job(run, DATA, packages, python))
                found.append(
                    Subject(f"{peer.id}_data", peer.title, peer.walls, DATA, with_data, block=1, every=_SLOW, peer=True)
                )
        yield found, skipped


def interpreter() -> str:
    """The one below any virtual environment, which sandboxes run as well."""
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
    """Standard output of a command that succeeds. Raises OSError, WrongResult, TimeoutExpired."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, env=environment
    )
    if done.returncode:
        raise WrongResult(f"{Path(command[0]).name} ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def readable(home: Path) -> list[str]:
    """What an interpreter needs to see, and where the bench's packages lie."""
    return [path for path in (*_SYSTEM, sys.base_prefix, str(home)) if Path(path).exists()]


def _plain(_: ExitStack, __: Path) -> Run:
    return lambda command: printed(command, _CLEAN)


def _bubblewrap(_: ExitStack, home: Path) -> Run:
    binds = [word for path in readable(home) for word in ("--ro-bind", path, path)]
    wrap = [
        _installed("bwrap", "bubblewrap"),
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace"),  # noqa: S108 - inside
        *binds,
        *("--chdir", "/workspace", "--"),
    ]
    return lambda command: printed([*wrap, *command])


def _srt(_: ExitStack, home: Path) -> Run:
    srt = _installed("srt", "npm install -g @anthropic-ai/sandbox-runtime")
    settings = home / "srt.json"
    settings.write_text(
        json.dumps(
            {
                "network": {"allowedDomains": [], "deniedDomains": []},
                "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []},
            }
        )
    )
    return lambda command: printed([srt, "--settings", str(settings), "-c", shlex.join(command)])


def _sandlock(stack: ExitStack, home: Path) -> Run:
    if find_spec("sandlock") is None:
        raise Missing("not installed: pip install sandlock, beside skillyard")
    return _helpers(stack, Helpers(SANDLOCK, json.dumps([*readable(home), "/etc", "/dev", "/proc"])))


def _forked(stack: ExitStack, _: Path) -> Run:
    return _helpers(stack, Helpers(FORKING, flags=("-I", "-S")))


def _helpers(stack: ExitStack, helpers: Helpers) -> Run:
    stack.callback(helpers.close)
    return helpers.run


def _docker(_: ExitStack, __: Path) -> Run:
    docker = _installed("docker", "docker")
    listed = subprocess.run(
        [docker, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True, timeout=20
    )
    if listed.returncode:
        raise Missing(listed.stderr.strip()[-200:])
    images = [name for name in listed.stdout.split() if name.startswith("python:")]
    if not images:
        raise Missing("no image to run: docker pull python:3.11-slim")
    wrap = [
        *(docker, "run", "--rm", "--network", "none", "--read-only", "--memory", "512m", "--pids-limit", "256"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534", sorted(images)[0]),
    ]
    return lambda command: printed([*wrap, *command])


def _installed(program: str, how: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"not installed ({how})")
    return path


PEERS = (
    Peer(PYTHON, "python3 -I", "none", _plain, loaded=True),
    Peer(PYTHON_BARE, "python3 -I -S", "none", _plain, flags=_BARE),
    Peer("fork", "a fork of a warm python3", "none", _forked, flags=_BARE),
    Peer(BUBBLEWRAP, "bubblewrap, python3 -I", "namespaces", _bubblewrap, loaded=True),
    Peer("bubblewrap_bare", "bubblewrap, python3 -I -S", "namespaces", _bubblewrap, flags=_BARE),
    Peer("sandlock", "sandlock, python3 -I", "Landlock, seccomp", _sandlock, every=2, loaded=True),
    Peer("srt", "srt, python3 -I", "bubblewrap, seccomp, proxy", _srt, every=_SLOW, loaded=True),
    Peer("docker", "docker run, python3 -I", "namespaces, cgroups, seccomp", _docker, _SLOW, True, python="python3"),
)
