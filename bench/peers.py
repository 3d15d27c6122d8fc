"""Others who can do the job: sandboxes that are installed here, and a fork of a warm interpreter."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from skillyard.bench.installations import BARE, SLOW, Run, job_of, printed
from skillyard.bench.subject import DATA, SUM, Skipped, Subject, WrongResult

BUBBLEWRAP = "bubblewrap"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")


class Missing(Exception):
    """A peer cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """``prepare`` returns what wraps an interpreter's command, or raises Missing."""

    id: str
    title: str
    walls: str
    prepare: Callable[[ExitStack, Path], Run]
    every: int = 1
    loaded: bool = False
    flags: tuple[str, ...] = ("-I",)
    python: str = ""

    def subjects(self, run: Run, python: str, packages: Path | None) -> Iterator[Subject]:
        """Yields the peer doing each job that it is compared in. Raises what its first job raises."""
        command = [self.python or python, *self.flags]
        doing = job_of(command, SUM, None, run)
        doing.work()
        yield Subject(self.id, self.title, self.walls, SUM, doing, every=self.every, loaded=self.loaded, peer=True)
        if packages and self.id == BUBBLEWRAP:
            data = job_of(command, DATA, packages, run)
            yield Subject(f"{self.id}_data", self.title, self.walls, DATA, data, block=1, every=SLOW, peer=True)


@contextmanager
def open_peers(home: Path, python: str, packages: Path | None) -> Iterator[tuple[list[Subject], list[Skipped]]]:
    """Yields the peers that are here, tried once, and those that are not. ``python`` is the clean interpreter,
    ``packages`` holds numpy and pandas, when they are wanted."""
    found: list[Subject] = []
    skipped: list[Skipped] = []
    with ExitStack() as stack:
        for peer in PEERS:
            try:
                found += list(peer.subjects(peer.prepare(stack, home), python, packages))
            except (Missing, OSError, ValueError, WrongResult, subprocess.SubprocessError) as error:
                skipped.append(Skipped(peer.id, peer.title, " ".join(str(error).split())[:200]))
        yield found, skipped


def readable(home: Path) -> list[str]:
    """What an interpreter needs to see, and where the bench's packages lie."""
    return [path for path in (*_SYSTEM, sys.base_prefix, str(home)) if Path(path).exists()]


def _bubblewrap(_: ExitStack, home: Path) -> Run:
    binds = [word for path in readable(home) for word in ("--ro-bind", path, path)]
    wrap = [
        _installed("bwrap", "bubblewrap"),
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace"),
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


SANDLOCK = """
import json, sys
from sandlock import Sandbox
readable = json.loads(sys.argv[1])
for line in sys.stdin:
    box = Sandbox(fs_readable=readable, fs_writable=["/tmp"], max_memory="512M", max_processes=256, clean_env=True)
    result = box.run(json.loads(line), timeout=60)
    text = result.stdout if result.success else result.stderr
    print(json.dumps([result.success, text.decode("utf-8", "replace")]), flush=True)
"""
"""As its users keep it: the library imported once. Its argument is what the sandbox may read."""

FORKING = """
import json, os, sys
for line in sys.stdin:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        request = json.loads(json.loads(line)[-1])
        names = {}
        exec(request["code"], names)
        os.write(write, json.dumps(names["main"](request["args"])).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 65536).decode()
    os.close(read)
    os.waitpid(pid, 0)
    print(json.dumps([True, text]), flush=True)
"""
"""The floor of what skillyard does: a fork of a warm interpreter, and no wall, limit or record at all."""


class Helpers:
    """Idle processes of one ``source``; safe to use from several threads."""

    def __init__(self, source: str, argument: str = "", flags: Sequence[str] = ()) -> None:
        self._command = [sys.executable, *flags, "-c", source, argument]
        self._idle: deque[subprocess.Popen[str]] = deque()

    def run(self, command: Sequence[str]) -> str:
        """What the command prints. Raises WrongResult."""
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = self._started()
        try:
            stdin, stdout = _pipes(helper)
            stdin.write(json.dumps(list(command)) + "\n")
            stdin.flush()
            ok, text = json.loads(stdout.readline() or '[false, "it ended"]')
        except (OSError, ValueError) as error:
            _end(helper)
            raise WrongResult(str(error)) from error
        self._idle.append(helper)
        if not ok:
            raise WrongResult(str(text).strip()[-200:])
        return str(text)

    def close(self) -> None:
        while self._idle:
            _end(self._idle.pop())

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )


def _end(helper: subprocess.Popen[str]) -> None:
    helper.kill()
    helper.wait()
    for pipe in _pipes(helper):
        pipe.close()


def _pipes(helper: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert helper.stdin is not None
    assert helper.stdout is not None
    return helper.stdin, helper.stdout


PEERS = (
    Peer("fork", "a fork of a warm python3", "none", _forked, flags=BARE),
    Peer(BUBBLEWRAP, "bubblewrap, python3 -I", "namespaces", _bubblewrap, loaded=True),
    Peer("bubblewrap_bare", "bubblewrap, python3 -I -S", "namespaces", _bubblewrap, flags=BARE),
    Peer("sandlock", "sandlock, python3 -I", "Landlock, seccomp", _sandlock, every=2, loaded=True),
    Peer("srt", "srt, python3 -I", "bubblewrap, seccomp, proxy", _srt, every=SLOW, loaded=True),
    Peer("docker", "docker run, python3 -I", "namespaces, cgroups, seccomp", _docker, SLOW, True, python="python3"),
)
