"""Makers of the real stores and of their twins, for the suites."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from skillyard.domain.blob import BlobLimits
from skillyard.domain.skill.publication import PublicationLimits
from skillyard.ports import sessions as sessions_port
from skillyard.ports.approvals import ApprovalStore
from skillyard.ports.blobs import BlobStore
from skillyard.ports.gate import SessionStore
from skillyard.ports.publications import PublicationStore
from skillyard.ports.records import JobStore, RecordStore
from skillyard.ports.secrets import SecretAudit, SecretStore
from skillyard.ports.tokens import TokenStore
from skillyard.ports.tools import ToolStore
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.files.tokens import FileTokens
from skillyard.stores.seal.secrets import SealedSecrets
from skillyard.stores.seal.sessions import SealedSessions
from skillyard.stores.sqlite.approvals import SqliteApprovals
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.jobs import SqliteJobs
from skillyard.stores.sqlite.publications import SqlitePublications
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit
from skillyard.stores.sqlite.sessions import SqliteSessions
from skillyard.stores.sqlite.tools import SqliteTools
from skillyard.testing.jobs.memory import MemoryJobs
from skillyard.testing.memory import ManualClock, MemoryRecords, MemoryTokens, SeqIds
from skillyard.testing.memory_blobs import MemoryBlobs
from skillyard.testing.memory_publications import MemoryApprovals, MemoryPublications
from skillyard.testing.memory_secrets import MemorySecretAudit, MemorySecrets, MemorySessions
from skillyard.testing.sessions import memory as sessions_twin
from skillyard.testing.tools.memory import MemoryTools
from tests.unit.stores.seal.sealed import own_keys


class Makers:
    """Fresh stores, each in a directory of its own."""

    def __init__(self, root: Path, *, twin: bool) -> None:
        self._root = root
        self._twin = twin
        self._numbers = itertools.count()

    def _directory(self) -> Path:
        directory = self._root / str(next(self._numbers))
        directory.mkdir()
        return directory

    @asynccontextmanager
    async def records(self) -> AsyncIterator[RecordStore]:
        if self._twin:
            yield MemoryRecords()
            return
        async with migrated(self._directory()) as database:
            yield SqliteRecords(database)

    @asynccontextmanager
    async def blobs(self, clock: ManualClock, limits: BlobLimits) -> AsyncIterator[BlobStore]:
        directory = self._directory()
        if self._twin:
            yield MemoryBlobs(directory, clock, SeqIds(), limits=limits)
            return
        async with migrated(directory) as database:
            store = LocalBlobs(database, directory / "blobs", clock, SeqIds(), limits=limits)
            await store.prepare()
            yield store

    @asynccontextmanager
    async def sessions(self) -> AsyncIterator[SessionStore]:
        directory = self._directory()
        yield MemorySessions() if self._twin else SealedSessions(directory / "sessions", own_keys(directory))

    @asynccontextmanager
    async def kept_sandboxes(self) -> AsyncIterator[sessions_port.SessionStore]:
        if self._twin:
            yield sessions_twin.MemorySessions()
            return
        async with migrated(self._directory()) as database:
            yield SqliteSessions(database)

    @asynccontextmanager
    async def jobs(self) -> AsyncIterator[JobStore]:
        if self._twin:
            yield MemoryJobs()
            return
        async with migrated(self._directory()) as database:
            yield SqliteJobs(database)

    @asynccontextmanager
    async def secrets(self, clock: ManualClock, keep: int) -> AsyncIterator[SecretStore]:
        if self._twin:
            yield MemorySecrets(clock, keep=keep)
        else:
            yield SealedSecrets(self._directory(), clock=clock, keep=keep)

    @asynccontextmanager
    async def secret_audit(self) -> AsyncIterator[SecretAudit]:
        if self._twin:
            yield MemorySecretAudit()
            return
        async with migrated(self._directory()) as database:
            yield SqliteSecretAudit(database)

    @asynccontextmanager
    async def publications(self, limits: PublicationLimits) -> AsyncIterator[PublicationStore]:
        if self._twin:
            yield MemoryPublications(limits)
            return
        async with migrated(self._directory()) as database:
            yield SqlitePublications(database, limits)

    @asynccontextmanager
    async def approvals(self) -> AsyncIterator[ApprovalStore]:
        if self._twin:
            yield MemoryApprovals()
            return
        async with migrated(self._directory()) as database:
            yield SqliteApprovals(database)

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[ToolStore]:
        if self._twin:
            yield MemoryTools()
            return
        async with migrated(self._directory()) as database:
            yield SqliteTools(database)

    @asynccontextmanager
    async def tokens(self, clock: ManualClock) -> AsyncIterator[TokenStore]:
        yield MemoryTokens(clock) if self._twin else FileTokens(self._directory() / "tokens.json", clock)


@pytest.fixture(params=[False, True], ids=["real", "twin"])
def makers(request: pytest.FixtureRequest, tmp_path: Path) -> Makers:
    return Makers(tmp_path, twin=request.param)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Database]:
    database = await Database.open(directory / "state.db")
    try:
        yield database
    finally:
        await database.close()


_MADE: list[bytes] = []
"""A new database. What waits longest in the making of one is the disk, once for each migration."""


@asynccontextmanager
async def migrated(directory: Path) -> AsyncIterator[Database]:
    """Opens a copy of a new database; stores are held to their ports here, not to the making of it."""
    if not _MADE:
        async with opened(directory):
            pass
        _MADE.append((directory / "state.db").read_bytes())
    (directory / "state.db").write_bytes(_MADE[0])
    async with opened(directory) as database:
        yield database


Opener = Callable[[Path], AbstractAsyncContextManager[Database]]


@pytest.fixture
def open_database() -> Opener:
    return opened
