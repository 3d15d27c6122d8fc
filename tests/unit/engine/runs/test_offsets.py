"""A resumed driver goes on where the last one noted, and nothing that was taken before is missing in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.domain.work.record import NOTHING_TAKEN, Outcome, RunRecord
from skillyard.engine.runs.collect import NOTED_BYTES
from skillyard.engine.runs.log import PART_BYTES
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill, blob, result
from tests.unit.engine.runs.resuming import Deadly, ended, idle, killed, next_server, only_record

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-of-the-test"
LINE = f"{'x' * 1000} {SECRET} tail\n".encode()
SHOWN = LINE.replace(SECRET.encode(), b"[redacted]")
LINES = 2 * PART_BYTES // len(LINE) + 300
LOG = LINE * LINES
BLOBS = [bytes([65 + n]) * (NOTED_BYTES // 4) for n in range(6)]


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 500_000] for at in range(0, len(data), 500_000)]


SENT = [blob(n + 1, "text/plain", *_pieces(data)) for n, data in enumerate(BLOBS)]


class Large:
    """A program with a log of some parts and blobs of which some are noted. ``go_on`` begins its end."""

    def __init__(self) -> None:
        self.half = asyncio.Event()
        self.go_on = asyncio.Event()
        self.started = 0
        self.process: TwinProcess | None = None

    async def __call__(self, process: TwinProcess) -> None:
        self.started += 1
        self.process = process
        for sent in SENT[:5]:
            process.write(sent)
        process.log(LOG)
        self.half.set()
        await self.go_on.wait()
        process.write(SENT[5])
        process.log(b"end\n")
        process.write(result({"done": True}))


class Reads:
    """Notes from where each stream of a program is read."""

    def __init__(self, process: TwinProcess) -> None:
        self.offsets: dict[Stream, list[int]] = {stream: [] for stream in Stream}
        output = process.output

        async def noted(stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
            self.offsets[stream].append(offset)
            async for data in output(stream, offset):
                yield data

        process.output = noted  # type: ignore[method-assign]


async def _begun(rig: Rig, work: Large) -> str:
    rig.skills.add(a_skill("a.b", needs=Needs(secrets=(SecretNeed("KEY"),))))
    rig.secrets.values = {"KEY": SECRET}
    rig.backend.script = work
    return str((await rig.call("execute_skill", name="a.b", detach=True))["run_id"])


async def _noted(rig: Rig) -> RunRecord:
    """Returns the record of the run when both of its streams are noted as far as they are worth it."""
    async with asyncio.timeout(20):
        while (record := await only_record(rig)).offsets.log.parts < 2 or not record.offsets.channel.offset:
            await asyncio.sleep(0)
    return record


async def _check(rig: Rig, record: RunRecord) -> None:
    assert (record.status.value, record.output, record.reason) == ("completed", {"done": True}, "")
    assert [await rig.content(blob_id) for blob_id in record.output_blobs] == BLOBS
    assert record.logs_blob is not None
    assert await rig.content(record.logs_blob) == SHOWN * LINES + b"end\n"
    assert record.logs_preview.startswith(SHOWN[:500].decode())
    assert record.logs_preview.endswith("tail\nend\n")
    made = {info.blob_id for info in await rig.app.ports.blobs.list(None)}
    assert made == {*record.output_blobs, record.logs_blob}
    assert record.offsets == NOTHING_TAKEN
    await idle(rig)


async def test_a_resumed_driver_goes_on_where_the_last_one_noted(rig: Rig) -> None:
    work = Large()
    run_id = await _begun(rig, work)
    await asyncio.wait_for(work.half.wait(), 10)
    before = await _noted(rig)
    assert before.output_blobs == tuple(f"{before.blob_prefix}{n + 1}" for n in range(before.offsets.channel.ended))
    await killed(rig)
    assert work.process is not None
    reads = Reads(work.process)
    await next_server(rig)
    work.go_on.set()
    await _check(rig, await ended(rig, run_id))
    assert reads.offsets[Stream.CHANNEL] == [before.offsets.channel.offset]
    assert reads.offsets[Stream.STDOUT] == [before.offsets.log.offset]
    assert before.offsets.log.offset > 1.9 * PART_BYTES
    assert work.started == 1


STEPS = [
    ("blobs", "create", before, nth) for before in (True, False) for nth in range(1, 10)
] + [("records", "change", before, nth) for before in (True, False) for nth in range(3, 7)] + [
    ("blobs", "delete", True, 1), ("blobs", "delete", False, 1), ("blobs", "delete", False, 2),
    ("records", "finish", True, 1), ("records", "finish", False, 1),
]  # fmt: skip


@pytest.mark.parametrize(("port", "method", "before", "nth"), STEPS)
async def test_server_ends_at_a_step_of_taking_output(rig: Rig, port: str, method: str, before: bool, nth: int) -> None:
    work, real = Large(), rig.extra[port]
    deadly = rig.extra[port] = Deadly(real, method, nth, before=before)
    rig.configure()
    rig.extra[port] = real
    run_id = await _begun(rig, work)
    work.go_on.set()
    await asyncio.wait_for(deadly.reached.wait(), 20)
    await killed(rig)
    await next_server(rig)
    await _check(rig, await ended(rig, run_id))
    assert work.started == 1


async def test_a_lost_run_has_the_output_that_was_taken(rig: Rig) -> None:
    work = Large()
    run_id = await _begun(rig, work)
    await asyncio.wait_for(work.half.wait(), 10)
    noted = await _noted(rig)
    await killed(rig)
    await rig.backend.close()
    await next_server(rig)
    record = await ended(rig, run_id)
    assert record.outcome is Outcome.LOST
    assert record.output_blobs == noted.output_blobs
    assert record.logs_blob is not None
    log = await rig.content(record.logs_blob)
    assert len(log) >= 2 * PART_BYTES
    assert (SHOWN * LINES).startswith(log)
    made = {info.blob_id for info in await rig.app.ports.blobs.list(None)}
    assert {*record.output_blobs, record.logs_blob} <= made
    assert not [blob_id for blob_id in made if "log-" in blob_id]


async def test_the_record_says_that_a_ring_dropped_bytes(rig: Rig) -> None:
    half, go_on = asyncio.Event(), asyncio.Event()
    processes: list[TwinProcess] = []

    async def rings(process: TwinProcess) -> None:
        processes.append(process)
        process.log(b"a" * PART_BYTES)
        half.set()
        await go_on.wait()
        process.log(b"b" * 1000)
        process.write(result({}))

    run = await rig.run(rings, detach=True)
    await asyncio.wait_for(half.wait(), 10)
    async with asyncio.timeout(10):
        while not (await only_record(rig)).offsets.log.parts:
            await asyncio.sleep(0)
    await killed(rig)
    processes[0].drop(PART_BYTES + 400)
    go_on.set()
    async with asyncio.timeout(10):
        while not processes[0].ended.done():
            await asyncio.sleep(0)
    await next_server(rig)
    record = await ended(rig, run["run_id"])
    assert record.status.value == "completed"
    assert "400 bytes of the log were dropped" in record.reason
    assert record.logs_blob is not None
    log = await rig.content(record.logs_blob)
    assert log == b"a" * PART_BYTES + b"\n[... 400 bytes were dropped ...]\n" + b"b" * 600


async def test_a_part_that_was_removed_is_told_of(rig: Rig) -> None:
    work = Large()
    run_id = await _begun(rig, work)
    await asyncio.wait_for(work.half.wait(), 10)
    noted = await _noted(rig)
    await rig.app.ports.blobs.delete(f"{noted.blob_prefix}log-0")
    work.go_on.set()
    record = await ended(rig, run_id)
    assert record.logs_blob is not None
    log = await rig.content(record.logs_blob)
    assert log.startswith(b"\n[... a part of the log was removed ...]\n")
    assert log.endswith(SHOWN + b"end\n")


async def test_an_attached_run_and_a_small_one_write_nothing_more(rig: Rig) -> None:
    changes: list[Any] = []
    real = rig.extra["records"].change

    async def change(*args: Any, **more: Any) -> Any:
        changes.append(args)
        return await real(*args, **more)

    rig.extra["records"].change = change
    work = Large()
    work.go_on.set()
    await rig.run(work)
    assert changes == []

    async def small(process: TwinProcess) -> None:
        process.log(b"line\n" * 1000)
        process.write(blob(1, "text/plain", b"x" * 100_000))
        process.write(result({}))

    run = await rig.run(small, detach=True)
    await ended(rig, run["run_id"])
    assert len(changes) == 3, "starting, running and the end"
