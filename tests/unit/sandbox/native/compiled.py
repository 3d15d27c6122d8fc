"""The compiled part of zygotes as this checkout's source makes it, for tests."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import skillyard
from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.namespaces import form
from skillyard.sandbox.native.inside.walls import READY
from skillyard.sandbox.native.linux import kernel

PROJECT = Path(skillyard.__file__).parents[2]
SOURCE = PROJECT / "src/skillyard/sandbox/native/inside/steps.c"
SOURCES = (SOURCE, SOURCE.with_name("first.c"))


def make_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """The compiled part as this checkout's source makes it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    target = tmp_path_factory.mktemp("steps") / "libsteps.so"
    subprocess.run(["cc", *hook().FLAGS, "-Werror", "-o", target, SOURCE], check=True, timeout=60)
    found = ctypes.PyDLL(str(target), use_errno=True)
    found.sy_check.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return found


def make_first(directory: Path) -> Path:
    """Makes the static first process as this checkout's source has it, and as nobody can read it."""
    target = directory / "first"
    command = ["cc", *hook().FIRST_FLAGS, "-Werror", "-o", target, SOURCE.with_name("first.c")]
    subprocess.run(command, check=True, timeout=60)
    target.chmod(0o111)
    return target


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", PROJECT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SERVE = """
import ctypes, os, signal, sys
sys.path.insert(0, sys.argv[1])
from skillyard.sandbox.native.inside import steps
if sys.argv[7]:
    ctypes.CDLL(None).unshare(int(sys.argv[7]))
part = steps.Compiled(sys.argv[2])
first = [sys.argv[5], sys.executable, "-I", "-c", sys.argv[6], "given"]
def work():
    while word := os.read(3, 100):
        if word == b"end":
            os._exit(7)
        if word == b"return":
            if os.fork() == 0:
                signal.pause()
            return
        if word == b"raise":
            raise ValueError
        os.write(1, b"worker: " + word)
    os._exit(0)
what, made = part.serve(int(sys.argv[3]), int(sys.argv[4]), b"", first, {"ONE": "1", "TWO": "é"}, work)
if what != steps.ENDED:
    if word := os.read(made.control, 100):
        os.write(made.control, b"init: " + word)
"""


EMPTY = form.encode(form.END)


@dataclass
class Serving:
    """A process in the serve loop, whose clones are this process's children."""

    sock: socket.socket
    server: int
    output: int = -1
    pid: int = 0
    control: socket.socket | None = None
    channel: socket.socket | None = None

    def clone(self, order: bytes, *more: int) -> dict[str, Any]:
        """Orders a clone; returns the answer."""
        self.control, control = packets.pair()
        self.channel, channel = socket.socketpair()
        self.output, output = os.pipe()
        for sock in (self.sock, self.control, self.channel):
            sock.settimeout(20)
        packets.send_raw(self.sock, order, [control.fileno(), channel.fileno(), output, *more])
        for sock in (control, channel):
            sock.close()
        os.close(output)
        got = packets.receive(self.sock)
        assert got is not None
        answer, fds = got
        self.pid = answer.get("pid", 0)
        for fd in fds:
            os.close(fd)
        return answer

    def make(self, order: bytes, *more: int) -> None:
        """Orders a clone whose walls stand when this returns."""
        answer = self.clone(order, *more)
        if order[:1] in (b"f", b"F"):
            assert answer == {"pid": self.pid, "ready": True}
        else:
            assert answer == {"pid": self.pid}
            assert self.hear() == READY

    def hear(self) -> bytes:
        assert self.control is not None
        return self.control.recv(1000)

    def let_go(self) -> None:
        assert self.control is not None
        assert self.channel is not None
        self.channel.close()
        self.control.close()
        os.close(self.output)

    def end(self) -> int:
        """Lets the clone's init go; returns its status."""
        self.let_go()
        return os.waitpid(self.pid, 0)[1]


SPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID
"""The first process of first.c is the first of its pid namespace, or ends at once."""
LATER = """
import json, os, sys
given = [os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in (16, 17)]
told = {"words": sys.argv[1], "size": len("".join(sys.argv[2:])), "given": given, "variables": dict(os.environ)}
told["open"] = sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd < 30)
os.write(17, json.dumps(told).encode())
sys.exit(3)
"""


@contextmanager
def server(library: ctypes.PyDLL, first: Path, spaces: int, own: str = "") -> Iterator[Serving]:
    """``own`` are the flags of the server's own namespaces."""
    ours, theirs = packets.pair()
    command = [sys.executable, "-I", "-c", SERVE, str(PROJECT / "src"), str(Path(library._name).parent)]
    rest = [str(theirs.fileno()), str(spaces), str(first), LATER, own]
    with subprocess.Popen([*command, *rest], pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        yield Serving(ours, process.pid)
        ours.close()
        assert process.wait(20) == 0
