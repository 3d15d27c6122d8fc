"""A guest in a process of its own: the plain interpreter, a copied tree, the walls' directories in a temporary one.

The process is a fork of one that has read the guest's modules, as in a zygote: a new interpreter would cost more than
most tests.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import skillyard.guest
from skillyard.domain.sandbox.frames import (
    BlobBegin,
    BlobData,
    BlobEnd,
    Failure,
    Frame,
    FrameLimits,
    FrameReader,
    Result,
)
from skillyard.domain.sandbox.spec import encode_request

PYTHON = os.environ.get("SKILLYARD_GUEST_PYTHON") or str(getattr(sys, "_base_executable", sys.executable))
"""The interpreter of the sandbox, which may be another than the host's."""
PREFIX = "blob:0123456789abcdef0123456789abcdef-"


FORKING = r"""
import os, sys

tree = sys.argv[1]
sys.path.insert(0, tree)
import inside.command, inside.main, inside.process

while said := os.read(0, 65536):
    request, channel, log, temporary, home = said.decode().split("\0")
    if (pid := os.fork()) == 0:
        nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for given, fd in ((nothing, 0), (out, 1), (out, 2)):
            os.dup2(given, fd)
        os.closerange(3, 64)
        os.environ.clear()
        os.environ.update(TMPDIR=temporary, HOME=home)
        sys.argv = [tree, "call", request, channel]
        inside.command.main()
    os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Forks:
    """Guests one after the other, each a fork of the same process."""

    def __init__(self, tree: Path) -> None:
        command = [PYTHON, "-I", "-S", "-c", FORKING, str(tree)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, bufsize=0)

    def call(self, *paths: Path) -> int:
        """Returns the exit status of a call with these paths: request, channel, log, TMPDIR and HOME."""
        ours, theirs = self._process.stdin, self._process.stdout
        assert ours is not None
        assert theirs is not None
        ours.write("\0".join(map(str, paths)).encode())
        assert select.select([theirs], [], [], 60)[0], "the guest does not end"
        return int(theirs.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Ran:
    """What came of one call: the frames, stdout and stderr as one text, the exit status."""

    frames: list[Frame]
    final: Result | Failure | None
    logs: str
    status: int

    @property
    def value(self) -> dict[str, Any]:
        assert isinstance(self.final, Result), f"{self.final}\n{self.logs}"
        return self.final.value()

    @property
    def failure(self) -> Failure:
        assert isinstance(self.final, Failure), f"{self.final}\n{self.logs}"
        return self.final

    @property
    def blobs(self) -> dict[int, tuple[str, bytes]]:
        """Kind and bytes of every complete blob."""
        kinds = {frame.n: frame.kind for frame in self.frames if isinstance(frame, BlobBegin)}
        pieces: dict[int, list[bytes]] = {n: [] for n in kinds}
        for frame in self.frames:
            if isinstance(frame, BlobData):
                pieces[frame.n].append(frame.data)
        return {f.n: (kinds[f.n], b"".join(pieces[f.n])) for f in self.frames if isinstance(f, BlobEnd)}


@dataclass
class GuestBox:
    """A sandbox without walls, for one test."""

    root: Path
    tree: Path
    forks: Forks
    skills: dict[str, dict[str, str | None]] = field(default_factory=dict)
    blobs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    def mount_skill(self, name: str, files: Mapping[str, str], entry: str | None = "code/main.py") -> None:
        root = self.root / "skills" / name
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        self.skills[name.replace("-", "_")] = {"root": str(root), "entry": entry}

    def mount_blob(self, blob_id: str, data: bytes, kind: str = "text/plain") -> None:
        (self.root / "blobs" / blob_id).write_bytes(data)
        self.blobs[blob_id] = {"kind": kind, "size": len(data)}

    def request(self, code: str | None = None, **changes: Any) -> dict[str, Any]:
        return {
            "v": 1,
            "op": "call",
            "code": code,
            "skill": None,
            "entrypoint": "main",
            "args": {},
            "skills": self.skills,
            "blobs": self.blobs,
            "blob_prefix": PREFIX,
            "env": {},
            "max_blobs": 100,
            "workspace": str(self.workspace),
            "blob_root": str(self.root / "blobs"),
            **changes,
        }

    def call(self, code: str | None = None, **changes: Any) -> Ran:
        """Run ``code``, or the skill named by ``skill``, to its end."""
        return self.send(encode_request(self.request(code, **changes)))

    def send(self, request: bytes) -> Ran:
        (self.root / "request").write_bytes(request)
        channel = self.root / "channel"
        channel.write_bytes(b"")
        log = self.root / "log"
        log.write_bytes(b"")
        status = self.forks.call(self.root / "request", channel, log, self.root / "tmp", self.workspace)
        return self.ran(channel.read_bytes(), log.read_bytes(), status)

    def ran(self, channel: bytes, logs: bytes, status: int) -> Ran:
        reader = FrameReader(FrameLimits(states=100))
        frames = reader.feed(channel)
        return Ran(frames, reader.finish(), logs.decode(), status)


@pytest.fixture(scope="session")
def guest_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's package as a directory that Python runs, under another name than on the host."""
    tree = tmp_path_factory.mktemp("tree")
    source = Path(skillyard.guest.__file__).parent
    shutil.copytree(source, tree / "inside", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "__main__.py").write_text("from inside.command import main\nmain()\n")
    return tree


@pytest.fixture(scope="session")
def forks(guest_tree: Path) -> Iterator[Forks]:
    forks = Forks(guest_tree)
    yield forks
    forks.close()


@pytest.fixture
def box(tmp_path: Path, guest_tree: Path, forks: Forks) -> GuestBox:
    for name in ("workspace", "skills", "blobs", "tmp"):
        (tmp_path / name).mkdir()
    return GuestBox(tmp_path, guest_tree, forks)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody else takes meanwhile: it is bound, and can be bound again."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def drive(box: GuestBox) -> Callable[..., str]:
    """Runs a script that has the guest importable as ``inside``, as a backend would; gives what it printed."""

    def run(script: str, *arguments: str) -> str:
        source = f"import sys; sys.path.insert(0, {str(box.tree)!r})\n{script}"
        command = [PYTHON, "-I", "-S", "-c", source, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=box.root)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run
