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
        async with self._helper("read", path, offset=offset, length=length) as (helper, told):
            assert helper.stdout is not None
            _check(path, await asyncio.to_thread(told))
            while data := await helper.stdout.read(CHUNK):
                yield data

    async def write(self, path: str, chunks: AsyncIterator[bytes], mode: int) -> int:
        async with self._helper("write", path, mode=mode) as (helper, told):
            assert helper.stdin is not None
            size = 0
            try:
                async for chunk in chunks:
                    helper.stdin.write(chunk)
                    await helper.stdin.drain()
                    size += len(chunk)
                helper.stdin.close()
            except (BrokenPipeError, ConnectionResetError):
                pass  # the verdict says why it stopped reading
            _check(path, await asyncio.to_thread(told))
            return size

    async def entries(self, path: str) -> Sequence[Entry]:
        async with self._helper("entries", path) as (helper, told):
            listing, _ = await helper.communicate()
            _check(path, told())
            return [Entry(*row) for row in json.loads(listing)]

    @asynccontextmanager
    async def _helper(self, op: str, path: str, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
        """The running helper, and a blocking call that gives its verdict."""
        request = {"op": op, "parts": [part for part in path.split("/") if part], **options}
        told, tell = os.pipe()
        info = os.open(os.devnull, os.O_WRONLY)
        inside = [exec_walls.python(), "-I", "-S", "-c", exec_inside.FILES, str(tell), json.dumps(request)]
        argv = exec_walls.command(self._root, self._spec, inside, env={}, info=info)
        with os.fdopen(told, "rb") as verdict:
            try:
                helper = await asyncio.create_subprocess_exec(
                    *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(tell, info)
                )
            finally:
                os.close(tell)
                os.close(info)
            try:
                yield helper, verdict.read
            finally:
                await _finish(helper)


async def _finish(helper: asyncio.subprocess.Process) -> None:
    if helper.returncode is None and helper.stdin is not None:
        helper.stdin.close()
    if helper.returncode is None and helper.stdout is not None and not helper.stdout.at_eof():
        helper.kill()
    await helper.wait()


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
