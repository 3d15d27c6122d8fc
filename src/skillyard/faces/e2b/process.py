"""Programs of a sandbox: ``process.Process`` of E2B's daemon.

A program outlives the stream that started it, and this server. A client that connects to it gets its output from
where the last reader stopped.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from skillyard.domain.errors import FileNotFound, InvalidInput, SandboxGone, SkillyardError, shape
from skillyard.domain.sandbox.spec import Argv, Stream, Terminal
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.services.programs import NUMBER, Started
from skillyard.faces.e2b import connect
from skillyard.faces.e2b.access import sandbox_id
from skillyard.faces.e2b.call import Call, flag_of, text_of, texts_of
from skillyard.faces.e2b.daemon import Answer, Place, by_path
from skillyard.faces.e2b.errors import DEADLINE, INVALID, NOT_FOUND, PRECONDITION, UNIMPLEMENTED, NotRunning, RpcRefusal
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.ports.sandbox import OnTerminal

SERVICE = "/process.Process/"
MOST_ARGUMENTS = 1000
MOST_BYTES = 120 * 1024
"""Bytes of one argument, and of all variables: less than a program may get (execve(2))."""
MOST_TIMEOUT_MS = 24 * 3600 * 1000
_PIECE = 48 * 1024
_AHEAD = 8
_SIGNAL_MS = 10_000
_SILENT: connect.Message = {"event": {"keepalive": {}}}
_SIGNALS: Mapping[int, str] = {
    1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap", 6: "aborted",
    7: "bus error", 8: "floating point exception", 9: "killed", 11: "segmentation fault", 13: "broken pipe",
    14: "alarm clock", 15: "terminated",
}  # fmt: skip
"""Signals in the words of E2B's daemon, which are those of Go."""
_TERM, _KILL = ("SIGNAL_SIGTERM", 15), ("SIGNAL_SIGKILL", 9)
_SEND_TERM = """
import os, signal

def main(args):
    mark = args["mark"].encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    ours = mark in file.read().split(b"\\0")
                if ours:
                    os.kill(int(name), signal.SIGTERM)
            except OSError:
                continue
    return {}
"""
"""Tells the processes of a program to end. They are found by a variable that each has from its start."""


_NO_TERMINAL = "pty: the process has no pseudo-terminal"
STREAMS = (Stream.STDOUT, Stream.STDERR)
Said = tuple[str, bytes] | SkillyardError | None
"""A piece of a stream with its name, the error that ended it, or None for its end."""


