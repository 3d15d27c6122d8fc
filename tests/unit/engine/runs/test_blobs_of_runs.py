"""Blobs that a run makes, and what happens to a channel that breaks the rules."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import QuotaExceeded, StoreFault
from skillyard.domain.sandbox.frames import FrameLimits
from skillyard.engine.runs.collect import INLINE, BlobSink, BlobTarget, Broken, Channel
from skillyard.engine.tasks import Tasks
from skillyard.ports.blobs import BlobInfo
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import blob, frame, js, raises, result

pytestmark = pytest.mark.anyio


async def test_blobs_are_stored_under_the_runs_own_prefix(rig: Rig) -> None:
    run = await rig.run(playing(blob(1, "text/csv", b"a,b\n"), blob(2, "application/json", b"{}"), result({})))
    prefix = rig.backend.started[0][1]["blob_prefix"]
    assert run["output_blobs"] == [f"{prefix}1", f"{prefix}2"]
    info = await rig.app.ports.blobs.stat(f"{prefix}1")
    assert info is not None
    assert (info.kind, info.size, info.owner, info.run_id) == ("text/csv", 4, "local", run["run_id"])
    assert await rig.content(f"{prefix}2") == b"{}"


async def test_a_large_blob_flows_into_the_store_in_pieces(rig: Rig) -> None:
    piece = bytes(range(256)) * 2048

    async def script(process: TwinProcess) -> None:
        process.write(frame(b"B", js({"n": 1, "kind": "application/octet-stream"})))
        for _ in range(8):
            process.write(frame(b"D", (1).to_bytes(4, "big") + piece))
        process.write(frame(b"E", js({"n": 1, "size": 8 * len(piece)})) + result({}))

    run = await rig.run(script)
    [blob_id] = run["output_blobs"]
    info = await rig.app.ports.blobs.stat(blob_id)
    assert info is not None
    assert info.sha256 == hashlib.sha256(piece * 8).hexdigest()


async def test_frames_may_come_in_any_pieces(rig: Rig) -> None:
    data = blob(1, "text/plain", b"one", b"two") + result({"x": 1})

    async def script(process: TwinProcess) -> None:
        import asyncio

        for byte in data:
            process.write(bytes([byte]))
            await asyncio.sleep(0)

    run = await rig.run(script)
    assert run["output"] == {"x": 1}
    assert await rig.content(run["output_blobs"][0]) == b"onetwo"


async def test_blobs_may_be_written_side_by_side(rig: Rig) -> None:
    def begin(n: int) -> bytes:
        return frame(b"B", js({"n": n, "kind": "text/plain"}))

    def piece(n: int, data: bytes) -> bytes:
        return frame(b"D", n.to_bytes(4, "big") + data)

    def end(n: int, size: int) -> bytes:
        return frame(b"E", js({"n": n, "size": size}))

    writes = [begin(1), begin(2), piece(2, b"b"), piece(1, b"aa"), end(2, 1), piece(1, b"a"), end(1, 3), result({})]
    run = await rig.run(playing(*writes))
    assert [await rig.content(b) for b in sorted(run["output_blobs"])] == [b"aaa", b"b"]


async def test_an_abandoned_and_an_unfinished_blob_do_not_exist(rig: Rig) -> None:
    abandoned = blob(1, "text/plain", b"x")[:-1]
    abandoned = frame(b"B", js({"n": 1, "kind": "text/plain"})) + frame(b"A", js({"n": 1}))
    large = frame(b"B", js({"n": 2, "kind": "text/plain"}))
    large += frame(b"D", (2).to_bytes(4, "big") + b"z" * (INLINE + 1))
    run = await rig.run(playing(abandoned, large, raises("ValueError", "gave up")))
    assert run["output_blobs"] == []
    assert run["error"]["type"] == "ValueError"
    assert await rig.app.ports.blobs.list(None) == []


async def test_blobs_of_a_failed_run_are_kept(rig: Rig) -> None:
    run = await rig.run(playing(blob(1, "text/plain", b"evidence"), raises("ValueError", "x")))
    assert await rig.content(run["output_blobs"][0]) == b"evidence"


BROKEN = {
    "unknown frame": b"Z\0\0\0\0",
    "huge frame": b"B\xff\xff\xff\xff",
    "no json": frame(b"B", b"{"),
    "no object": frame(b"B", b"[]"),
    "deep json": frame(b"E", b"[" * 4000),
    "no number": frame(b"B", js({"n": "1", "kind": "text/plain"})),
    "boolean number": frame(b"B", js({"n": True, "kind": "text/plain"})),
    "number again": blob(1, "text/plain", b"a") + blob(1, "text/plain", b"b"),
    "no kind": frame(b"B", js({"n": 1})),
    "bad kind": blob(1, "not a kind\r\nX-Header: 1", b"x"),
    "piece of nothing": frame(b"D", (7).to_bytes(4, "big") + b"x"),
    "short piece": frame(b"D", b"\0"),
    "wrong size": blob(1, "text/plain", b"abc", size=2),
    "end of nothing": frame(b"E", js({"n": 1, "size": 0})),
    "abandon nothing": frame(b"A", js({"n": 1})),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
async def test_a_channel_that_breaks_the_rules_ends_the_run(rig: Rig, data: bytes) -> None:
    async def script(process: TwinProcess) -> None:
        process.write(data)
        await process.ended

    run = await rig.run(script)
    assert (run["status"], run["error"]["type"]) == ("failed", "SandboxError")
    assert rig.backend.held == {}
    assert (await rig.record(run)).outcome == "output"


async def test_too_many_open_blobs_end_the_run(rig: Rig) -> None:
    begins = [frame(b"B", js({"n": n, "kind": "text/plain"})) for n in range(1, 66)]
    assert (await rig.run(playing(*begins, result({}))))["error"]["type"] == "SandboxError"


async def test_too_many_blobs_end_the_run(rig: Rig) -> None:
    rig.configure(blobs={"per_run": 2})
    run = await rig.run(playing(*(blob(n, "text/plain", b"x") for n in (1, 2, 3)), result({})))
    assert run["status"] == "failed"
    assert len(run["output_blobs"]) == 2


async def test_nothing_may_follow_the_last_frame(rig: Rig) -> None:
    run = await rig.run(playing(result({"first": 1}), blob(1, "text/plain", b"x")))
    assert (run["error"]["type"], run["output_blobs"]) == ("SandboxError", [])


async def test_a_store_that_fails_at_the_end_of_a_large_blob_ends_the_run(rig: Rig) -> None:
    class Full:
        """Takes all pieces, and has no room for the row."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        async def create(self, owner: str, kind: str, data: AsyncIterator[bytes], **more: object) -> BlobInfo:
            async for _ in data:
                pass
            raise StoreFault("no room is left")

    real, rig.extra["blobs"] = rig.extra["blobs"], Full()
    rig.configure()
    async with asyncio.timeout(10):
        run = await rig.run(playing(blob(1, "text/plain", b"x" * 2 * INLINE), result({})))
    assert (run["status"], run["error"]["type"]) == ("failed", "PolicyRefused")
    assert "no room is left" in run["error"]["message"]


