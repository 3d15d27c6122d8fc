"""Servers that end at a step of a detached run, over stores and a backend that live on."""

from __future__ import annotations

import asyncio
from typing import Any

from skillyard.domain.work.record import RunRecord
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import blob, result


class Deadly:
    """A port at whose ``method`` the server stands still for ever: ``before`` its ``nth`` call, or after it."""

    def __init__(self, port: Any, method: str, nth: int = 1, *, before: bool) -> None:
        self._port = port
        self._method = method
        self._left = nth
        self._before = before
        self.reached = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        return self._deadly(real) if name == self._method else real

    def __iter__(self) -> Any:
        return iter(self._port)

    def _deadly(self, real: Any) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left:
                return await real(*args, **more)
            if not self._before:
                await real(*args, **more)
            self.reached.set()
            return await asyncio.Event().wait()

        return call


class Work:
    """A program that writes a log, a small and a large blob, and a result. ``go_on`` begins its second half."""

    LARGE = b"L" * 700_000

    def __init__(self) -> None:
        self.half = asyncio.Event()
        self.go_on = asyncio.Event()
        self.started = 0

    async def __call__(self, process: TwinProcess) -> None:
        self.started += 1
        process.log(b"first\n")
        process.write(blob(1, "text/plain", b"small"))
        large = blob(2, "text/plain", self.LARGE)
        process.write(large[:400_000])
        self.half.set()
        await self.go_on.wait()
        process.write(large[400_000:])
        process.log(b"second\n")
        process.write(result({"done": True}))


async def killed(rig: Rig) -> None:
    """Ends the server as a kill does: nothing is written, and nobody drives its detached runs any more."""
    await rig.app.detached.leave()
    assert rig.app.active == {}


async def next_server(rig: Rig) -> None:
    """Starts a server over the same stores and backend."""
    rig.configure()
    await rig.app.start()


async def ended(rig: Rig, run_id: str) -> RunRecord:
    """Returns the record when the run has ended."""
    async with asyncio.timeout(20):
        answer: dict[str, Any] = {"ended": False}
        while not answer["ended"]:
            answer = await rig.call("runs.wait", run_id=run_id, wait_ms=1000)
    record = await rig.app.ports.records.get(run_id)
    assert record is not None
    return record


async def idle(rig: Rig) -> None:
    """Waits until no run has a place: the last one gives it back after its record is written."""
    async with asyncio.timeout(20):
        while rig.app.admission.running or rig.backend.held:
            await asyncio.sleep(0)


async def only_record(rig: Rig) -> RunRecord:
    [record] = await rig.app.ports.records.list(None)
    found = await rig.app.ports.records.get(record.run_id)
    assert found is not None
    return found


async def check_work(rig: Rig, record: RunRecord) -> None:
    """Checks that nothing of :class:`Work` is lost, doubled or invented."""
    assert (record.status.value, record.output) == ("completed", {"done": True}), record.error
    assert [await rig.content(blob_id) for blob_id in record.output_blobs] == [b"small", Work.LARGE]
    assert record.logs_blob is not None
    assert await rig.content(record.logs_blob) == b"first\nsecond\n"
    made = {info.blob_id for info in await rig.app.ports.blobs.list(None)}
    assert made == {*record.output_blobs, record.logs_blob}
    assert record.lease is None
    assert await rig.app.ports.records.request(record.run_id) is None
