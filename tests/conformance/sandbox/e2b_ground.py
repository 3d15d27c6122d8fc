"""A provider of the tests' own for the e2b backend: the stand-in as a process, and a way to it that can be cut."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import E2bSettings
from skillyard.domain.secret import Delivery, Secret, SecretScope
from skillyard.sandbox.e2b.template import CONTEXT, READY, START, write_template
from tests.hosts import e2b_machines
from tests.hosts.e2b_server import API_KEY
from tests.waiting import until

ROOT = Path(__file__).parents[3]
BOUND_S = 60.0
BAKED, COLD = "baked", "cold"
"""The template that ``skillyard image e2b-template`` wrote, with its start command and without."""


@dataclass(frozen=True)
class StandIn:
    """The stand-in behind ``port``."""

    port: int
    pid: int
    baked: Path
    """The directory that the template ``baked`` brings along."""
    local: Path
    """The link to the directory that machines of the template ``local`` have as /usr/local."""

    @property
    def settings(self) -> E2bSettings:
        return settings(self.port)

    def machines(self) -> dict[str, dict[str, Any]]:
        """What it lends, by id."""
        found: dict[str, dict[str, Any]] = self._told()["machines"]
        return found

    def rest(self) -> None:
        """Returns when machines of the started template are there ahead, where one was asked for."""
        until(lambda: self._told()["full"], BOUND_S, "machines are made ahead")

    def asked(self) -> list[str]:
        found: list[str] = self._told()["asked"]
        return found

    def fail(self, *faults: dict[str, Any]) -> None:
        """The faults of the next requests; the calls before are forgotten."""
        self._told(json.dumps(faults).encode())

    def lose(self, id: str) -> None:
        """Ends a machine as somebody else with the same key does."""
        url = f"http://127.0.0.1:{self.port}/sandboxes/{id}"
        request = urllib.request.Request(url, method="DELETE", headers={"X-API-KEY": API_KEY})
        with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
            assert answer.status == 204

    def _told(self, body: bytes | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/test", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


def settings(port: int) -> E2bSettings:
    address = f"http://127.0.0.1:{port}"
    return E2bSettings(template="base", templates=("other",), api_url=address, sandbox_url=address, http_version="1.1")


async def key(name: str, project: str, skill: str) -> Secret | None:
    """The store that has the stand-in's key."""
    assert (name, project, skill) == ("E2B_API_KEY", "skillyard", "skillyard-e2b")
    return Secret(name, API_KEY, "store:1", Delivery.ENV, (), SecretScope(project, skill))


@contextmanager
def stand_in(scratch: Path) -> Iterator[StandIn]:
    """Skips, with the reason, where no machine can be made. At its end nothing is left of any."""
    if why := e2b_machines.missing():
        pytest.skip(why)
    pytest.importorskip("e2b", reason="E2B's SDK is not installed: pip install 'skillyard[e2b]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    write_template(scratch / "baked", "none", {})
    for name in (START, READY):  # as the Dockerfile does
        shutil.copy(scratch / "baked" / name, scratch / "baked" / CONTEXT / name)
    with (scratch / "e2b.log").open("wb") as log:
        words = [sys.executable, "-m", "tests.hosts.e2b_server", str(port)]
        words += [str(scratch / "baked" / CONTEXT), str(scratch / "local")]
        server = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    try:
        found = StandIn(port, server.pid, scratch / "baked" / CONTEXT, scratch / "local")
        deadline = time.monotonic() + BOUND_S
        while True:
            with suppress(OSError):
                found.machines()
                break
            assert server.poll() is None, (scratch / "e2b.log").read_text()
            assert time.monotonic() < deadline, (scratch / "e2b.log").read_text()
            time.sleep(0.05)
        yield found
        assert found.machines() == {}
    finally:
        server.terminate()
        server.wait(BOUND_S)
        left = e2b_machines.leftovers(server.pid)
        e2b_machines.sweep(server.pid)
    assert left == []


class Way:
    """A way to the stand-in that can be cut: nothing passes, and nobody is met, until it is mended."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._passes, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def end(self) -> None:
        """Cuts it for good; nothing of it works on."""
        await self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=BOUND_S)

    async def _passes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.gather(_flows(reader, back), _flows(there, writer))
        finally:
            for end in (writer, back):
                self._open.discard(end)
                end.transport.abort()


async def _flows(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def way(port: int) -> AsyncIterator[Way]:
    found = Way(port)
    await found.mend()
    try:
        yield found
    finally:
        await found.end()
