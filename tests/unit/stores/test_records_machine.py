"""Any sequence of calls leaves the record store and its twin alike."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.frames import FramePlace
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.record import Lease, LogPlace, Offsets, RunRecord, RunStatus, SecretRef
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
    status=st.sampled_from([RunStatus.QUEUED, RunStatus.STARTING, RunStatus.RUNNING]),
    owner=st.sampled_from(Owner),
    revision=st.integers(1, 3),
    labels=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["", "1"]), max_size=2),
    lease=st.none() | st.builds(Lease, st.sampled_from(["s1", "s2"]), st.sampled_from(["b1", "b2"]), st.floats(0, 9)),
    offsets=st.builds(Offsets, st.builds(FramePlace, st.integers(0, 3)), st.builds(LogPlace, st.integers(0, 3))),
    secrets=st.just(()) | st.just((SecretRef("N", "p", "s", "store:1"),)),
    network=st.none() | st.just({"connections": []}) | st.just({}),
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
        self.before: dict[str, RunRecord] = {}

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

    @rule(record=records, request=st.none() | st.just("request"))
    def insert(self, record: RunRecord, request: str | None) -> None:
        record = replace(record, revision=1)
        self.agree(lambda store: store.insert(record, request))

    @rule(record=records, kind=st.sampled_from(["", "attached"]))
    def change(self, record: RunRecord, kind: str) -> None:
        self.agree(lambda store: store.change(record, 5.0, kind, {"k": 1}))

    @rule(record=records, kind=st.sampled_from(["", "attached"]))
    def change_what_is_there(self, record: RunRecord, kind: str) -> None:
        """Names the revision, the principal and the key that are stored, so that more changes are made."""
        held = self.runner.run(self.twin.get(record.run_id))
        if held is not None:
            record = replace(record, owner=held.owner, principal=held.principal, revision=held.revision)
            record = replace(record, idempotency_key=held.idempotency_key)
            self.agree(lambda store: store.change(record, 5.0, kind))

    @rule(run_id=ids, network=st.sampled_from([{}, {"connections": [1]}]))
    def keep_network(self, run_id: str, network: dict[str, Any]) -> None:
        self.agree(lambda store: store.keep_network(run_id, network))

    @rule(holder=st.sampled_from(["s1", "s2"]), until=st.floats(0, 9))
    def renew(self, holder: str, until: float) -> None:
        self.agree(lambda store: store.renew(holder, until))

    @rule(run_id=ids, after=st.integers(0, 3), limit=st.integers(0, 3))
    def events(self, run_id: str, after: int, limit: int) -> None:
        self.agree(lambda store: store.events(run_id, after, limit))
        self.agree(lambda store: store.request(run_id))

    @rule(record=ends)
    def finish(self, record: RunRecord) -> None:
        self.agree(lambda store: store.finish(record))

    @rule(record=ends)
    def finish_what_is_there(self, record: RunRecord) -> None:
        held = self.runner.run(self.twin.get(record.run_id))
        if held is not None:
            ended_so = replace(held, status=record.status, ended_at=record.ended_at, outcome=record.outcome)
            self.agree(lambda store: store.finish(ended_so))

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
        labels=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["", "1"]), max_size=2),
    )
    def page(
        self, principal: str | None, limit: int, after: str | None, status: str | None, labels: dict[str, str]
    ) -> None:
        self.agree(lambda store: store.list(principal, limit=limit, after=after, status=status, labels=labels))

    @rule(older_than=st.floats(0, 3000))
    def sweep(self, older_than: float) -> None:
        self.agree(lambda store: store.sweep(older_than))

    @invariant()
    def all_alike(self) -> None:
        if hasattr(self, "database"):
            self.agree(lambda store: store.list(None, limit=1000))
            self.agree(lambda store: store.unfinished())
            self.terminal_is_terminal()

    def terminal_is_terminal(self) -> None:
        """No record that ended lives again, and its revision never falls."""
        now = {record.run_id: record for record in self.runner.run(self.real.list(None, limit=1000))}
        for run_id, before in self.before.items():
            if run_id in now and now[run_id].created_at == before.created_at:
                assert now[run_id].status.live <= before.status.live
                assert now[run_id].revision >= before.revision
        self.before = now


TestRecordMachine = RecordMachine.TestCase
TestRecordMachine.settings = settings(fewer(2), stateful_step_count=25)
