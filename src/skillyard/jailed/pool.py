"""The jailed processes of one server, started on demand and ended when they do not answer."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from skillyard.config.storage import SchemaSettings
from skillyard.domain.errors import ValidatorFault
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.review.python_facts import Facts, facts_from
from skillyard.domain.skill.schema import MOST_ERRORS, SchemaVerdict
from skillyard.ipc.channel import BadMessage, FrameReader, encode
from skillyard.jailed import MOST_ANSWER, REMEMBERED
from skillyard.jailed.turns import Turns
from skillyard.own_process import kill_own, start_own

NO_ACCOUNT = 1_899_999_998
"""A user id that nobody has."""

_PROGRAM = "skillyard.jailed.process"
_NEEDS = ("skillyard", "jsonschema_rs")
_START_BOUND_S = 20.0
_IDLE_S = 60.0
_PATIENCE = 5
"""The clock time of a request is at most its processor time by this factor, on a busy host."""
_READING = 4
"""To read a Python file of the largest size may take so many times as long as a check."""


class JailedPool:
    """Implements :class:`skillyard.ports.jailed.Jailed` in processes. ``uid`` is their user when the server is root."""

    def __init__(self, uid: int, settings: SchemaSettings | None = None) -> None:
        self._uid = uid
        self._settings = settings or SchemaSettings()
        self._turns = Turns(self._settings.processes)
        self._reading = asyncio.Lock()
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()

    async def check(
        self, principal: str, key: str, schema: Mapping[str, Any], value: bytes, *, patient: bool = False
    ) -> SchemaVerdict:
        """Checks as the port has it."""
        try:
            seconds = self._settings.check_s
            request = partial(_Child.schema_request, cpu_s=seconds, key=key, schema=schema, value=value)
            async with self._turns.turn(principal, patient=patient) as begin:
                return _verdict(await self._ask(request, seconds, key, begin))
        except _Killed as error:
            return SchemaVerdict(unfit=f"{error}; try again")
        except _Failed as error:
            return SchemaVerdict(unfit=f"{error}; make the schema simpler or the value smaller")

    async def read_python(self, source: str) -> Facts:
        """Reads as the port has it, one source at a time. Checks and readings do not wait for each other."""
        seconds = self._settings.check_s * _READING
        header = {"job": "python", "cpu_s": seconds}
        try:
            async with self._reading:
                answer = await self._ask(lambda _: encode(header, source.encode()), seconds)
            return facts_from({name: value for name, value in answer.items() if name != "last"})
        except (_Failed, ValueError) as error:
            return Facts(unread=str(error), grave=True)

    async def _ask(
        self,
        request: Callable[[_Child], bytes],
        seconds: float,
        key: str | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Returns the answer of a process, best of one that knows the schema ``key``. Raises _Failed."""
        child = await self._take(key)
        begin()  # that somebody's check ended the process before is not this one's slowness
        try:
            async with asyncio.timeout(seconds * _PATIENCE):
                answer = await child.ask(request(child))
        except (TimeoutError, _Gone) as error:
            raise self._failure(await self._end(child), seconds, error) from None
        except BaseException:
            await self._end(child)
            raise
        if answer.get("last"):
            await self._end(child)
        else:
            await self._give_back(child)
        return answer

    def _failure(self, code: int, seconds: float, error: Exception) -> _Failed:
        if code in (-signal.SIGPROF, -signal.SIGXCPU) or isinstance(error, TimeoutError):
            return _Failed(f"it took longer than {seconds:g} s")
        if code == -signal.SIGKILL and isinstance(error, _HungUp):
            return _Killed("its process was killed, as when the host has no memory left")
        return _Failed(f"it took more than {self._settings.memory_mb} MiB, or the process failed")

    async def _take(self, key: str | None) -> _Child:
        """Returns an idle process that knows the schema, else another one, else a new one. Those that read Python, for
        which ``key`` is None, do nothing else: a hole in a parser shows them no values."""
        ended = [child for child in self._idle if child.ended]
        self._idle = [child for child in self._idle if child not in ended]
        for gone in ended:
            await self._end(gone)
        idle = [child for child in reversed(self._idle) if child.reads == (key is None)]
        child = next((child for child in idle if key in child.known), idle[0] if idle else None)
        if child is None:
            return await self._start(reads=key is None)
        self._idle.remove(child)
        return child

    async def _start(self, *, reads: bool) -> _Child:
        config = {"uid": self._uid, "memory_mb": self._settings.memory_mb}
        try:
            started = await start_own(_PROGRAM, _NEEDS, config, {"LANG": "C.UTF-8"}, asyncio.subprocess.DEVNULL)
        except OSError as error:
            raise ValidatorFault(f"the process for hostile input cannot start: {error}") from error
        child = _Child(*started, reads=reads)
        self._children.add(child)
        try:
            async with asyncio.timeout(_START_BOUND_S):
                await child.hear()
        except (TimeoutError, _Gone):
            code = await self._end(child)
            raise ValidatorFault(f"the process for hostile input ended at its start: exit code {code}") from None
        except BaseException:
            await self._end(child)
            raise
        return child

    async def _give_back(self, child: _Child) -> None:
        """Takes back a process. The last one used is taken first; those that stay unused for a while end."""
        now = child.used = asyncio.get_running_loop().time()
        self._idle.append(child)
        unused = [other for other in self._idle[:-1] if now - other.used > _IDLE_S]
        self._idle = [other for other in self._idle if other not in unused]
        for old in unused:
            await self._end(old)

    async def _end(self, child: _Child) -> int:
        self._children.discard(child)
        return await child.end()

    async def close(self) -> None:
        """Ends every process. Idempotent. Raises ValidatorFault for those that cannot be ended, behind all others."""
        self._idle.clear()
        faults = []
        while self._children:
            try:
                await self._children.pop().end()
            except ValidatorFault as fault:
                faults.append(fault)
        if faults:
            raise faults[0]


