"""The conformance suite of the records port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import IdempotencyConflict, InvalidInput
from skillyard.domain.principal import AgentScope
from skillyard.domain.sandbox.frames import FramePlace
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.event import MOST_EVENTS, Event
from skillyard.domain.work.record import (
    Lease,
    LogPlace,
    Offsets,
    Outcome,
    RunKind,
    RunRecord,
    RunStatus,
    SecretRef,
    StreamPlaces,
)
from skillyard.ports.records import RecordStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[RecordStore]]
check = Checks[Maker]()
CHECKS = check.all


def running(number: int, **changes: Any) -> RunRecord:
    """A record of a run that has begun."""
    record = RunRecord(
        f"run_{number}", RunKind.CODE, "alice", RunStatus.RUNNING, 1000.0 + number, request_digest="digest"
    )
    return replace(record, **changes)


def ended(record: RunRecord, **changes: Any) -> RunRecord:
    """The same run, completed a second after it was made."""
    values: dict[str, Any] = {
        "status": RunStatus.COMPLETED,
        "outcome": Outcome.EXIT,
        "ended_at": record.created_at + 1,
    }
    return replace(record, **(values | changes))


FULL = RunRecord(
    run_id="run_full",
    kind=RunKind.SKILL,
    principal="bob",
    status=RunStatus.FAILED,
    created_at=1.25,
    skill="a.b",
    version="1.0.0",
    environment="data",
    outcome=Outcome.MEMORY,
    reason="killed by the kernel",
    started_at=2.5,
    ended_at=3.75,
    summary="half a surrogate \ud800, a NUL \0, an ü",
    limits={"cpus": 0.5, "pids": 7},
    enforced={"seccomp": "kernel"},
    guarantees={"network": {"attestor": "kernel", "evidence": ["net_namespace"]}},
    usage={"cpu_ms": 1.5, "peak_memory_bytes": 2**40},
    digests={"blobs": {"blob:a": "00"}},
    output={"big": 2**70, "list": [1, None, True, {"k": "v"}]},
    output_blobs=("blob:a", "blob:b"),
    logs_preview="line\n",
    logs_blob="blob:l",
    error={"type": "MemoryLimitExceeded", "message": "m"},
    network={"connections": [{"host": "a half \ud800", "allowed": False}], "dropped": 2**40},
    needs={"skills": [{"skill": "a.b", "needs": [{"asked": "a half \ud800"}]}], "dropped": 2**40},
    idempotency_key="key 'with' \"quotes\" \0",
    request_digest="d",
    sandbox="handle",
    revision=7,
    owner=Owner.TASK,
    labels={"team/name": "ö", "empty": ""},
    lease=Lease("server", "boot", 12.5),
    deadline=99.5,
    cancel_requested="half a surrogate \ud800",
    program="program",
    offsets=Offsets(
        FramePlace(2**40, 7, 6, 5, 4, 3), LogPlace(3, 2, 1, 9, StreamPlaces("stderr", (5, 6), (7, 8), "stderr", 4))
    ),
    blob_prefix="blob:p-",
    secrets=(SecretRef("NAME", "project", "a.b", "store:1"),),
    network_session="session",
)


def detached(number: int, **changes: Any) -> RunRecord:
    """A record of a run that outlives its server and waits for its turn."""
    return running(number, **{"owner": Owner.TASK, "status": RunStatus.QUEUED} | changes)


@check
async def an_inserted_record_comes_back_equal(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1))
        await store.insert(FULL)
        for record in (running(1), FULL):
            expect(await store.get(record.run_id) == record, "get gives what was inserted")
        expect(await store.get("run_2") is None, "get gives None for an unknown run")
        expect(await store.get("run_\ud800") is None, "get gives None for what is no run id")


@check
async def a_run_id_is_taken_once(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1))
        await refused(InvalidInput, store.insert(running(1, principal="bob")), "a taken run id is refused")
        expect(await store.get("run_1") == running(1), "a refused insert changes nothing")


@check
async def a_key_belongs_to_one_run_of_a_principal(make: Maker) -> None:
    async with make() as store:
        first = running(1, idempotency_key="k")
        await store.insert(first)
        await store.insert(first)
        for other in (running(2, idempotency_key="k"), replace(first, request_digest="other")):
            await refused(IdempotencyConflict, store.insert(other), "a taken key is refused")
        await store.insert(running(3, idempotency_key="k", principal="bob"))
        await store.insert(running(4))
        await store.insert(running(5))
        expect(await store.by_key("alice", "k") == first, "by_key gives the first run")
        expect(await store.by_key("carol", "k") is None, "keys of others are not seen")
        expect(await store.get("run_2") is None, "a refused insert stores nothing")


@check
async def tasks_are_listed_by_their_agent(make: Maker) -> None:
    mine, others = AgentScope("p", "ann"), AgentScope("p", "bob")

    def task(number: int, agent: AgentScope, **changes: Any) -> RunRecord:
        named = {"kind": RunKind.COMMAND, "project": agent.project, "agent": agent.agent, "labels": {"team": "crm"}}
        return detached(number, **(named | changes))

    async with make() as store:
        first, second = task(1, mine), task(2, mine, principal="bob")
        not_one = [
            task(3, others), task(4, AgentScope("q", "ann")), task(5, mine, owner=Owner.RUN, status=RunStatus.RUNNING),
            task(6, mine, kind=RunKind.CODE),
        ]  # fmt: skip
        for record in (first, second, *not_one):
            await store.insert(record)
        expect(list(await store.list(None, tasks_of=mine)) == [second, first], "tasks of the agent, newest first")
        expect(list(await store.list(None, tasks_of=mine, limit=1)) == [second], "a page of them")
        expect(list(await store.list(None, tasks_of=mine, after="run_2")) == [first], "the page behind it")
        service = task(7, mine, service={"ports": [8000]})
        await store.insert(service)
        expect(list(await store.list(None, tasks_of=mine, services=True)) == [service], "those that listen")
        expect(list(await store.list(None, tasks_of=mine, services=False, limit=1)) == [second], "those that do not")
        expect(list(await store.list(None, tasks_of=mine, services=False, after="run_2")) == [first], "and behind one")
        expect(list(await store.list("bob", tasks_of=mine, labels={"team": "crm"})) == [second], "all that is asked")
        expect(list(await store.list(None, tasks_of=AgentScope("p", "carol"))) == [], "none of a stranger")
        for run_id in ("run_3", "run_6", "run_none"):
            error = await refused(InvalidInput, store.list(None, tasks_of=mine, after=run_id), "a page behind others'")
            expect(error.field == "after", "the error names the field")
        expect((await store.list(None, tasks_of=mine))[1].labels == {"team": "crm"}, "labels are the caller's alone")


@check
async def a_key_that_is_no_text_is_refused(make: Maker) -> None:
    async with make() as store:
        error = await refused(
            InvalidInput, store.insert(running(1, idempotency_key="\ud800")), "half a surrogate is no key"
        )
        expect(error.field == "idempotency_key", "the error names the field", error.field)
        expect(await store.by_key("alice", "\ud800") is None, "by_key gives None for it")


@check
async def racing_inserts_of_one_key_have_one_winner(make: Maker) -> None:
    async with make() as store:
        records = [running(number, idempotency_key="k") for number in range(20)]
        results = await asyncio.gather(*map(store.insert, records), return_exceptions=True)
        winners = [r for r, result in zip(records, results, strict=True) if result is None]
        expect(len(winners) == 1, "one insert wins", len(winners))
        losers = [result for result in results if result is not None]
        expect(all(isinstance(loser, IdempotencyConflict) for loser in losers), "the others conflict", losers)
        expect(await store.by_key("alice", "k") == winners[0], "the winner holds the key")


@check
async def only_a_live_record_changes(make: Maker) -> None:
    async with make() as store:
        first = running(1)
        started = replace(first, started_at=5.0, sandbox="handle")
        expect(await store.change(started, 1.0) is None, "an absent record is not changed")
        expect(not await store.finish(ended(first)), "an absent record is not finished")
        await store.insert(first)
        changed = await store.change(started, 1.0)
        expect(changed == replace(started, revision=2), "a live record is changed", changed)
        expect(await store.get("run_1") == changed, "the change is there")
        expect(await store.change(started, 1.0) is None, "one that names an older revision is not taken")
        expect(not await store.finish(ended(started)), "nor an end that names one")
        assert changed is not None
        expect(await store.finish(ended(changed)), "a live record is finished")
        for late in (ended(changed, status=RunStatus.FAILED), ended(changed)):
            expect(not await store.finish(late), "a terminal record is not finished again")
        expect(await store.change(changed, 1.0) is None, "a terminal record does not live again")
        expect(await store.get("run_1") == ended(changed), "terminal is terminal")


@check
async def a_run_keeps_its_principal(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1))
        stolen = running(1, principal="mallory")
        expect(await store.change(stolen, 1.0) is None, "another principal's record is absent to a change")
        expect(not await store.finish(ended(stolen)), "and to finish")
        expect(await store.get("run_1") == running(1), "nothing changed")


@check
async def of_racing_changes_of_one_revision_one_is_made(make: Maker) -> None:
    async with make() as store:
        await store.insert(detached(1))
        asked = [detached(1, program=str(number)) for number in range(20)]
        made = await asyncio.gather(*[store.change(record, 1.0, "raced") for record in asked])
        winners = [record for record in made if record is not None]
        expect(len(winners) == 1, "one change is made", len(winners))
        expect(await store.get("run_1") == winners[0], "it stands")
        expect([event.kind for event in await store.events("run_1")] == ["queued", "raced"], "the others tell nothing")


@check
async def each_state_of_a_detached_run_is_an_event(make: Maker) -> None:
    async with make() as store:
        record = detached(1, created_at=10.0)
        await store.insert(record, "the request")
        for at, status, kind in ((11.0, "starting", ""), (12.0, "running", "attached"), (13.0, "running", "")):
            changed = await store.change(replace(record, status=RunStatus(status)), at, kind, {"n": at})
            assert changed is not None
            record = changed
        expect(await store.request("run_1") == "the request", "its request is kept")
        await store.finish(ended(record, ended_at=14.0, reason="so"))
        end = Event(5, 14.0, "completed", {"outcome": "exit", "reason": "so"})
        wanted = [Event(1, 10.0, "queued"), Event(2, 11.0, "starting"), Event(3, 12.0, "running")]
        wanted += [Event(4, 12.0, "attached", {"n": 12.0}), end]
        told = await store.events("run_1")
        expect(told == wanted, "each state is told once, and what was added", told)
        expect(await store.events("run_1", 3, 1) == wanted[3:4], "from any number on")
        expect(await store.request("run_1") is None, "its request is forgotten with its end")
        expect(await store.sweep(1000.0) == 1 and await store.events("run_1") == [], "its events go with it")
        await store.insert(detached(2))
        expect([event.seq for event in await store.events("run_2")] == [1], "the next run has its own alone")


@check
async def an_attached_run_has_no_events_and_no_request(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1))
        await store.change(running(1), 1.0, "kind")
        await store.finish(ended(running(1, revision=2)))
        expect(await store.events("run_1") == [], "its record tells them")
        expect(await store.request("run_1") is None and await store.request("run_2") is None, "no request is known")


@check
async def events_are_bounded_and_the_end_has_room(make: Maker) -> None:
    async with make() as store:
        record: RunRecord | None = detached(1)
        assert record is not None
        await store.insert(record)
        for number in range(MOST_EVENTS + 3):
            record = await store.change(record, float(number), "tick")
            assert record is not None
        await store.finish(ended(record))
        told = await store.events("run_1", MOST_EVENTS - 3)
        kinds = [(event.seq, event.kind) for event in told]
        wanted = [(MOST_EVENTS - 2, "tick"), (MOST_EVENTS - 1, "dropped"), (MOST_EVENTS, "completed")]
        expect(kinds == wanted, "the end of a full list", kinds)


@check
async def a_lease_is_renewed_by_its_holder_alone(make: Maker) -> None:
    async with make() as store:
        mine, other = Lease("mine", "boot", 5.0), Lease("other", "boot", 5.0)
        await store.insert(detached(1, lease=mine))
        await store.insert(detached(2, lease=other))
        await store.insert(detached(3))
        await store.insert(detached(4, lease=mine))
        await store.finish(ended(detached(4, lease=mine)))
        expect(await store.renew("mine", 9.0) == 1, "those of its live records are renewed")
        renewed = detached(1, lease=replace(mine, until=9.0))
        expect(await store.get("run_1") == renewed, "the revision stays")
        expect(await store.get("run_2") == detached(2, lease=other), "those of others stay")
        changed = await store.change(detached(1, lease=mine), 1.0)
        found = await store.get("run_1")
        expect(found == replace(renewed, revision=2), "an older end of the same lease shortens nothing", found)
        assert changed is not None
        assert found is not None
        await store.change(replace(found, lease=replace(other, until=1.0)), 1.0)
        found = await store.get("run_1")
        expect(found is not None and found.lease == replace(other, until=1.0), "another holder's lease is as given")


@check
async def a_listener_hears_of_stored_changes(make: Maker) -> None:
    async with make() as store:
        heard: list[tuple[str, str, int]] = []

        def hear(record: RunRecord) -> None:
            heard.append((record.run_id, record.status.value, record.revision))

        store.listen(hear)
        store.listen(hear)
        await store.insert(running(1))
        await refused(InvalidInput, store.insert(running(1)), "a taken run id is refused")
        await store.insert(detached(2))
        await store.change(detached(2, status=RunStatus.STARTING), 1.0)
        await store.change(detached(2, status=RunStatus.RUNNING), 1.0)
        await store.finish(ended(detached(2, revision=2)))
        await store.finish(ended(running(1)))
        await store.finish(ended(running(1)))
        wanted = [("run_1", "running", 1), ("run_2", "queued", 1), ("run_2", "starting", 2)]
        wanted += [("run_2", "completed", 2), ("run_1", "completed", 1)]
        expect(heard == wanted, "each once, and nothing of what was refused", heard)
        store.ignore(hear)
        store.ignore(hear)
        await store.insert(running(3))
        expect(heard == wanted, "nothing more once it is ignored", heard)


@check
async def a_list_filters_by_labels(make: Maker) -> None:
    async with make() as store:
        for number, labels in enumerate(({"a": "1"}, {"a": "1", "b": "x"}, {"a": "2"}, {})):
            await store.insert(running(number, labels=labels))
        await store.insert(detached(9, principal="bob", labels={"a": "1"}))
        await store.change(detached(9, principal="bob", labels={"a": "2"}), 1.0)
        for owner, labels, ids in (
            ("alice", {"a": "1"}, ["run_1", "run_0"]),
            ("alice", {"b": "x", "a": "1"}, ["run_1"]),
            ("alice", {"b": "y"}, []),
            ("bob", {"a": "2"}, []),
            (None, {"a": "1"}, ["run_9", "run_1", "run_0"]),
        ):
            found = [record.run_id for record in await store.list(owner, labels=labels)]
            expect(found == ids, f"the runs of {owner} with {labels}", found)
        await refused(InvalidInput, store.list("alice", labels={"A": "1"}), "a label that cannot be is refused")
        await store.finish(ended(running(1, labels={})))
        kept = [record.labels for record in await store.list("alice", labels={"b": "x"})]
        expect(kept == [{"a": "1", "b": "x"}], "labels stay to the end", kept)
        await store.sweep(5000.0)
        expect(await store.list("alice", labels={"b": "x"}) == [], "and go with their run")


@check
async def racing_ends_have_one_winner(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1))
        ends = [ended(running(1), summary=str(number)) for number in range(20)]
        won = await asyncio.gather(*map(store.finish, ends))
        expect(won.count(True) == 1, "one finish wins", won.count(True))
        expect(await store.get("run_1") == ends[won.index(True)], "what the winner wrote stands")


@check
async def updates_cannot_end_and_ends_cannot_run(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1))
        for asked in (store.change(ended(running(1)), 1.0), store.finish(running(1))):
            try:
                await asked
            except ValueError:
                continue
            expect(False, "a record in the wrong state is refused")
        expect(await store.get("run_1") == running(1), "nothing changed")


@check
async def a_list_is_newest_first_in_pages(make: Maker) -> None:
    async with make() as store:
        for number in range(7):
            owner = "alice" if number % 2 else "bob"
            await store.insert(running(number, principal=owner, created_at=1000.0 - number))
        pages = []
        after = None
        while page := await store.list(None, limit=3, after=after):
            pages.append([record.run_id for record in page])
            after = page[-1].run_id
        numbers = [["run_6", "run_5", "run_4"], ["run_3", "run_2", "run_1"], ["run_0"]]
        expect(pages == numbers, "pages follow the order of insertion, newest first", pages)
        mine = [record.run_id for record in await store.list("alice")]
        expect(mine == ["run_5", "run_3", "run_1"], "a principal's own runs", mine)
        rest = [record.run_id for record in await store.list("alice", after="run_3")]
        expect(rest == ["run_1"], "a principal's next page", rest)
        expect(await store.list("carol") == [], "nobody else's runs")


@check
async def a_list_is_without_what_can_be_large(make: Maker) -> None:
    async with make() as store:
        first = running(1, network={"connections": [], "dropped": 0}, needs={"skills": [], "dropped": 0})
        await store.insert(first)
        expect(await store.list("alice") == [replace(first, network=None, needs=None)], "a list has neither")
        expect(await store.unfinished() == [first], "what is unfinished has it")
        changed = replace(first, network={"connections": [], "dropped": 7})
        assert changed.network is not None
        expect(await store.keep_network("run_1", changed.network), "its network changes while the run goes on")
        expect(await store.get("run_1") == changed, "the change is there")
        expect(await store.change(first, 1.0) is not None, "the record changes beside it")
        changed = replace(changed, revision=2)
        expect(await store.get("run_1") == changed, "and leaves the network alone")
        first = replace(first, revision=2)
        last = ended(first, network={"connections": [{"port": 443}], "dropped": 0})
        expect(await store.finish(last), "a running record is finished")
        expect(await store.get("run_1") == last, "what it ended with stands")
        expect(not await store.keep_network("run_1", {}), "the network of an ended run stays")


@check
async def a_list_filters_by_status(make: Maker) -> None:
    async with make() as store:
        for number in range(4):
            await store.insert(running(number))
        await store.insert(detached(4))
        await store.insert(detached(5, status=RunStatus.STARTING))
        await store.finish(ended(running(1)))
        await store.finish(ended(running(2), status=RunStatus.FAILED))
        for status, ids in (
            ("queued", ["run_4"]),
            ("starting", ["run_5"]),
            ("running", ["run_3", "run_0"]),
            ("completed", ["run_1"]),
            ("failed", ["run_2"]),
        ):
            found = [record.run_id for record in await store.list("alice", status=status)]
            expect(found == ids, f"the runs that are {status}", found)


@check
async def a_list_refuses_what_cannot_be(make: Maker) -> None:
    async with make() as store:
        await store.insert(running(1, principal="bob"))
        for limit in (0, -1, 1001):
            error = await refused(InvalidInput, store.list(None, limit=limit), "a limit out of range is refused")
            expect(error.field == "limit", "the error names the limit", error.field)
        await refused(InvalidInput, store.list(None, status="gone"), "an unknown status is refused")
        await refused(InvalidInput, store.list(None, after="run_9"), "an unknown cursor is refused")
        await refused(InvalidInput, store.list("alice", after="run_1"), "another's run is no cursor")


@check
async def unfinished_gives_what_lives(make: Maker) -> None:
    async with make() as store:
        for number in range(3):
            await store.insert(running(number))
        await store.insert(detached(3))
        await store.insert(detached(4, status=RunStatus.STARTING))
        await store.finish(ended(running(1)))
        await store.insert(ended(running(5)))
        expect(not await store.finish(ended(running(5))), "one that was inserted with its end has it")
        found = [record.run_id for record in await store.unfinished()]
        expect(sorted(found) == ["run_0", "run_2", "run_3", "run_4"], "all live records and no other", found)


@check
async def trimming_takes_the_oldest_ended_runs_of_who_has_too_many(make: Maker) -> None:
    async with make() as store:
        for number in range(6):
            await store.insert(running(number, principal="mallory"))
        for number in (1, 2, 3, 5):
            await store.finish(ended(running(number, principal="mallory")))
        for number in (7, 8):
            await store.insert(running(number, principal="alice"))
            await store.finish(ended(running(number, principal="alice")))
        expect(await store.trim(6) == 0, "as many as may be are not too many")
        expect(await store.trim(4) == 2, "no more go than are too many")
        left = [record.run_id for record in await store.list("mallory")]
        expect(left == ["run_5", "run_4", "run_3", "run_0"], "the oldest go, and none that runs", left)
        expect(await store.trim(1) == 3, "where too many run, all that ended go")
        expect(len(await store.list("alice")) == 1, "each principal for itself")
        expect(len(await store.list("mallory")) == 2, "what runs stays")


@check
async def a_sweep_takes_old_ended_runs(make: Maker) -> None:
    async with make() as store:
        for number in range(5):
            await store.insert(running(number, idempotency_key=str(number)))
        for number in (0, 1, 2):
            await store.finish(ended(running(number, idempotency_key=str(number)), ended_at=10.0 * number))
        await store.finish(ended(running(3, idempotency_key="3"), ended_at=None))
        expect(await store.sweep(10.0) == 1, "what ended before goes, not at, not later")
        expect(await store.get("run_0") is None, "a swept run is gone")
        expect(await store.by_key("alice", "0") is None, "and its key with it")
        expect(await store.sweep(2000.0) == 3, "a run without an end counts from its beginning")
        expect([r.run_id for r in await store.list(None)] == ["run_4"], "a running record is never swept")
        await store.insert(running(9, idempotency_key="0"))
