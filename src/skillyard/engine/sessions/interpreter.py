"""The Python interpreter of a session: a kept program that runs cells and keeps names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import AtCap, Guest, StreamLimits, asking_request, interpreter_request
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.runs.failure import signal_name
from skillyard.ports.sandbox import Sandbox

STARTED, KEPT, RESTARTED = "started", "kept", "restarted"
ASKED = "the call asked for a new one"
UNHEEDED = "its cell went on after it was interrupted, so it was ended"
GONE = "its sandbox ended"
_REPLACED = "its sandbox was replaced by another one"
_SILENT = "it did not answer"
_ANSWER_MS = 15_000
"""How long it may take to answer. That of a cell that was interrupted has its grace meanwhile."""
_ENDING_S = 3.0
"""How long one may take to end that does not answer any more."""
_STREAMS = StreamLimits(64 * 1024, 64 * 1024, at_cap=AtCap.RING)


async def start(sandbox: Sandbox, cell: Mapping[str, Any], name: str, timeout_ms: int) -> None:
    """Starts one for cells like ``cell``. It outlives them and this server. Raises SandboxFault."""
    request = interpreter_request(cell, name)
    await sandbox.start(Guest(request, kept=True), id=name, timeout_ms=timeout_ms, streams=_STREAMS)


async def answers(sandbox: Sandbox, name: str, id: str) -> bool:
    """Returns whether it is there, and no cell runs in it any more. Raises SandboxGone."""
    program = Guest(asking_request(name))
    process = await sandbox.start(program, id=id, timeout_ms=_ANSWER_MS, streams=_STREAMS)
    ending = await process.wait()
    if ending.outcome is Outcome.LOST:
        raise SandboxGone("the sandbox ended")
    return orderly(ending)


def orderly(ending: Ending) -> bool:
    """Returns whether a cell came to its end by itself, in an interpreter that goes on."""
    return ending.outcome is Outcome.EXIT and ending.code == 0


async def end(sandbox: Sandbox, name: str, reason: str = "") -> str:
    """Ends it with all that it started; returns why it had ended, or ``reason``."""
    try:
        process = await sandbox.process(name)
    except SandboxGone:
        return _REPLACED
    if not reason:
        try:
            async with asyncio.timeout(_ENDING_S):
                return _why(await process.wait())
        except TimeoutError:
            reason = _SILENT
    await process.kill(reason)
    return _why(await process.wait())


def _why(ending: Ending) -> str:
    if ending.outcome is Outcome.EXIT:
        return f"it exited with code {ending.code}"
    if ending.outcome is Outcome.SIGNAL:
        return f"it was ended by {signal_name(ending.signal)}"
    return ending.reason or _ENDED.get(ending.outcome, "it ended")


_ENDED = {
    Outcome.MEMORY: "it used more than its memory limit",
    Outcome.TIMEOUT: "the time of its session was over",
    Outcome.LOST: GONE,
}
