"""The programs of the suite for the twin: their Python is run on a thread, over stand-ins for files, streams and time.

There is neither a process nor a shell: a program sees the twin's files through a small ``os`` and ``open``. What a
program needs beyond them exits 70, and its check is listed in ``test_twin_backend.py`` as one of a real kernel.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import io
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from skillyard.domain.errors import FileNotFound, SkillyardError
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.domain.work.record import Ending, Outcome
from skillyard.testing.twin_sandbox import TwinProcess
from skillyard.testing.twin_sandbox.files import Node

UNKNOWN = 70
_PASSED = {"json", "hashlib", "errno", "stat"}
"""Modules that programs get as they are."""
_BUFFER = 1 << 20


class _Exit(BaseException):
    """Ends the program's thread."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending


async def play(process: TwinProcess) -> Ending:
    """Plays a command of the suite; any other is not found, as in a shell."""
    program = process.program
    match program:
        case Argv(args=("python3", "-I", "-c", source, *words)) | Argv(args=("python3", "-c", source, *words)):
            world = _World(process, asyncio.get_running_loop(), words)
            ending = asyncio.get_running_loop().create_future()
            threading.Thread(target=world.run, args=(source, ending), daemon=True).start()
            try:
                return await asyncio.shield(ending)
            finally:
                world.over.set()
        case Argv(args=("pwd",), cwd=cwd):
            process.log(f"{cwd}\n".encode())
            return Ending(Outcome.EXIT, code=0)
        case Argv(args=(name, *_)):
            found = name.startswith("/") and _is_there(process, name)
            process.write(f"{name}: cannot be executed\n".encode(), Stream.STDERR)
            return Ending(Outcome.EXIT, code=126 if found else 127)
        case _:
            return Ending(Outcome.EXIT, code=UNKNOWN)


def _is_there(process: TwinProcess, path: str) -> bool:
    try:
        process.files.find(path)
    except FileNotFound:
        return path == "/etc"
    return True


