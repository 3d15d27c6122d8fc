"""The validators of one server: started when they are needed, ended when they do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from skillyard.config.storage import SchemaSettings
from skillyard.domain.errors import ValidatorFault
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.skill.schema import MOST_ERRORS, SchemaVerdict
from skillyard.ipc.channel import BadMessage, FrameReader, encode
from skillyard.own_process import start_own
from skillyard.schemas.turns import Turns
from skillyard.schemas.wire import MOST_ANSWER, REMEMBERED

NO_ACCOUNT = 1_899_999_998
"""A user id that nobody has."""

_PROGRAM = "skillyard.schemas.process"
_NEEDS = ("skillyard", "jsonschema_rs")
_START_BOUND_S = 20.0
_IDLE_S = 60.0
_PATIENCE = 5
"""The clock time of a check is at most its processor time by this factor, on a busy host."""


class SchemaPool:
    """Checks in processes (:class:`skillyard.ports.schemas.SchemaChecker`). ``uid`` is their user when the server is
    root."""

    def __init__(self, uid: int, settings: SchemaSettings | None = None) -> None:
        self._uid = uid
        self._settings = settings or SchemaSettings()
        self._turns = Turns(self._settings.processes)
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()

    async def check(
        self, principal: str, key: str, schema: Mapping[str, Any], value: bytes, *, patient: bool = False
    ) -> SchemaVerdict:
        """Checks as the port has it."""
        async with self._turns.turn(principal, patient=patient) as begin:
            child = await self._take(key)
            begin()  # that somebody's check ended the process before is not this one's slowness
            try:
                async with asyncio.timeout(self._settings.check_s * _PATIENCE):
                    answer = await child.ask(key, schema, value)
            except (TimeoutError, _Gone) as error:
                return SchemaVerdict(unfit=self._why(await self._end(child), error))
            except BaseException:
                await self._end(child)
                raise
            if answer.get("last"):
                await self._end(child)
            else:
                self._give_back(child)
            return _verdict(answer)

    async def _take(self, key: str) -> _Child:
        for child in reversed(self._idle):
            if key in child.known:
                break
        else:
            child = self._idle[-1] if self._idle else await self._start()
        if child in self._idle:
            self._idle.remove(child)
        return child

    async def _start(self) -> _Child:
        config = {"uid": self._uid, "cpu_s": self._settings.check_s, "memory_mb": self._settings.memory_mb}
        try:
            child = _Child(*await start_own(_PROGRAM, _NEEDS, config, {"LANG": "C.UTF-8"}, asyncio.subprocess.DEVNULL))
        except OSError as error:
            raise ValidatorFault(f"the validator of schemas cannot start: {error}") from error
        self._children.add(child)
        try:
            async with asyncio.timeout(_START_BOUND_S):
                await child.hear()
        except (TimeoutError, _Gone):
            code = await self._end(child)
            raise ValidatorFault(f"the validator of schemas ended at its start: exit code {code}") from None
        except BaseException:
            await self._end(child)
            raise
        return child

    def _give_back(self, child: _Child) -> None:
        """Takes back a process. The last one used is taken first; those that stay unused for a while end."""
        now = child.used = asyncio.get_running_loop().time()
        self._idle.append(child)
        for old in [other for other in self._idle[:-1] if now - other.used > _IDLE_S]:
            self._idle.remove(old)
            old.kill()
            self._children.discard(old)

    async def _end(self, child: _Child) -> int:
        self._children.discard(child)
        return await child.end()

    def _why(self, code: int, error: Exception) -> str:
        if isinstance(error, TimeoutError) or code in (-signal.SIGPROF, -signal.SIGXCPU):
            return f"it took longer than {self._settings.check_s:g} s; make the schema simpler or the value smaller"
        return f"it took more than {self._settings.memory_mb} MiB, or the validator failed; make the schema simpler"

    async def close(self) -> None:
        """Ends every process. Idempotent."""
        self._idle.clear()
        while self._children:
            await self._children.pop().end()


class _Gone(Exception):
    """The process ended, or broke the form of a validator's answers."""


class _Child:
    """One process; used by one check at a time."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket) -> None:
        self.known: set[str] = set()
        self.used = 0.0
        self._process = process
        self._sock = sock
        self._answers = FrameReader(MOST_ANSWER, MOST_ANSWER)
        self._pidfd = os.pidfd_open(process.pid)
        sock.setblocking(False)

    async def ask(self, key: str, schema: Mapping[str, Any], value: bytes) -> dict[str, Any]:
        """Sends one request. Raises _Gone."""
        text = b""
        if key not in self.known:
            text = json.dumps(schema).encode()
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            self.known.add(key)
        request = encode({"key": key, "schema": len(text)}, text + value)
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, request)
        except OSError:
            raise _Gone from None
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """Returns its next answer. It has read hostile schemas: an answer of another form ends it. Raises _Gone."""
        try:
            while (frame := self._answers.next()) is None:
                data = await asyncio.get_running_loop().sock_recv(self._sock, MOST_ANSWER)
                if not data:
                    raise _Gone
                self._answers.feed(data)
            answer = parse_json(frame[1])
        except (OSError, BadMessage, BadJson):
            raise _Gone from None
        if not isinstance(answer, dict):
            raise _Gone
        return answer

    async def end(self) -> int:
        """Returns its exit code; that of a kill by us when it had not ended by itself."""
        self.kill()
        return await self._process.wait()

    def kill(self) -> None:
        """Ends it by force: one that was broken into would not heed that its input ends."""
        self._sock.close()
        # Popen's own kill looks for an end first, and takes it from its waiter; the number may be another's by then.
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1


def _verdict(answer: Mapping[str, Any]) -> SchemaVerdict:
    unfit, errors = answer.get("unfit", ""), answer.get("errors", [])
    try:
        return SchemaVerdict(tuple(map(_error, errors[:MOST_ERRORS])), _checked(unfit, str))
    except (TypeError, ValueError, KeyError):
        return SchemaVerdict(unfit="the validator failed")


def _error(pair: Any) -> tuple[tuple[str | int, ...], str]:
    path, message = pair
    return tuple(part if type(part) is int else _checked(part, str) for part in _checked(path, list)), message + ""


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value
