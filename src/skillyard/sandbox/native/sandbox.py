"""A native sandbox, as the server sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from skillyard.domain.sandbox.spec import DEFAULT_STREAMS, Argv, Entry, Guest, Program, StreamLimits
from skillyard.sandbox.file_programs import entries_of, read_file, write_file
from skillyard.sandbox.native.inside.walls import CODE_ROOT
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.process import NativeProcess

_FILES_CODE = (
    f"import sys; sys.path.insert(0, {CODE_ROOT!r});"
    " from skillyard.guest.files import main; sys.exit(main(sys.argv[1:]))"
)
FILES = ("python3", "-I", "-S", "-c", _FILES_CODE)


class NativeSandbox:
    def __init__(self, link: Link, handle: str, enforced: dict[str, str]) -> None:
        self._link = link
        self._handle = handle
        self._enforced = enforced
        self._files = 0
        self.processes: dict[str, NativeProcess] = {}

    @property
    def handle(self) -> str:
        return self._handle

    @property
    def enforced(self) -> dict[str, str]:
        return self._enforced

    async def start(
        self, program: Program, *, id: str, timeout_ms: int | None = None, streams: StreamLimits = DEFAULT_STREAMS
    ) -> NativeProcess:
        if id in self.processes:
            return self.processes[id]
        header, body = self.message(program)
        header.update(
            op="start",
            handle=self._handle,
            id=id,
            timeout_ms=timeout_ms,
            log_bytes=streams.log_bytes,
            channel_bytes=streams.channel_bytes,
        )
        process = self.processes[id] = NativeProcess(self._link, self._handle, id)
        if isinstance(program, Guest):
            self._link.ask(header, body).add_done_callback(lambda answer: _refused(process, answer.result()[0]))
        else:
            try:
                await self._link.answer(header, body)
            except BaseException:
                del self.processes[id]
                raise
        return process

    async def process(self, id: str) -> NativeProcess:
        known = self.processes.get(id)
        if known is not None:
            return known
        process = self.processes[id] = NativeProcess(self._link, self._handle, id)
        try:
            await self._link.answer({"op": "wait", "handle": self._handle, "id": id})
        except BaseException:
            del self.processes[id]
            raise
        return process

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        async for piece in read_file(self._start_files, path, offset, length):
            yield piece

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        return await write_file(self._start_files, path, chunks, mode)

    async def entries(self, path: str) -> Sequence[Entry]:
        return await entries_of(self._start_files, path)

    async def _start_files(self, arguments: Sequence[str], stdin: bool) -> NativeProcess:
        self._files += 1
        program = Argv((*self.files_program(), *arguments), stdin=stdin)
        return await self.start(program, id=f".files-{self._files}", timeout_ms=None, streams=DEFAULT_STREAMS)

    def message(self, program: Program) -> tuple[dict[str, Any], bytes]:
        """What the keeper is told of ``program``: a header and a guest's request."""
        return _message(program)

    def files_program(self) -> tuple[str, ...]:
        return FILES

    def lost(self) -> None:
        for process in self.processes.values():
            process.lost()


def _message(program: Program) -> tuple[dict[str, Any], bytes]:
    if isinstance(program, Guest):
        return {"argv": None}, json.dumps(program.request, separators=(",", ":")).encode("utf-8", "surrogatepass")
    header = {"argv": list(program.args), "env": dict(program.env), "cwd": program.cwd, "stdin": program.stdin}
    return header, b""


def _refused(process: NativeProcess, answer: dict[str, Any]) -> None:
    if "gone" in answer or "error" in answer:
        process.lost()