class _World:
    """What one program sees. Its thread asks the event loop for everything that the twin holds."""

    def __init__(self, process: TwinProcess, loop: asyncio.AbstractEventLoop, words: list[str]) -> None:
        assert isinstance(process.program, Argv)
        self.over = threading.Event()
        self._process = process
        self._loop = loop
        self._cwd = process.program.cwd
        self._input = b""
        env = {"HOME": "/workspace", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **process.program.env}
        self._out = {1: _Out(self, Stream.STDOUT), 2: _Out(self, Stream.STDERR)}
        stdout, stderr = (SimpleNamespace(write=out.text, flush=out.flush, buffer=out) for out in self._out.values())
        stdin = _Lines(self)
        self._sys = SimpleNamespace(argv=["-c", *words], exit=self._exit, stdin=stdin, stdout=stdout, stderr=stderr)
        path = SimpleNamespace(exists=self._exists, isdir=self._is_dir, dirname=os.path.dirname, lexists=self._exists)
        self._os = SimpleNamespace(
            environ=env, path=path, getcwd=lambda: self._cwd, getpid=lambda: 2, write=self._write, open=self._raw,
            O_RDWR=os.O_RDWR, chdir=self._chdir, stat=self._stat, listdir=self._listdir, mkdir=self._mkdir,
            makedirs=self._mkdir, unlink=self._unlink, symlink=self._symlink, mkfifo=self._mkfifo, chmod=self._chmod,
            kill=self._kill, truncate=self._refuse, rename=self._rename, utime=self._refuse,
        )  # fmt: skip

    def run(self, source: str, ending: asyncio.Future[Ending]) -> None:
        told = Ending(Outcome.EXIT, code=0)
        try:
            exec(source, {"__name__": "__main__", "__builtins__": self._builtins()})
        except _Exit as left:
            told = left.ending
        except SystemExit as left:
            told = Ending(Outcome.EXIT, code=left.code if isinstance(left.code, int) else int(left.code is not None))
        except (_Missing, NotImplementedError, AttributeError) as missing:
            self._out[2].text(f"the twin has none: {missing}\n")
            told = Ending(Outcome.EXIT, code=UNKNOWN)
        except Exception as failure:  # noqa: BLE001 - as Python says it
            self._out[2].text(f"{type(failure).__name__}: {failure}\n")
            told = Ending(Outcome.EXIT, code=1)
        try:
            for out in self._out.values():
                out.flush()
        except _Exit as left:
            told = left.ending
        self._ask(lambda: None if ending.done() else ending.set_result(told), last=True)

    def _builtins(self) -> dict[str, Any]:
        own = {"open": self._open, "print": self._print, "input": self._line, "__import__": self._import}
        return vars(builtins) | own

    def _import(self, name: str, *_: object) -> Any:
        modules = {"os": self._os, "sys": self._sys, "time": SimpleNamespace(sleep=self._sleep)}
        if name in modules:
            return modules[name]
        if name in _PASSED:
            return __import__(name)
        try:
            source = self._files(lambda: self._process.files.read(f"/packages/{name}/__init__.py"))
        except FileNotFoundError:
            pass
        else:
            found: dict[str, Any] = {}
            exec(source, found)
            return SimpleNamespace(**found)
        if name.startswith("packaged"):
            raise ModuleNotFoundError(f"ModuleNotFoundError: {name}")
        raise _Missing(name)

    def _ask(self, question: Callable[[], Any], *, last: bool = False) -> Any:
        """Runs ``question`` on the loop, in which everything of the twin lives."""
        if self.over.is_set() and not last:
            raise _Exit(Ending(Outcome.CANCELLED))

        async def answer() -> Any:
            return question()

        try:
            asked = asyncio.run_coroutine_threadsafe(answer(), self._loop)
            return None if last else asked.result(60)
        except RuntimeError:  # the loop is closed
            raise _Exit(Ending(Outcome.CANCELLED)) from None

    def _files(self, question: Callable[[], Any]) -> Any:
        try:
            return self._ask(question)
        except FileNotFound as missing:
            raise FileNotFoundError(errno.ENOENT, missing.message) from None
        except SkillyardError as refused:
            raise OSError(errno.EACCES, refused.message) from None

    def _full(self, path: str | bytes) -> str:
        path = os.fsdecode(path)
        return path if path.startswith("/") else f"{self._cwd}/{path}"

    def _find(self, path: str) -> Node:
        found: Node = self._files(lambda: self._process.files.find(self._full(path)))
        if found.kind == "link":
            return self._find(found.target if found.target.startswith("/") else os.path.dirname(path) + found.target)
        return found

    def put(self, data: bytes, stream: Stream) -> None:
        self._ask(lambda: self._process.write(data, stream))

    def _write(self, fd: int, data: bytes) -> int:
        self._out[fd].flush()
        self.put(data, Stream.STDOUT if fd == 1 else Stream.STDERR)
        return len(data)

    def _print(self, *values: object, end: str = "\n", file: Any = None, flush: bool = False, **_: Any) -> None:
        out = file or self._sys.stdout
        out.write(" ".join(map(str, values)) + end)
        if flush:
            out.flush()

    def _more(self) -> bool:
        for out in self._out.values():
            out.flush()
        if self.over.is_set():
            raise _Exit(Ending(Outcome.CANCELLED))
        try:
            data = asyncio.run_coroutine_threadsafe(self._process.read(), self._loop).result(60)
        except (RuntimeError, asyncio.CancelledError):
            raise _Exit(Ending(Outcome.CANCELLED)) from None
        self._input += data
        return bool(data)

    def line(self) -> bytes:
        while b"\n" not in self._input and self._more():
            pass
        line, end, self._input = self._input.partition(b"\n")
        return line + end

    def _line(self, *_: object) -> str:
        line = self.line()
        if not line:
            raise EOFError
        return line.decode().rstrip("\n")

    def take(self, most: int = -1) -> bytes:
        while (most < 0 or not self._input) and self._more():
            pass
        data = self._input if most < 0 else self._input[:most]
        self._input = self._input[len(data) :]
        return data

    def _open(self, path: str, mode: str = "r", **_: Any) -> Any:
        if mode[0] == "r":
            node = self._find(path)
            if node.kind != "file":
                raise OSError(errno.EISDIR, path)
            return io.BytesIO(node.data) if "b" in mode else io.StringIO(node.data.decode())
        before = self._find(path).data if mode[0] == "a" and self._exists(path) else b""
        return _Written(self, self._full(path), before, binary="b" in mode)

    def place(self, path: str, node: Node) -> None:
        self._files(lambda: self._process.files.place(path, node))

    def _raw(self, path: str, flags: int) -> NoReturn:
        raise OSError(errno.EACCES, path)

    def _refuse(self, path: str, *_: object) -> NoReturn:
        raise OSError(errno.EACCES, path)

    def _exists(self, path: str) -> bool:
        try:
            self._find(path)
        except OSError:
            return False
        return True

    def _is_dir(self, path: str) -> bool:
        return self._exists(path) and self._find(path).kind == "directory"

    def _stat(self, path: str) -> Any:
        node = self._find(path)
        return SimpleNamespace(st_mode=node.mode, st_size=len(node.data))

    def _listdir(self, path: str = ".") -> list[str]:
        return list(self._find(path).below)

    def _chdir(self, path: str) -> None:
        self._cwd = self._full(path)

    def _mkdir(self, path: str, *_: object, **__: Any) -> None:
        self._files(lambda: self._process.files.make_directory(self._full(path)))

    def _unlink(self, path: str) -> None:
        self._files(lambda: self._process.files.remove(self._full(path)))

    def _symlink(self, target: str, path: str) -> None:
        self.place(self._full(path), Node("link", 0o777, target=target))

    def _mkfifo(self, path: str) -> None:
        self.place(self._full(path), Node("other", 0o644))

    def _chmod(self, path: str, mode: int) -> None:
        node = self._find(path)
        if node.read_only:
            raise OSError(errno.EACCES, path)
        node.mode = mode

    def _rename(self, path: str, other: str) -> None:
        node = self._find(path)
        self._unlink(path)
        self.place(self._full(other), node)

    def _kill(self, _pid: int, number: int) -> NoReturn:
        raise _Exit(Ending(Outcome.SIGNAL, signal=number))

    def _exit(self, code: int = 0) -> NoReturn:
        raise SystemExit(code)

    def _sleep(self, seconds: float) -> None:
        for out in self._out.values():
            out.flush()
        if self.over.wait(seconds):
            raise _Exit(Ending(Outcome.CANCELLED))


