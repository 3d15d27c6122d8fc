"""Who ends a run before its time: its caller by going away, anybody by its id, the server by stopping."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.errors import Busy, RunNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import Ending, Outcome, RunRecord, RunStatus
from skillyard.engine.runs.collect import INLINE, BlobSink, BlobTarget
from skillyard.engine.tasks import Tasks
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import CODE, Rig, StoredRig
from tests.unit.engine.fakes import blob, frame, js, result

pytestmark = pytest.mark.anyio


class Endless:
    """A program that works until it is killed. ``working`` is set when it started."""

    def __init__(self) -> None:
        self.working = asyncio.Event()
        self.process: TwinProcess | None = None

    async def __call__(self, process: TwinProcess) -> None:
        process.log(b"so far\n")
        process.write(blob(1, "text/plain", b"kept"))
        process.write(frame(b"B", js({"n": 2, "kind": "text/plain"})) + frame(b"D", b"\0\0\0\2half"))
        self.process = process
        self.working.set()
        await process.ended


async def only(rig: Rig) -> RunRecord:
    [record] = await rig.app.ports.records.list(None)
    return record


async def begun(rig: Rig, **params: object) -> tuple[Endless, asyncio.Task[dict[str, object]]]:
    endless = Endless()
    task = asyncio.create_task(rig.run(endless, **params))
    await asyncio.wait_for(endless.working.wait(), 5)
    return endless, task


async def test_a_caller_that_goes_away_cancels_its_run(rig: Rig) -> None:
    endless, task = await begun(rig)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await only(rig)
    assert (record.status, record.outcome) == (RunStatus.FAILED, Outcome.CANCELLED)
    assert record.error is not None
    assert record.error["type"] == "Cancelled"
    assert "caller went away" in record.reason
    assert record.logs_preview == "so far\n"
    assert [await rig.content(b) for b in record.output_blobs] == [b"kept"]
    assert endless.process is not None
    assert endless.process.killed
    assert rig.backend.held == {}
    assert rig.app.admission.running == 0


def _file(n: int, path: str, *pieces: bytes, end: bool) -> bytes:
    said = frame(b"B", js({"n": n, "kind": "text/plain", "path": path}))
    for piece in pieces:
        said += frame(b"D", n.to_bytes(4, "big") + piece)
    return said + frame(b"E", js({"n": n, "size": sum(map(len, pieces))})) if end else said


async def test_a_caller_that_goes_away_while_files_are_collected(stored_rig: StoredRig) -> None:
    """What was stored is in the record, nothing waits for the rest, and the log is kept once."""
    rig = stored_rig
    collecting = asyncio.Event()

    async def time_out(process: TwinProcess) -> None:
        process.log(b"so far\n")
        process.end(Ending(Outcome.TIMEOUT))

    async def collect(process: TwinProcess) -> None:
        process.write(_file(1, "a.txt", b"whole", end=True) + _file(2, "b.txt", *[b"x" * 2**20] * 3, end=False))
        while not list((rig.home / "blobs" / "tmp").iterdir()):  # the large one is on its way into the store
            await asyncio.sleep(0)
        collecting.set()
        await process.ended

    rig.backend.left = collect
    task = asyncio.create_task(rig.run(time_out))
    await asyncio.wait_for(collecting.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(rig.app.tasks.drain(), 5)
    record = await only(rig)
    assert [(file["path"], await rig.content(file["blob_id"])) for file in record.files] == [("a.txt", b"whole")]
    assert record.output_blobs == (record.files[0]["blob_id"],)
    assert {info.blob_id for info in await rig.app.ports.blobs.list(None)} == {*record.output_blobs, record.logs_blob}
    assert list((rig.home / "blobs" / "tmp").iterdir()) == []
    assert rig.backend.held == {}


async def test_a_stream_that_is_given_up_at_its_end_is_ended() -> None:
    """Its store takes nothing, so that its last piece waits for room."""
    begun = asyncio.Event()

    class Stuck:
        async def create(self, *_: object, **__: object) -> None:
            begun.set()
            await asyncio.Event().wait()

    tasks = Tasks()
    sink = BlobSink(BlobTarget(Stuck(), tasks, "ann", "run_1", "blob:1-", None))  # type: ignore[arg-type]
    sink.begin(1, "text/plain")
    for _ in range(4):
        await sink.piece(1, b"x" * (INLINE + 1))
    await asyncio.wait_for(begun.wait(), 5)
    ending = asyncio.create_task(sink.end(1, 4 * (INLINE + 1)))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await sink.abort()
    await asyncio.wait_for(tasks.drain(), 5)


async def test_cancelling_again_and_again_changes_nothing(rig: Rig) -> None:
    _, task = await begun(rig)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    await rig.app.tasks.drain()
    assert (await only(rig)).outcome is Outcome.CANCELLED
    assert rig.backend.held == {}


async def test_a_detached_run_goes_on(rig: Rig) -> None:
    endless, task = await begun(rig, detach=True)
    answer = await asyncio.wait_for(task, 5)
    assert answer["status"] == "queued"
    assert (await only(rig)).status is RunStatus.RUNNING
    assert endless.process is not None
    endless.process.write(result({"late": 1}))
    endless.process.end()
    await rig.app.tasks.drain()
    record = await only(rig)
    assert (record.status, record.output) == (RunStatus.COMPLETED, {"late": 1})


async def test_cancel_by_id(rig: Rig) -> None:
    _, task = await begun(rig)
    run_id = (await only(rig)).run_id
    answer = await rig.call("runs.cancel", run_id=run_id, reason="enough")
    assert answer["cancelled"] is True
    assert answer["run"]["outcome"] == "cancelled"
    assert "enough" in answer["run"]["reason"]
    assert rig.backend.held == {}
    run = await task
    assert run["status"] == "failed"
    again = await rig.call("runs.cancel", run_id=run_id)
    assert again["cancelled"] is False


async def test_cancel_while_the_sandbox_is_being_made(rig: Rig) -> None:
    rig.backend.gate = asyncio.Event()
    task = asyncio.create_task(rig.run())
    while not rig.backend.held:
        await asyncio.sleep(0)
    cancelling = asyncio.create_task(rig.call("runs.cancel", run_id=(await only(rig)).run_id))
    await asyncio.sleep(0)
    rig.backend.gate.set()
    assert (await cancelling)["cancelled"] is True
    assert (await task)["status"] == "failed"
    assert rig.backend.started == []
    assert rig.backend.held == {}


async def test_a_caller_that_goes_while_the_sandbox_is_being_made_leaves_none(rig: Rig) -> None:
    rig.backend.gate = asyncio.Event()
    task = asyncio.create_task(rig.run())
    while not rig.backend.held:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await rig.app.tasks.drain()
    assert rig.backend.held == {}
    assert (await only(rig)).outcome is Outcome.CANCELLED


async def test_another_principal_can_neither_see_nor_cancel(rig: Rig) -> None:
    _, task = await begun(rig)
    run_id = (await only(rig)).run_id
    stranger = Principal("stranger", frozenset({Scope.EXECUTE}))
    for method in ("runs.show", "runs.logs", "runs.cancel"):
        with pytest.raises(RunNotFound):
            await rig.call(method, stranger, run_id=run_id)
    assert (await rig.call("runs.list", stranger))["runs"] == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_logs_of_a_working_run(rig: Rig) -> None:
    endless, task = await begun(rig)
    run_id = (await only(rig)).run_id
    page = await rig.call("runs.logs", run_id=run_id)
    assert (page["content"], page["running"], page["complete"]) == ("so far\n", True, False)
    assert endless.process is not None
    endless.process.log(b"more\n")
    page = await rig.call("runs.logs", run_id=run_id, offset=page["next_offset"])
    assert page["content"] == "more\n"
    endless.process.end()
    await task
    page = await rig.call("runs.logs", run_id=run_id, offset=3)
    assert (page["content"], page["running"], page["complete"]) == ("far\nmore\n", False, True)
    assert (await rig.call("runs.logs", run_id=run_id, offset=10_000))["content"] == ""


async def test_shutdown_cancels_what_does_not_end(rig: Rig) -> None:
    _, task = await begun(rig)
    await rig.app.close(grace_s=0.01)
    run = await task
    assert run["error"]["type"] == "Cancelled"  # type: ignore[index]
    assert "shutting down" in (await only(rig)).reason
    with pytest.raises(Busy, match="shutting down"):
        await rig.call("run_code", language="python", code=CODE)


async def test_shutdown_lets_a_run_end_within_the_grace(rig: Rig) -> None:
    endless, task = await begun(rig)
    closing = asyncio.create_task(rig.app.close(grace_s=5))
    await asyncio.sleep(0)
    assert endless.process is not None
    endless.process.write(result({"done": True}))
    endless.process.end()
    await closing
    assert (await task)["status"] == "completed"
