"""The interpreter that an agent begins ahead: it is used once, and foreign code never meets it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.sandbox.spec import Guest, GuestCall, Stream, clear_request
from skillyard.domain.work.record import Outcome
from skillyard.guest.agent import wire
from skillyard.guest.command import START
from skillyard.sandbox.agent_client import AgentSandbox
from tests.agents import BOUND_S, PYTHON, AgentBox, collect, gone, python

pytestmark = pytest.mark.anyio

WHO = """
import os, random, sys
def main(args):
    others = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try: words = open(f"/proc/{name}/cmdline").read()
        except OSError: continue
        if args["bundle"] + "\\0call" in words and int(name) != os.getpid(): others.append(int(name))
    ahead = len(open("/proc/self/cmdline").read().strip("\\0").split("\\0")) == 9
    return {"pid": os.getpid(), "ahead": ahead, "number": random.random(), "others": others}
"""


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AgentBox]:
    box = AgentBox(tmp_path)
    box.listen()
    yield box
    await box.close()


async def _called(box: AgentBox, client: AgentSandbox, id: str, **more: Any) -> dict[str, Any]:
    """Returns the value of ``main``, which has to succeed."""
    args = {"bundle": str(box.bundle), **more}
    request = GuestCall("blob:0-", code=WHO, args=args).request() | {"workspace": str(box.workspace)}
    process = await client.start(Guest(request), id=id)
    channel = await collect(process, Stream.CHANNEL)
    ending = await process.wait()
    assert (ending.outcome, ending.code, channel[:1]) == (Outcome.EXIT, 0, b"R"), (ending, channel)
    value: dict[str, Any] = json.loads(channel[5:])
    return value


async def _cleared(box: AgentBox, client: AgentSandbox, id: str) -> list[str]:
    """Returns what is left by the word of the program that clears the sandbox."""
    process = await client.start(Guest(clear_request() | {"workspace": str(box.workspace)}), id=id)
    channel = await collect(process, Stream.CHANNEL)
    assert ((await process.wait()).code, channel[:1]) == (0, b"R"), await collect(process)
    left: list[str] = json.loads(channel[5:])["left"]
    return left


async def _spare(box: AgentBox) -> int:
    """Returns the interpreter that waits, as soon as there is one, by the number of its words."""
    async with asyncio.timeout(BOUND_S):
        while True:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    if str(box.bundle) in (words := path.read_text().strip("\0")) and len(words.split("\0")) == 9:
                        return int(path.parent.name)
            await asyncio.sleep(0.01)


async def test_after_a_clearing_the_next_interpreter_begins_ahead_and_is_used_once(box: AgentBox) -> None:
    client = box.client()
    assert not (await _called(box, client, "first"))["ahead"]
    assert not [
        what for what in await _cleared(box, client, "clears") if "process" in what and str(os.getpid()) in what
    ]
    spare = await _spare(box)
    second, third = await _called(box, client, "second"), await _called(box, client, "third")
    assert (second["ahead"], second["pid"], third["ahead"]) == (True, spare, False)
    assert second["number"] != third["number"]


async def test_no_program_meets_it(box: AgentBox) -> None:
    client = box.client()
    await _cleared(box, client, "clears")
    spare = await _spare(box)
    process = await client.start(python(f"import os; print(os.path.exists('/proc/{spare}/exe'))"), id="looks")
    assert await collect(process) == b"False\n"
    await gone(spare)
    await _cleared(box, client, "clears-again")
    await _spare(box)
    assert (await _called(box, client, "call"))["others"] == []


async def test_one_that_has_ended_is_not_used(box: AgentBox) -> None:
    client = box.client()
    await _cleared(box, client, "clears")
    spare = await _spare(box)
    os.kill(spare, signal.SIGKILL)
    await gone(spare)
    assert not (await _called(box, client, "call"))["ahead"]


async def test_a_request_that_is_large_begins_by_itself(box: AgentBox) -> None:
    client = box.client()
    await _cleared(box, client, "clears")
    await _spare(box)
    assert not (await _called(box, client, "call", more="x" * 2_000_000))["ahead"]


async def test_it_begins_with_the_first_greeting_where_that_is_told_so(tmp_path: Path) -> None:
    box = AgentBox(tmp_path, {"single": True, "ahead": True})
    box.listen()
    try:
        reader, writer = await box.opener()()
        hello = json.dumps({"versions": list(wire.VERSIONS), "nonce": "0" * 32}).encode()
        writer.write(wire.pack(wire.HELLO, 0, hello))
        assert (await reader.read(1))[0] == wire.HELLO
        await _spare(box)  # while the host proves itself
        writer.close()
        assert (await _called(box, box.client(), "one"))["ahead"]
    finally:
        await box.close()


async def test_the_end_takes_it_along(box: AgentBox) -> None:
    client = box.client()
    await _cleared(box, client, "clears")
    spare = await _spare(box)
    await client.end()
    await gone(spare)


async def test_the_agent_begins_with_few_modules(tmp_path: Path) -> None:
    box = AgentBox(tmp_path)
    code = START.replace("; main()", "; import skillyard_guest.agent.server; print(*sys.modules)")
    words = [PYTHON, "-I", "-S", "-c", code, str(box.bundle)]
    loaded = set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert "skillyard_guest.agent.server" in loaded
    assert not loaded & {"json", "re", "enum", "socket", "signal", "hmac", "hashlib", "functools", "collections"}