class _Missing(Exception):
    """A module that the twin has no stand-in for."""


class _Out:
    """A stream of output with a buffer, as Python has one for a pipe."""

    def __init__(self, world: _World, stream: Stream) -> None:
        self._world = world
        self._stream = stream
        self._held = bytearray()

    def text(self, text: str) -> None:
        self.write(text.encode())

    def write(self, data: bytes) -> int:
        self._held += data
        if len(self._held) > _BUFFER:
            self.flush()
        return len(data)

    def flush(self) -> None:
        data = bytes(self._held)
        self._held.clear()
        if data:
            self._world.put(data, self._stream)


class _Lines:
    """Standard input, line by line: of text, or of bytes as ``buffer``."""

    def __init__(self, world: _World, *, binary: bool = False) -> None:
        self._world = world
        self._binary = binary

    @property
    def buffer(self) -> _Lines:
        return _Lines(self._world, binary=True)

    def read(self, most: int = -1) -> Any:
        return self._given(self._world.take(most))

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> Any:
        if line := self._world.line():
            return self._given(line)
        raise StopIteration

    def _given(self, data: bytes) -> Any:
        return data if self._binary else data.decode()


class _Written(io.BytesIO):
    """A file that is being written, and there at once."""

    def __init__(self, world: _World, path: str, before: bytes, *, binary: bool) -> None:
        super().__init__()
        self._world, self._path, self._binary = world, path, binary
        super().write(before)
        world.place(path, Node("file", 0o644, before))

    def write(self, data: Any) -> int:
        written = super().write(data if self._binary else data.encode())
        self._world.place(self._path, Node("file", 0o644, self.getvalue()))
        return written