class _Gone(Exception):
    """The process ended, or broke the form of its answers."""


class _HungUp(_Gone):
    """The process hung up, as it does when it ends."""


class _Failed(Exception):
    """There is no answer, for the reason that the message gives."""


class _Killed(_Failed):
    """There is no answer, and neither the request nor its bounds are the reason."""


class _Child:
    """One process; it has one request at a time. ``reads``: it reads Python and does nothing else."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket, *, reads: bool) -> None:
        self.reads = reads
        self.known: set[str] = set()
        self.used = 0.0
        self._process = process
        self._sock = sock
        self._answers = FrameReader(MOST_ANSWER, MOST_ANSWER)
        self._pidfd = os.pidfd_open(process.pid)
        sock.setblocking(False)

    def schema_request(self, cpu_s: float, key: str, schema: Mapping[str, Any], value: bytes) -> bytes:
        """Returns the request for a check. It holds the schema when this process does not know it."""
        text = b""
        if key not in self.known:
            text = json.dumps(schema).encode()
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            self.known.add(key)
        return encode({"job": "schema", "cpu_s": cpu_s, "key": key, "schema": len(text)}, text + value)

    async def ask(self, request: bytes) -> dict[str, Any]:
        """Returns the answer to one request. Raises _Gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, request)
        except OSError:
            raise _HungUp from None
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """Returns its next answer. It has read hostile schemas: an answer of another form ends it. Raises _Gone."""
        try:
            while (frame := self._answers.next()) is None:
                data = await asyncio.get_running_loop().sock_recv(self._sock, MOST_ANSWER)
                if not data:
                    raise _HungUp
                self._answers.feed(data)
            answer = parse_json(frame[1])
        except OSError:
            raise _HungUp from None
        except (BadMessage, BadJson):
            raise _Gone from None
        if not isinstance(answer, dict):
            raise _Gone
        return answer

    @property
    def ended(self) -> bool:
        """Whether it has ended. An idle process says nothing: what there is to read is its end."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    async def end(self) -> int:
        """Ends it by force: one that was broken into would not heed that its input ends.

        Returns its exit code; that of a kill by us when it had not ended by itself. Raises ValidatorFault.
        """
        self._sock.close()
        # Popen's own kill looks for an end first, and takes it from its waiter; the number may be another's by then.
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            try:
                await kill_own(pidfd)
            except OSError as error:
                raise ValidatorFault(f"the process for hostile input cannot be ended: {error.strerror}") from error
            finally:
                os.close(pidfd)
        return await self._process.wait()


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
