"""A byte channel over a command in a machine: its standard input and output.

The SDK decodes output as UTF-8 and loses every other byte, so the agent's end sends each byte as the character of that
number. Each piece of input is a request of its own, so what waits while one is under way goes together in the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.sandbox.e2b.provider import ROOT, Provider

if TYPE_CHECKING:
    from e2b import AsyncSandbox

_PIECES = 64
"""Pieces of output that wait to be read. The stream of the command stands still meanwhile."""
_BATCH = 1 << 20
_HIGH = 1 << 20
"""Bytes of input that wait before a writer does."""
_LINE = 64 * 1024
_REFUSED = 64
"""The exit status of an end that met no agent."""


class CommandChannel:
    """Both ends of the channel: :class:`skillyard.sandbox.agent_channel.Reader` and ``Writer``."""

    def __init__(self, provider: Provider, is_over: Callable[[], bool] = bool) -> None:
        self._provider, self._is_over = provider, is_over
        self._pieces: deque[str] = deque()
        self._left = b""
        self._met = False
        self._waiting = bytearray()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._command: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[None] | None = None
        self._first: Callable[[], Awaitable[None]] | None = None

    def opens_with(self, read_first: Callable[[], Awaitable[None]]) -> None:
        """Has the first line taken by :meth:`line` before anything else is read. A reader gets its exceptions."""
        self._first = read_first

    @classmethod
    async def open(
        cls,
        provider: Provider,
        machine: AsyncSandbox,
        command: str,
        is_over: Callable[[], bool] = bool,
        *,
        user: str | None = ROOT,
        envs: dict[str, str] | None = None,
    ) -> CommandChannel:
        """Starts ``command``. Raises SandboxGone, BackendAway, SandboxFault.

        ``is_over`` tells whether the machine ends, and the command with it. Without a ``user`` it is the machine's own.
        """
        channel = cls(provider, is_over)
        with provider.told():
            channel._command = await machine.commands.run(
                command,
                background=True,
                stdin=True,
                timeout=0,
                retain_output=False,
                user=user,
                envs=envs,
                cwd="/",
                on_stdout=channel._take,
            )
        channel._tasks = [asyncio.create_task(channel._ends()), asyncio.create_task(channel._sends())]
        return channel

    async def read(self, n: int = -1, /) -> bytes:
        """Returns at most ``n`` bytes; none at the end. Raises EOFError for text, SandboxGone without an agent."""
        await self.opened()
        while not self._left:
            if self._pieces:
                try:
                    self._left = self._pieces.popleft().encode("latin-1")
                except UnicodeEncodeError:
                    raise EOFError("it is not the agent's end that speaks") from None
                self._met = True
                self._changed.set()
            elif self._failure is None:
                await self._change()
            elif isinstance(self._failure, SandboxGone) and not self._met:
                raise self._failure
            else:
                return b""
        most = len(self._left) if n < 0 else n
        data, self._left = self._left[:most], self._left[most:]
        return data

    async def opened(self) -> None:
        """Returns when the first line was taken."""
        if (first := self._first) is not None:
            self._first = None
            await first()

    async def line(self) -> bytes:
        """Returns the first line, or the part of it that came before the command ended."""
        found = b""
        while b"\n" not in found and len(found) < _LINE:
            if not (data := await self.read()):
                return found
            found += data
        line, _, self._left = found.partition(b"\n")
        return line

    def write(self, data: bytes, /) -> None:
        self._waiting += data
        self._changed.set()

    async def drain(self) -> None:
        """Returns when there is room for more. Raises OSError."""
        while self._failure is None and len(self._waiting) > _HIGH:
            await self._change()
        if self._failure is not None:
            raise OSError(str(self._failure))

    def close(self) -> None:
        """Ends the command, soon. Idempotent."""
        self._fail(SandboxFault("the channel was closed"))
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def closed(self) -> None:
        """Returns when the command was ended after :meth:`close`."""
        if self._ending is not None:
            await self._ending

    async def _take(self, piece: str) -> None:
        self._pieces.append(piece)
        self._changed.set()
        while len(self._pieces) > _PIECES and self._failure is None:
            await self._change()

    async def _ends(self) -> None:
        """Waits for the end of the command."""
        from e2b import CommandExitException

        code = 0
        try:
            with self._provider.told():
                try:
                    await self._command.wait()
                except CommandExitException as ended:
                    code = ended.exit_code
        except SandboxFault as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the SDK raises its own base class for a stream without an end
            self._fail(SandboxFault(str(error)[:200]))
        if code == _REFUSED:
            self._fail(SandboxGone("the sandbox's agent has ended, and all that it held"))
        self._fail(SandboxFault("the channel ended"))

    async def _sends(self) -> None:
        while self._failure is None:
            if not self._waiting:
                await self._change()
                await asyncio.sleep(0)  # what others write in this turn goes with it
                continue
            batch = bytes(self._waiting[:_BATCH])
            try:
                with self._provider.told():
                    await self._command.send_stdin(batch)
            except SandboxFault as error:
                self._fail(error)
            del self._waiting[: len(batch)]
            self._changed.set()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(SandboxFault), self._provider.told():
            await self._command.disconnect()
            if not self._is_over():
                await self._command.kill()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.set()
