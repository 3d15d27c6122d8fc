"""Any sequence of calls leaves the blob store and its twin alike, and files and counts in step with rows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skillyard.domain.blob import BlobLimits
from skillyard.domain.errors import QuotaExceeded, SkillyardError
from skillyard.ports.blobs import BlobStore
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.sqlite.database import Database
from skillyard.testing.blobs_suite import streamed, whole
from skillyard.testing.memory import ManualClock, SeqIds
from skillyard.testing.memory_blobs import MemoryBlobs
from tests.examples import fewer

LIMITS = BlobLimits(blob_bytes=20_000, owner_bytes=40_000, owner_count=6)
OWNERS = ("alice", "bob")
contents = st.sampled_from([b"", b"small", b"other", b"x" * 4097, b"y" * 9000, b"z" * 20_000, b"w" * 20_001])
ids = st.integers(0, 5).map("blob:{}".format)
owners = st.sampled_from(OWNERS)


class BlobMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.root = Path(self.directory.name)
        (self.root / "twin").mkdir()
        self.clock = ManualClock()
        self.runner.run(self.open())
        self.twin = MemoryBlobs(self.root / "twin", self.clock, SeqIds(), limits=LIMITS)

    async def open(self) -> None:
        self.database = await Database.open(self.root / "state.db")
        self.real = LocalBlobs(self.database, self.root / "blobs", self.clock, SeqIds(), limits=LIMITS)
        await self.real.prepare()

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.runner.run(self.database.close())
            self.runner.close()
            self.directory.cleanup()

    def agree(self, call: Callable[[BlobStore], Awaitable[Any]]) -> None:
        async def outcome(store: BlobStore) -> object:
            try:
                return await call(store)
            except QuotaExceeded as error:  # of two limits that a stream passes, each names the one that it meets first
                return type(error)
            except SkillyardError as error:
                return type(error), str(error)

        assert self.runner.run(outcome(self.real)) == self.runner.run(outcome(self.twin))

    @rule(
        owner=owners,
        content=contents,
        blob_id=ids,
        ttl_s=st.sampled_from([None, None, 5.0, 50.0]),
        max_bytes=st.sampled_from([None, None, 5000]),
        stream=st.booleans(),
    )
    def create(
        self, owner: str, content: bytes, blob_id: str, ttl_s: float | None, max_bytes: int | None, stream: bool
    ) -> None:
        def call(store: BlobStore) -> Awaitable[Any]:
            data = streamed(content, 3000) if stream else content
            return store.create(owner, "a/b", data, blob_id=blob_id, ttl_s=ttl_s, max_bytes=max_bytes)

        self.agree(call)

    @rule(blob_id=ids, offset=st.integers(0, 9000), length=st.none() | st.integers(0, 9000))
    def read(self, blob_id: str, offset: int, length: int | None) -> None:
        self.agree(lambda store: whole(store, blob_id, offset, length))

    @rule(blob_id=ids)
    def path(self, blob_id: str) -> None:
        async def call(store: BlobStore) -> bytes:
            return (await store.path(blob_id)).read_bytes()

        self.agree(call)

    @rule(blob_id=ids)
    def delete(self, blob_id: str) -> None:
        self.agree(lambda store: store.delete(blob_id))

    @rule(chosen=st.lists(ids, min_size=2, max_size=4, unique=True))
    def delete_at_once(self, chosen: list[str]) -> None:
        async def call(store: BlobStore) -> list[bool]:
            return await asyncio.gather(*(store.delete(blob_id) for blob_id in chosen))

        self.agree(call)

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        self.runner.run(self.real.sweep())
        self.runner.run(self.twin.sweep())
        assert self.files() == self.runner.run(self.filed())

    @rule()
    def restart(self) -> None:
        async def again() -> None:
            await self.database.close()
            await self.open()

        self.runner.run(again())

    @invariant()
    def in_step(self) -> None:
        if not hasattr(self, "database"):
            return
        for owner in (None, *OWNERS):
            self.agree(lambda store, owner=owner: store.list(owner))  # type: ignore[misc]
        counted = "SELECT owner, count, bytes FROM blob_owners ORDER BY owner"
        summed = "SELECT owner, count(*), sum(size) FROM blobs GROUP BY owner ORDER BY owner"
        assert self.runner.run(self.database.fetch(counted)) == self.runner.run(self.database.fetch(summed))
        assert self.files() >= self.runner.run(self.filed()), "every row's content is there"
        assert not list((self.root / "blobs" / "tmp").iterdir())

    def files(self) -> set[str]:
        """Contents that have a file, without those that also live in their rows."""
        inline = self.runner.run(self.database.fetch("SELECT content_key FROM blobs WHERE content IS NOT NULL"))
        found = {path.name for path in (self.root / "blobs" / "sha256").glob("*/*")}
        return found - {row[0] for row in inline}

    async def filed(self) -> set[str]:
        rows = await self.database.fetch("SELECT content_key FROM blobs WHERE content IS NULL")
        return {row[0] for row in rows}


TestBlobMachine = BlobMachine.TestCase
TestBlobMachine.settings = settings(fewer(2), stateful_step_count=25)
