"""Any sequence of calls leaves the record store and its twin alike."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skillyard.domain.errors import SkillyardError
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.ports.records import RecordStore
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.testing.memory import MemoryRecords
from skillyard.testing.records_suite import ended, running
from tests.examples import fewer

PRINCIPALS = ("alice", "bob")
records = st.builds(
    running,
    st.integers(0, 9),
    principal=st.sampled_from(PRINCIPALS),
    idempotency_key=st.sampled_from([None, None, "k1", "k2", "\0"]),
    request_digest=st.sampled_from(["d1", "d2"]),
    summary=st.text(st.characters(), max_size=8),
    output=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(), max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
)
ends = st.builds(
    ended,
    records,
    status=st.sampled_from([RunStatus.COMPLETED, RunStatus.FAILED]),
    ended_at=st.none() | st.floats(0, 3000),
)
ids = st.integers(0, 10).map("run_{}".format)


class RecordMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.database = self.runner.run(Database.open(Path(self.directory.name) / "state.db"))
        self.real, self.twin = SqliteRecords(self.database), MemoryRecords()

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.runner.run(self.database.close())
            self.runner.close()
            self.directory.cleanup()

    def agree(self, call: Callable[[RecordStore], Awaitable[Any]]) -> None:
        async def outcome(store: RecordStore) -> object:
            try:
                return await call(store)
            except SkillyardError as error:
                return type(error), str(error)

        assert self.runner.run(outcome(self.real)) == self.runner.run(outcome(self.twin))

    @rule(record=records)
    def insert(self, record: RunRecord) -> None:
        self.agree(lambda store: store.insert(record))

    @rule(record=records)
    def update(self, record: RunRecord) -> None:
        self.agree(lambda store: store.update_running(record))

    @rule(record=ends)
    def finish(self, record: RunRecord) -> None:
        self.agree(lambda store: store.finish(record))

    @rule(run_id=ids)
    def get(self, run_id: str) -> None:
        self.agree(lambda store: store.get(run_id))

    @rule(principal=st.sampled_from(PRINCIPALS), key=st.sampled_from(["k1", "k2", "\0", "no"]))
    def by_key(self, principal: str, key: str) -> None:
        self.agree(lambda store: store.by_key(principal, key))

    @rule(
        principal=st.none() | st.sampled_from(PRINCIPALS),
        limit=st.integers(0, 5),
        after=st.none() | ids,
        status=st.none() | st.sampled_from([*RunStatus, "gone"]),
    )
    def page(self, principal: str | None, limit: int, after: str | None, status: str | None) -> None:
        self.agree(lambda store: store.list(principal, limit=limit, after=after, status=status))

    @rule(older_than=st.floats(0, 3000))
    def sweep(self, older_than: float) -> None:
        self.agree(lambda store: store.sweep(older_than))

    @invariant()
    def all_alike(self) -> None:
        if hasattr(self, "database"):
            self.agree(lambda store: store.list(None, limit=1000))
            self.agree(lambda store: store.unfinished())


TestRecordMachine = RecordMachine.TestCase
TestRecordMachine.settings = settings(fewer(4), stateful_step_count=25)
