"""Files of the exec backend: every operation runs inside, behind the walls of the sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skillyard.domain.errors import FileNotFound, InvalidInput, QuotaExceeded, SandboxFault, SkillyardError
from skillyard.domain.sandbox import Entry, SandboxSpec
from tests.sandbox import exec_inside, exec_walls

CHUNK = 1 << 18


class ExecFiles:
    def __init__(self, root: Path, spec: SandboxSpec) -> None:
        self._root, self._spec = root, spec

    async def read(self, path: str, offset: int, length: int | None) -> AsyncIterator[bytes]:
        async with self._helper("read", path, offset=offset, length=length) as helper:
            await helper.check()
            while data := await helper.read():
                yield data

    async def write(self, path: str, chunks: AsyncIterator[bytes], mode: int) -> int:
        async with self._helper("write", path, mode=mode) as helper:
            size = 0
            try:
                async for chunk in chunks:
                    await helper.write(chunk)
                    size += len(chunk)
                await helper.write(b"", last=True)
            except BrokenPipeError:
                pass  # the verdict says why it stopped reading
            await helper.check()
            return size

    async def entries(self, path: str) -> Sequence[Entry]:
        async with self._helper("entries", path) as helper:
            await helper.check()
            listing = b""
            while data := await helper.read():
                listing += data
            return [Entry(*row) for row in json.loads(listing)]

    @asynccontextmanager
    async def _helper(self, op: str, path: str, **options: Any) -> AsyncIterator[_Helper]:
        request = {"op": op, "parts": [part for part in path.split("/") if part], **options}
        told, tell = os.pipe()
        info = os.open(os.devnull, os.O_WRONLY)
        inside = [exec_walls.python(), "-I", "-S", "-c", exec_inside.FILES, str(tell), json.dumps(request)]
        argv = exec_walls.command(self._root, self._spec, inside, env={}, info=info)
        try:
            child = subprocess.Popen(
                argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(tell, info)
            )
        finally:
            os.close(tell)
            os.close(info)
        helper = _Helper(child, path, told)
        try:
            yield helper
        finally:
            await asyncio.to_thread(helper.close)


class _Helper:
    """The running helper. Its pipes are used in threads, so that a reader may leave at any time."""

    def __init__(self, child: subprocess.Popen[bytes], path: str, told: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child, self._path, self._verdict = child, path, os.fdopen(told, "rb")
        self._input, self._output = child.stdin, child.stdout

    async def check(self) -> None:
        """Raises what the verdict says."""
        _check(self._path, await asyncio.to_thread(self._verdict.read))

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._output.read, CHUNK) or b""

    async def write(self, data: bytes, *, last: bool = False) -> None:
        while data:
            data = data[await asyncio.to_thread(self._input.write, data) or 0 :]
        if last:
            self._input.close()

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._input, self._output, self._verdict):
            pipe.close()


def _check(path: str, told: bytes) -> None:
    """Raises what the verdict says."""
    if not told:
        raise SandboxFault("the files helper ended without a verdict")
    match json.loads(told):
        case []:
            return
        case kind, text:
            raise _error(kind, path, text)


def _error(kind: str, path: str, text: str) -> SkillyardError:
    match kind:
        case "missing":
            return FileNotFound("path", f"{path}: {text}")
        case "full":
            return QuotaExceeded("path", f"{path}: {text}")
        case _:
            return InvalidInput("path", f"{path}: {text}")
