"""The conformance suite of the sessions port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import QuotaExceeded
from skillyard.domain.work.record import Lease
from skillyard.domain.work.session import SessionKey, SessionRecord, SessionState
from skillyard.ports.sessions import SessionStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[SessionStore]]
check = Checks[Maker]()
CHECKS = check.all
KEY = SessionKey("acme", "crawler", "work")


def session(session_id: str = "s1", key: SessionKey = KEY, **changes: Any) -> SessionRecord:
    usual = SessionRecord(
        session_id=session_id,
        key=key,
        principal="ann",
        created_at=1000.5,
        boot="b1",
        used_at=7.25,
        idle_s=1800.0,
        hard_s=21600.0,
    )
    return replace(usual, **changes)


def _ended(record: SessionRecord, at: float = 2000.0) -> SessionRecord:
    return replace(record, state=SessionState.ENDED, ended_at=at, ended_by="idle", reason="nobody used it")


@check
async def it_comes_back_whole(make: Maker) -> None:
    async with make() as store:
        whole = session(
            state=SessionState.READY,
            ready_at=8.5,
            isolation="toy",
            sandbox="sb-1",
            sandboxes=2,
            fit="f",
            skills=("a.b", "c.d"),
            untrusted="'a.b' is not approved",
            disk_mb=512,
            call="run_1",
            runs=3,
            lease=Lease("h", "b1", 90.0),
        )
        expect(await store.open(whole, 1) == whole, "it is stored as it is")
        expect(await store.get("s1") == whole, "and comes back whole", await store.get("s1"))
        expect(await store.find(KEY) == whole, "also by its key")
        expect(await store.get("s2") is None, "there is no other")
        expect(list(await store.live()) == [whole], "it is live")


@check
async def a_key_has_one_live_session(make: Maker) -> None:
    async with make() as store:
        opened = await asyncio.gather(*(store.open(session(f"s{n}"), 9) for n in range(5)))
        expect(len({each.session_id for each in opened}) == 1, "all first calls get one session", opened)
        expect(len(await store.live()) == 1, "one is stored", await store.live())
        changed = await store.change(_ended(opened[0]))
        expect(changed is not None, "it can be ended")
        again = await store.open(session("s9"), 9)
        expect(again.session_id == "s9", "then the next one of the key is another", again)


@check
async def keys_of_others_are_others(make: Maker) -> None:
    async with make() as store:
        others = [
            replace(KEY, project="x"),
            replace(KEY, agent="x"),
            replace(KEY, alias="x"),
            replace(KEY, alias="WORK"),
        ]
        for number, key in enumerate([KEY, *others]):
            made = await store.open(session(f"s{number}", key), 9)
            expect(made.session_id == f"s{number}", "no other key means it", key)
        expect(len(await store.live()) == 5, "each has its own")


@check
async def a_principal_has_no_more_than_allowed(make: Maker) -> None:
    async with make() as store:
        for number in range(2):
            await store.open(session(f"s{number}", replace(KEY, alias=f"a{number}")), 2)
        third = session("s2", replace(KEY, alias="a2"))
        error = await refused(QuotaExceeded, store.open(third, 2), "one more is refused")
        expect(error.details["limit"] == "sessions.most_each", "the limit is named", error.details)
        expect(await store.get("s2") is None, "and not stored")
        known = await store.open(session("s3", replace(KEY, alias="a0")), 2)
        expect(known.session_id == "s0", "one that is there is none more", known)
        other = await store.open(replace(third, principal="bob"), 2)
        expect(other.session_id == "s2", "another principal has its own share", other)
        await store.change(_ended(known))
        await store.open(session("s4", replace(KEY, alias="a4")), 2)


@check
async def a_change_names_what_it_read(make: Maker) -> None:
    async with make() as store:
        first = await store.open(session(), 1)
        second = await store.change(replace(first, runs=1))
        expect(second is not None and (second.runs, second.revision) == (1, 2), "a change counts up", second)
        expect(await store.change(replace(first, runs=7)) is None, "one that read less is refused")
        expect(await store.get("s1") == second, "and changes nothing")
        assert second is not None
        over = await store.change(_ended(second))
        expect(over is not None and not over.live, "it ends once", over)
        assert over is not None
        expect(await store.change(replace(over, runs=9)) is None, "ended is ended")
        expect(await store.change(replace(over, state=SessionState.READY, ended_at=None)) is None, "for ever")
        expect(await store.get("s1") == over, "it tells who ended it", await store.get("s1"))
        expect(await store.find(KEY) is None, "its key means it no more")


@check
async def leases_are_renewed_together(make: Maker) -> None:
    async with make() as store:
        mine = [session(f"s{n}", replace(KEY, alias=f"a{n}"), lease=Lease("h", "b", 10.0)) for n in range(2)]
        theirs = session("s2", replace(KEY, alias="a2"), lease=Lease("other", "b", 10.0))
        free = session("s3", replace(KEY, alias="a3"))
        for each in (*mine, theirs, free):
            await store.open(each, 9)
        expect(await store.renew("h", 50.0) == 2, "all of one holder")
        found = {each.session_id: each for each in await store.live()}
        expect([found[f"s{n}"].lease for n in range(2)] == [Lease("h", "b", 50.0)] * 2, "are prolonged", found)
        expect((found["s2"], found["s3"]) == (theirs, free), "the others stay", found)
        changed = await store.change(replace(mine[0], runs=1))
        expect(changed is not None and changed.lease == Lease("h", "b", 50.0), "no change shortens it", changed)
        assert changed is not None
        freed = await store.change(replace(changed, lease=None))
        expect(freed is not None and freed.lease is None, "it can be given up", freed)


@check
async def ended_ones_are_listed_and_swept(make: Maker) -> None:
    async with make() as store:
        for number in range(4):
            key = SessionKey("acme" if number < 3 else "other", f"agent{number % 2}", "work")
            made = await store.open(session(f"s{number}", key), 9)
            if number < 2:
                await store.change(_ended(made, 2000.0 + number))
        listed = [each.session_id for each in await store.list(None, None, ended=True)]
        expect(listed == ["s3", "s2", "s1", "s0"], "newest first", listed)
        expect([each.session_id for each in await store.list("acme", None)] == ["s2"], "live ones alone")
        expect(
            [each.session_id for each in await store.list("acme", "agent0", ended=True)] == ["s2", "s0"], "of one agent"
        )
        expect(len(await store.list(None, None, ended=True, limit=2)) == 2, "no more than asked for")
        expect(await store.sweep(2001.0) == 1, "those that ended before go")
        expect(await store.get("s0") is None and await store.get("s1") is not None, "and no others")