class Processes:
    """Starts programs, tells of them, and speaks to them."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    def calls(self) -> dict[str, Answer]:
        """Returns the calls by their paths."""
        return by_path(
            SERVICE,
            Start=self.start,
            Connect=self.connect,
            List=self.list,
            SendInput=self.send_input,
            StreamInput=self.stream_input,
            CloseStdin=self.close_stdin,
            SendSignal=self.send_signal,
            Update=self.update,
        )

    async def start(self, call: Call, place: Place) -> None:
        message = await connect.only(call, place.owner)
        timeout_ms = connect.timeout_ms(call)
        with call.staying(place.owner):
            await connect.stream(call, self._life, _begun(place, message, timeout_ms), _SILENT)

    async def connect(self, call: Call, place: Place) -> None:
        message = await connect.only(call, place.owner)
        started = await _selected(place, message)
        with started, call.staying(place.owner):
            await connect.stream(call, self._life, _events(place, started, connect.timeout_ms(call)), _SILENT)

    async def list(self, call: Call, place: Place) -> None:
        await connect.unary(call, place.owner)
        programs = await place.programs.all()
        found = [_told(started) for started in programs]
        await connect.answer(call, {"processes": found})

    async def send_input(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        await _send(await _selected(place, message), connect.part(message, "input"))
        await connect.answer(call, {})

    async def stream_input(self, call: Call, place: Place) -> None:
        started: Started | None = None
        with call.staying(place.owner):
            async with aclosing(connect.incoming(call)) as messages:
                async for message in messages:
                    kind, data = connect.chosen(message, "start", "data", "keepalive")
                    if kind == "start" and started is None and isinstance(data, dict):
                        started = await _selected(place, data)
                    elif started is None or kind == "start":
                        raise RpcRefusal(INVALID, "the stream must begin with one process")
                    elif kind == "data":
                        await _send(started, connect.part(connect.part(message, "data"), "input"))
            await connect.stream(call, self._life, _one({}), {})

    async def close_stdin(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        started = await _selected(place, message)
        _check_stdin(started)
        with suppress(SandboxGone):
            await started.process.close_stdin()
        await connect.answer(call, {})

    async def send_signal(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        started = await _selected(place, message)
        wanted = message.get("signal")
        if wanted in _KILL:
            await started.process.kill("a client killed it")
            await started.process.wait()
        elif wanted in _TERM:
            await place.programs.call(_SEND_TERM, {"mark": f"{NUMBER}={started.number}"}, _SIGNAL_MS)
        else:
            raise RpcRefusal(INVALID, f"signal: must be SIGNAL_SIGKILL or SIGNAL_SIGTERM, not {shape(wanted)}")
        await connect.answer(call, {})

    async def update(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        started = await _selected(place, message)
        size = _size(connect.part(message, "pty"))
        if not isinstance(started.process, OnTerminal) or size is None:
            raise RpcRefusal(PRECONDITION, _NO_TERMINAL)
        try:
            await started.process.resize(size)
        except InvalidInput:
            raise RpcRefusal(PRECONDITION, _NO_TERMINAL) from None
        except SandboxGone:
            raise RpcRefusal(NOT_FOUND, f"process with pid {started.number} not found") from None
        await connect.answer(call, {})


async def _begun(place: Place, message: connect.Message, timeout_ms: int | None) -> AsyncIterator[connect.Message]:
    """Starts a program, and yields its events."""
    program, told = await _program(place, message)
    try:
        started = await place.programs.start(program, told, timeout_ms=timeout_ms or MOST_TIMEOUT_MS)
    except SandboxGone:
        raise NotRunning(sandbox_id(place.record)) from None
    try:
        async with aclosing(_events(place, started, None)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event
    finally:
        started.__exit__()


async def _program(place: Place, message: connect.Message) -> tuple[Argv, dict[str, Any]]:
    """Returns the program of a request, and what is told of it. Raises RpcRefusal, InvalidInput."""
    config = connect.part(message, "process")
    command, args = text_of(config, "cmd"), config.get("args") or []
    if not command or not isinstance(args, list) or len(args) > MOST_ARGUMENTS:
        raise RpcRefusal(INVALID, f"process: must have a cmd, and at most {MOST_ARGUMENTS} args")
    words = [command, *(text_of({"args": each}, "args") for each in args)]
    envs = texts_of(config, "envs")
    if any(not name or "=" in name for name in envs):
        raise RpcRefusal(INVALID, "envs: must have names without '='")
    sizes = [*(len(word.encode()) for word in words), sum(len(f"{k}={v}".encode()) for k, v in envs.items())]
    if max(sizes) > MOST_BYTES:
        raise RpcRefusal(INVALID, f"process: an argument, or all variables, may have {MOST_BYTES} bytes")
    cwd = place.path(text_of(config, "cwd"))
    await _check_directory(place, cwd)
    own = {"HOME": place.home, "USER": "user", "LOGNAME": "user", "PWD": cwd}
    told: dict[str, Any] = {"cmd": command, "args": words[1:], "cwd": cwd, "envs": envs}
    if tag := text_of(message, "tag"):
        told["tag"] = tag
    terminal = None
    if message.get("pty") is not None:
        if not (place.record.stay or {}).get("terminals"):
            raise RpcRefusal(UNIMPLEMENTED, f"pty: the isolation '{place.record.isolation}' has no pseudo-terminals")
        terminal = _size(connect.part(message, "pty")) or Terminal()
        told["pty"] = True
    stdin = flag_of(message, "stdin", usual=True)
    return Argv(tuple(words), {**own, **envs}, place.inside(cwd), stdin, terminal), told


async def _check_directory(place: Place, cwd: str) -> None:
    """Raises RpcRefusal for a working directory that is not there."""
    if place.inside(cwd) == "/workspace":
        return
    try:
        await place.programs.sandbox.stat(place.inside(cwd))
    except FileNotFound:
        raise RpcRefusal(INVALID, f"cwd '{cwd}' does not exist") from None


async def _selected(place: Place, message: connect.Message) -> Started:
    """Returns the program that a message selects, by number or tag. Raises RpcRefusal."""
    kind, value = connect.chosen(connect.part(message, "process"), "pid", "tag")
    if kind == "tag":
        found = [started for started in await place.programs.all() if started.told.get("tag") == value]
        if not found:
            raise RpcRefusal(NOT_FOUND, f"process with tag {shape(value)} not found")
        return found[0]
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isdigit():
        raise RpcRefusal(INVALID, "pid: must be a number")
    try:
        return await place.programs.find(int(str(value)[:10]))
    except InvalidInput:
        raise RpcRefusal(NOT_FOUND, f"process with pid {int(str(value)[:10])} not found") from None


async def _events(place: Place, started: Started, timeout_ms: int | None) -> AsyncIterator[connect.Message]:
    """Yields that a program runs, its output and its end."""
    yield {"event": {"start": {"pid": started.number}}}
    queue: asyncio.Queue[Said] = asyncio.Queue(_AHEAD)
    pumps = [asyncio.ensure_future(_pump(started, stream, queue)) for stream in STREAMS]
    going = len(pumps)
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            while going:
                said = await queue.get()
                if isinstance(said, SkillyardError):
                    raise said
                if said is None:
                    going -= 1
                    continue
                name, data = said
                name = "pty" if started.told.get("pty") else name
                yield {"event": {"data": {name: base64.b64encode(data).decode("ascii")}}}
            ending = await started.process.wait()
        yield {"event": {"end": _end(place, ending)}}
    except TimeoutError:
        raise RpcRefusal(DEADLINE, "the time of this connection is over; the process goes on") from None
    except SandboxGone:
        raise NotRunning(sandbox_id(place.record)) from None
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(started: Started, stream: Stream, queue: asyncio.Queue[Said]) -> None:
    try:
        async for data in started.output(stream):
            for at in range(0, len(data), _PIECE):
                await queue.put((stream.value, data[at : at + _PIECE]))
    except SkillyardError as error:
        await queue.put(error)
    else:
        await queue.put(None)


async def _one(message: connect.Message) -> AsyncIterator[connect.Message]:
    yield message


def _end(place: Place, ending: Ending) -> dict[str, Any]:
    """Returns the end of a program as E2B tells it. Raises RpcRefusal for one whose time was over, NotRunning."""
    if ending.outcome is Outcome.LOST:
        raise NotRunning(sandbox_id(place.record))
    if ending.outcome is Outcome.TIMEOUT:
        raise RpcRefusal(DEADLINE, "the time of the process was over, and it was ended")
    if ending.outcome is Outcome.EXIT:
        code, status = ending.code or 0, f"exit status {ending.code or 0}"
        told = {"exitCode": code, "exited": True, "status": status}
        return told | ({"error": ending.reason or status} if code else {})
    status = f"signal: {_SIGNALS.get(ending.signal or 9, f'signal {ending.signal}')}"
    why = "" if ending.outcome in (Outcome.SIGNAL, Outcome.CANCELLED) else f": {ending.outcome}: {ending.reason}"
    return {"exitCode": -1, "exited": False, "status": status, "error": f"{status}{why}"}


async def _send(started: Started, given: connect.Message) -> None:
    kind, text = connect.chosen(given, "stdin", "pty")
    if kind == "pty" and not started.told.get("pty"):
        raise RpcRefusal(PRECONDITION, _NO_TERMINAL)
    if kind == "stdin":
        _check_stdin(started)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise RpcRefusal(INVALID, "input: must be base64") from None
    try:
        await started.process.send(data)
    except SandboxGone:
        raise RpcRefusal(NOT_FOUND, f"process with pid {started.number} not found") from None


def _check_stdin(started: Started) -> None:
    if started.told.get("pty"):
        raise RpcRefusal(PRECONDITION, "stdin: the process has a terminal; its input ends by Ctrl-D (0x04)")
    if not started.stdin:
        raise RpcRefusal(PRECONDITION, "stdin: the process was started without it")


def _size(pty: connect.Message) -> Terminal | None:
    """Returns the size that a message gives a terminal; None without one. Raises InvalidInput."""
    size = connect.part(pty, "size")
    return Terminal(size.get("rows") or 24, size.get("cols") or 80) if size else None


def _told(started: Started) -> dict[str, Any]:
    told = started.told
    config = {name: told[name] for name in ("cmd", "args", "envs", "cwd") if name in told}
    return {"pid": started.number, "config": config, **({"tag": told["tag"]} if "tag" in told else {})}
