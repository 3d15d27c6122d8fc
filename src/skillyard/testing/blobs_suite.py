"""The conformance suite of the blobs port."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.blob import BlobLimits
from skillyard.domain.errors import BlobNotFound, InvalidInput, QuotaExceeded
from skillyard.ports.blobs import BlobInfo, BlobStore
from skillyard.testing.memory import ManualClock
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[ManualClock, BlobLimits], AbstractAsyncContextManager[BlobStore]]
"""Stores are made with a clock and limits; each must begin empty."""
check = Checks[Maker]()
CHECKS = check.all

SIZES = (0, 1, 4096, 4097, 1024 * 1024, 2 * 1024 * 1024 + 3)
"""Around the sizes at which the local store changes its ways."""
NO_LIMITS = BlobLimits()
NO_KINDS = ("", "text", "/plain", "text/", "te xt/plain", "text/plain\r\nX-Evil: 1", "text/plain\n", "a/" + "b" * 300)
KINDS = ("text/plain", "application/vnd.x+json", 'text/csv; charset=utf-8; header="a;b"')
NO_IDS = ("", "blob:", "x", "blob:.", "blob:..", "blob:a/b", "blob:a b", "blob:" + "a" * 129, "blob:a\n")


def pattern(size: int) -> bytes:
    """Bytes that differ from place to place."""
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


async def streamed(content: bytes, piece: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(content), piece):
        yield content[start : start + piece]


async def whole(store: BlobStore, blob_id: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.read(blob_id, offset, length)])


@check
async def bytes_come_back(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        for size in SIZES:
            content = pattern(size)
            for data in (content, streamed(content), streamed(content, 100_000)):
                info = await store.create("alice", "text/plain", data, run_id="run_1")
                expect(info.size == size, "size counts the bytes", info)
                expect(info.sha256 == hashlib.sha256(content).hexdigest(), "sha256 is the bytes'", info)
                expect((info.owner, info.run_id) == ("alice", "run_1"), "owner and run are kept", info)
                expect(await store.stat(info.blob_id) == info, "stat gives the same")
                expect(await whole(store, info.blob_id) == content, "the bytes come back")


@check
async def ids_differ_and_may_be_chosen(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        ids = {(await store.create("a", "text/plain", b"x")).blob_id for _ in range(10)}
        expect(len(ids) == 10, "each blob has its own id", ids)
        chosen = await store.create("a", "text/plain", b"1", blob_id="blob:A.b_c-1")
        expect(chosen.blob_id == "blob:A.b_c-1", "a chosen id is kept", chosen)
        for size in (3, 100_000):
            asked = store.create("b", "text/plain", pattern(size), blob_id="blob:A.b_c-1")
            error = await refused(InvalidInput, asked, "a taken id is refused")
            expect(error.field == "blob_id", "the error names the field", error.field)
        expect(await whole(store, "blob:A.b_c-1") == b"1", "the first one stands")
        for blob_id in NO_IDS:
            asked = store.create("a", "text/plain", b"", blob_id=blob_id)
            await refused(InvalidInput, asked, f"the id {blob_id!r} is refused")


@check
async def kinds_are_mime_types(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        for kind in KINDS:
            expect((await store.create("a", kind, b"")).kind == kind, "a MIME type is kept as it is")
        for kind in NO_KINDS:
            error = await refused(InvalidInput, store.create("a", kind, b""), f"{kind[:30]!r} is refused")
            expect(error.field == "kind", "the error names the field", error.field)
        expect(len(await store.list("a")) == len(KINDS), "refused blobs are not stored")


@check
async def parts_can_be_read(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        for size in (10, 5000, 2_500_000):
            content = pattern(size)
            info = await store.create("a", "text/plain", content)
            ends = (0, 1, size // 2, size - 1, size, size + 1, size * 3)
            for offset in ends:
                for length in (None, *ends):
                    end = size if length is None else offset + length
                    seen = await whole(store, info.blob_id, offset, length)
                    expect(seen == content[offset:end], f"bytes {offset}+{length} of {size}", len(seen))
            for offset, length in ((-1, None), (0, -1)):
                asked = whole(store, info.blob_id, offset, length)
                await refused(InvalidInput, asked, "a negative range is refused")


@check
async def what_is_not_there_is_not_found(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        for blob_id in ("blob:nothing", "blob:../../etc/passwd", "blob:\ud800", ""):
            expect(await store.stat(blob_id) is None, "stat gives None")
            await refused(BlobNotFound, whole(store, blob_id), "read raises")
            await refused(BlobNotFound, store.path(blob_id), "path raises")
            expect(not await store.delete(blob_id), "delete gives False")


@check
async def paths_are_read_only_files(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        for size in SIZES:
            info = await store.create("a", "text/plain", pattern(size))
            path = await store.path(info.blob_id)
            expect(path.read_bytes() == pattern(size), "the file holds the bytes")
            expect(stat.S_IMODE(path.stat().st_mode) == 0o444, "it is read-only", oct(path.stat().st_mode))
            expect(await store.path(info.blob_id) == path, "and stays where it is")


@check
async def equal_contents_live_and_die_apart(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        for size in (100, 100_000):
            first = await store.create("alice", "text/plain", pattern(size))
            second = await store.create("bob", "text/csv", streamed(pattern(size)))
            await store.path(first.blob_id)
            expect(await store.delete(first.blob_id), "delete says that it was there")
            expect(not await store.delete(first.blob_id), "and that it is not")
            expect(await store.stat(first.blob_id) is None, "the deleted one is gone")
            expect(await whole(store, second.blob_id) == pattern(size), "the other stays")
            expect((await store.path(second.blob_id)).read_bytes() == pattern(size), "its file too")
            await store.sweep()
            expect(await whole(store, second.blob_id) == pattern(size), "a sweep leaves it")


@check
async def a_reader_survives_the_deletion(make: Maker) -> None:
    async with make(ManualClock(), NO_LIMITS) as store:
        content = pattern(3 * 1024 * 1024)
        info = await store.create("a", "text/plain", content)
        pieces = store.read(info.blob_id)
        seen = await anext(pieces)
        await store.delete(info.blob_id)
        seen += b"".join([piece async for piece in pieces])
        expect(seen == content, "a read that began ends with all bytes", len(seen))


@check
async def the_oldest_blobs_of_runs_go(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock, NO_LIMITS) as store:
        uploaded = await store.create("a", "text/plain", pattern(90_000))
        other = await store.create("b", "text/plain", pattern(60_000), run_id="run_b")
        made = []
        for number in range(5):
            clock.advance(1)
            made.append(await store.create("a", "text/plain", pattern(20_000 + number), run_id=f"run_{number}"))
        left = [uploaded, *made]
        expect(await store.trim(200_000, clock.now()) == 0, "below the bound all stay")
        expect(await store.trim(60_010, clock.now(), ["run_0"]) == 1, "the run at work keeps its blob")
        left.remove(made[1])
        expect({*await store.list("a")} == {*left}, "the oldest of an ended one goes, and no upload")
        await refused(BlobNotFound, whole(store, made[1].blob_id), "it cannot be read")
        expect(await store.trim(0, clock.now()) == 4, "one that was made just now stays")
        expect({*await store.list("a")} == {uploaded, made[4]}, "and uploads")
        expect(await store.list("b") == [], "each owner has the bound")
        await refused(BlobNotFound, whole(store, other.blob_id), "another owner's is gone, too")


@check
async def blobs_expire(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock, NO_LIMITS) as store:
        kept = await store.create("a", "text/plain", b"kept")
        brief = [await store.create("a", "text/plain", pattern(size), ttl_s=10) for size in (5, 50_000)]
        for info in brief:
            expect(info.expires_at == clock.now() + 10, "expires_at is now and the ttl", info)
        clock.advance(9.5)
        expect(len(await store.list("a")) == 3, "until then it is there")
        clock.advance(0.5)
        for info in brief:
            expect(await store.stat(info.blob_id) is None, "then it is not")
            await refused(BlobNotFound, whole(store, info.blob_id), "nor can be read")
            await refused(BlobNotFound, store.path(info.blob_id), "nor mounted")
        expect(await store.list("a") == [kept], "nor is listed")
        expect(not await store.delete(brief[0].blob_id), "nor can be deleted")
        expect(await store.sweep() == 1, "a sweep counts what it removes")
        expect(await store.sweep() == 0, "once")
        for ttl_s in (0, -1, float("nan"), float("inf")):
            asked = store.create("a", "text/plain", b"", ttl_s=ttl_s)
            await refused(InvalidInput, asked, f"a ttl of {ttl_s} is refused")


@check
async def a_list_is_newest_first_in_pages(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock, NO_LIMITS) as store:
        made = []
        for number in range(7):
            made.append(await store.create("a" if number % 2 else "b", "text/plain", b"%d" % number))
            clock.jump(-1)
        seen: list[BlobInfo] = []
        while page := await store.list(None, limit=3, after=seen[-1].blob_id if seen else None):
            expect(len(page) <= 3, "a page is no longer than asked", len(page))
            seen += page
        expect(seen == made[::-1], "newest first, each once, whatever the clock did", seen)
        expect(await store.list("a") == made[5::-2], "an owner's own")
        expect(await store.list("a", after=made[3].blob_id) == [made[1]], "an owner's next page")
        await refused(InvalidInput, store.list("a", after=made[2].blob_id), "another's blob is no cursor")
        await refused(InvalidInput, store.list(None, after="blob:x"), "an unknown cursor is refused")
        for limit in (0, 1001):
            await refused(InvalidInput, store.list(None, limit=limit), "a limit out of range is refused")


@check
async def sizes_are_bounded(make: Maker) -> None:
    async with make(ManualClock(), BlobLimits(blob_bytes=10_000)) as store:
        for size, bound in ((10_001, None), (101, 100), (5000, 4999)):
            for data in (pattern(size), streamed(pattern(size), 1000)):
                asked = store.create("a", "text/plain", data, max_bytes=bound)
                await refused(QuotaExceeded, asked, f"{size} bytes are too many")
        for size, bound in ((10_000, None), (100, 100)):
            await store.create("a", "text/plain", streamed(pattern(size)), max_bytes=bound)
        expect([info.size for info in await store.list("a")] == [100, 10_000], "only what fits is stored")


@check
async def owners_have_quotas(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock, BlobLimits(owner_bytes=10_000, owner_count=3)) as store:
        first = await store.create("a", "text/plain", pattern(6000))
        await refused(QuotaExceeded, store.create("a", "text/plain", pattern(6000)), "bytes count each time")
        asked = store.create("a", "text/plain", streamed(pattern(4001), 100))
        await refused(QuotaExceeded, asked, "a stream is stopped")
        await store.create("b", "text/plain", pattern(10_000))
        await store.create("a", "text/plain", b"", ttl_s=5)
        await store.create("a", "text/plain", pattern(4000))
        await refused(QuotaExceeded, store.create("a", "text/plain", b""), "blobs count too")
        clock.advance(5)
        await store.create("a", "text/plain", b"")
        await store.delete(first.blob_id)
        await store.create("a", "text/plain", pattern(6000))


@check
async def racing_creates_keep_the_quota(make: Maker) -> None:
    async with make(ManualClock(), BlobLimits(owner_count=5)) as store:
        asked = [store.create("a", "text/plain", streamed(pattern(5000 * (n % 2)))) for n in range(20)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        stored = [result for result in results if isinstance(result, BlobInfo)]
        lost = [result for result in results if not isinstance(result, BlobInfo)]
        expect(len(stored) == 5, "as many as fit are stored", len(stored))
        expect(all(isinstance(error, QuotaExceeded) for error in lost), "the others are refused", lost)
        expect(len(await store.list("a")) == 5, "and not there")


@check
async def a_source_that_fails_leaves_nothing(make: Maker) -> None:
    async def broken(size: int) -> AsyncIterator[bytes]:
        yield pattern(size)
        raise ConnectionResetError

    async with make(ManualClock(), NO_LIMITS) as store:
        for size in (10, 3_000_000):
            try:
                await store.create("a", "text/plain", broken(size), blob_id="blob:x")
            except ConnectionResetError:
                continue
            expect(False, "the source's error comes through")
        expect(await store.list(None) == [], "nothing was stored")
        await store.create("a", "text/plain", b"", blob_id="blob:x")


@check
async def a_cancelled_create_leaves_nothing(make: Maker) -> None:
    async def endless(begun: asyncio.Event) -> AsyncIterator[bytes]:
        for _ in range(40):
            yield pattern(65_536)
        begun.set()
        await asyncio.Event().wait()

    async with make(ManualClock(), NO_LIMITS) as store:
        begun = asyncio.Event()
        task = asyncio.ensure_future(store.create("a", "text/plain", endless(begun)))
        await begun.wait()
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        expect(isinstance(result, asyncio.CancelledError), "it ends as cancelled", result)
        expect(await store.list(None) == [], "nothing was stored")
        expect(await store.sweep() == 0, "and nothing is left to sweep")