@pytest.mark.parametrize("size", [10, INLINE + 10, 5 * INLINE])
async def test_a_quota_ends_the_run_and_names_the_reason(rig: Rig, size: int) -> None:
    async def refuse(*args: Any, **kwargs: Any) -> BlobInfo:
        if isinstance(args[2], AsyncIterator):
            await anext(args[2])
        raise QuotaExceeded("content", "would pass the quota of 5 bytes")

    rig.app.ports.blobs.create = refuse  # type: ignore[method-assign]
    try:
        pieces = [b"x" * min(INLINE, size - at) for at in range(0, size, INLINE)]
        run = await rig.run(playing(blob(1, "text/plain", *pieces), result({}), log=b"log"))
    finally:
        del rig.app.ports.blobs.create
    assert (run["status"], run["error"]["type"]) == ("failed", "PolicyRefused")
    assert "quota of 5 bytes" in run["error"]["message"]
    assert (run["logs_preview"], "logs_blob" in run) == ("log", False)
    assert "the full log was not kept" in (await rig.record(run)).reason


class Forgetful:
    """A store that swallows everything."""

    async def create(self, owner: str, kind: str, data: Any, **more: Any) -> BlobInfo:
        if not isinstance(data, bytes):
            async for _ in data:
                pass
        return BlobInfo(more["blob_id"], kind, 0, "", owner, 0.0, None)


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(list(BROKEN.values()))), max_size=8))
async def test_no_bytes_bring_the_channel_to_anything_but_its_own_error(chunks: list[bytes]) -> None:
    tasks = Tasks()
    target = BlobTarget(Forgetful(), tasks, "o", "run_1", "blob:p-", None)  # type: ignore[arg-type]
    channel = Channel(BlobSink(target), FrameLimits(blobs=10, blob_bytes=100))
    with suppress(Broken):  # and nothing else
        for chunk in chunks:
            await channel.feed(chunk)
    await channel.sink.abort()
    await tasks.close()
