"""Files of the exec backend: every operation runs inside, behind the walls of the sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from skillyard.domain.errors import FileNotFound, InvalidInput, QuotaExceeded, SkillyardError
from skillyard.domain.sandbox import Entry, SandboxSpec
from skillyard.guest import files as inside
from tests.sandbox import exec_walls

CHUNK = 1 << 18
_ERRORS: dict[int, type[InvalidInput]] = {
    inside.MISSING: FileNotFound,
    inside.NOT_REGULAR: FileNotFound,
    inside.NO_SPACE: QuotaExceeded,
}


class ExecFiles:
    def __init__(self, root: Path, spec: SandboxSpec) -> None:
        self._root, self._spec = root, spec

    async def read(self, path: str, offset: int, length: int | None) -> AsyncIterator[bytes]:
        words = ("read", path, str(offset), "-" if length is None else str(length))
        async with self._helper(*words) as helper:
            while data := await helper.read():
                yield data
            await helper.check(path)

    async def write(self, path: str, chunks: AsyncIterator[bytes], mode: int) -> int:
        async with self._helper("write", path, f"{mode:o}") as helper:
            with suppress(BrokenPipeError):  # the status says why it stopped reading
                async for chunk in chunks:
                    await helper.write(chunk)
            helper.end_of_input()
            told = await helper.read()
            await helper.check(path)
            return int(told)

    async def entries(self, path: str) -> Sequence[Entry]:
        listing = b""
        async with self._helper("entries", path) as helper:
            while data := await helper.read():
                listing += data
            await helper.check(path)
        return [Entry(**json.loads(line)) for line in listing.splitlines()]

    @asynccontextmanager
    async def _helper(self, *words: str) -> AsyncIterator[_Helper]:
        info = os.open(os.devnull, os.O_WRONLY)
        argv = exec_walls.command(
            self._root, self._spec, [exec_walls.python(), "-I", exec_walls.GUEST, *words], env={}, info=info
        )
        try:
            helper = _Helper(argv, info)
        finally:
            os.close(info)
        try:
            yield helper
        finally:
            await asyncio.to_thread(helper.close)


class _Helper:
    """The running helper. Its pipes are used in threads, so that a reader may leave at any time."""

    def __init__(self, argv: list[str], info: int) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(info,), start_new_session=True
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._input, self._output, self._error = self._child.stdin, self._child.stdout, self._child.stderr

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._output.read, CHUNK) or b""

    async def write(self, data: bytes) -> None:
        while data:
            data = data[await asyncio.to_thread(self._input.write, data) or 0 :]

    def end_of_input(self) -> None:
        self._input.close()

    async def check(self, path: str) -> None:
        """Raises what its exit status says."""
        status = await asyncio.to_thread(self._child.wait)
        if status != inside.DONE:
            text = self._error.read().decode(errors="replace").strip()
            raise _error(status, path, text)

    def close(self) -> None:
        """End it before its input can: a file whose source broke must not look complete."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for pipe in (self._input, self._output, self._error):
            pipe.close()


def _error(status: int, path: str, text: str) -> SkillyardError:
    return _ERRORS.get(status, InvalidInput)("path", f"{path}: {text or 'refused'}")
