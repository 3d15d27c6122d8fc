"""The conformance suite of the port of jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import IdempotencyConflict, InvalidInput, QuotaExceeded
from skillyard.domain.principal import AgentScope
from skillyard.domain.work.job import JobRecord, JobState, JobStep
from skillyard.ports.records import JobStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[JobStore]]
check = Checks[Maker]()
CHECKS = check.all
REQUEST = '{"steps":[]}'


def job(job_id: str = "j1", **changes: Any) -> JobRecord:
    usual = JobRecord(
        job_id=job_id,
        project="acme",
        agent="crawler",
        principal="ann",
        created_at=1000.5,
        skill="acme.notes",
        version="1.0.0",
        max_wall_s=1800.0,
        steps=(JobStep("first"), JobStep("2")),
    )
    return replace(usual, **changes)


def _over(record: JobRecord, at: float = 2000.0) -> JobRecord:
    return record.ended(JobState.FAILED, at, "step_failed", "step 'first' failed")


@check
async def it_comes_back_whole(make: Maker) -> None:
    async with make() as store:
        whole = job(
            state=JobState.RUNNING,
            current=1,
            started_at=1001.25,
            steps=(JobStep("first", "succeeded", "run_1", 0), JobStep("zwei ✓", "pending", "run_2")),
            idempotency_key="k",
            request_digest="d",
            cancel_requested="enough",
            session="work",
        )
        expect(await store.insert(whole, REQUEST, 1) == whole, "it is stored as it is")
        expect(await store.get("j1") == whole, "and comes back whole", await store.get("j1"))
        expect(await store.request("j1") == REQUEST, "with its request", await store.request("j1"))
        expect(await store.get("j2") is None and await store.request("j2") is None, "there is no other")
        expect(list(await store.live()) == [whole], "it is live")


@check
async def a_change_names_what_it_read(make: Maker) -> None:
    async with make() as store:
        first = await store.insert(job(), REQUEST, 1)
        second = await store.change(first.begun(0, 1001.0))
        expect(second is not None and (second.current, second.revision) == (0, 2), "a change counts up", second)
        expect(await store.change(first.begun(1, 1001.0)) is None, "one that read less is refused")
        expect(await store.get("j1") == second, "and changes nothing", await store.get("j1"))
        expect(await store.change(job("j9")) is None, "nothing is made by a change")
        expect(await store.request("j1") == REQUEST, "the request stays")


@check
async def terminal_is_terminal(make: Maker) -> None:
    async with make() as store:
        first = await store.insert(job(), REQUEST, 1)
        over = await store.change(_over(first))
        expect(over is not None and not over.state.live, "it ends once", over)
        assert over is not None
        expect(await store.change(over.ended(JobState.CANCELED, 2001.0)) is None, "no other end takes its place")
        back = replace(over, state=JobState.RUNNING, finished_at=None)
        expect(await store.change(back) is None, "and it does not come back")
        expect(await store.get("j1") == over, "it stays as it ended", await store.get("j1"))
        expect(await store.request("j1") is None, "its request is forgotten")
        expect(list(await store.live()) == [], "it is not live")


@check
async def a_key_stands_for_one_request(make: Maker) -> None:
    async with make() as store:
        first = await store.insert(job(idempotency_key="k", request_digest="d"), REQUEST, 1)
        again = await store.insert(job("j2", idempotency_key="k", request_digest="d"), REQUEST, 1)
        expect(again == first, "a repeated one gets the first", again)
        other = job("j3", idempotency_key="k", request_digest="e")
        await refused(IdempotencyConflict, store.insert(other, REQUEST, 9), "another request is refused")
        ended = await store.change(_over(first))
        again = await store.insert(job("j4", idempotency_key="k", request_digest="d"), REQUEST, 1)
        expect(again == ended, "also when the first has ended", again)
        theirs = await store.insert(replace(other, principal="bob"), REQUEST, 1)
        expect(theirs.job_id == "j3", "keys of others are others", theirs)
        expect(await store.get("j2") is None, "nothing else was stored")


@check
async def a_principal_has_no_more_than_allowed(make: Maker) -> None:
    async with make() as store:
        first = await store.insert(job("j1"), REQUEST, 2)
        await store.insert(job("j2", agent="other"), REQUEST, 2)
        error = await refused(QuotaExceeded, store.insert(job("j3"), REQUEST, 2), "one more is refused")
        expect(error.details["limit"] == "commands.jobs_each", "the limit is named", error.details)
        expect(await store.get("j3") is None, "and not stored")
        await store.insert(job("j4", principal="bob"), REQUEST, 2)
        await store.change(_over(first))
        await store.insert(job("j5"), REQUEST, 2)


@check
async def they_are_listed_by_agent(make: Maker) -> None:
    async with make() as store:
        for number in range(6):
            agent, project = f"agent{number % 2}", "acme" if number < 5 else "other"
            await store.insert(job(f"j{number}", agent=agent, project=project), REQUEST, 9)
        mine = AgentScope("acme", "agent0")
        listed = [each.job_id for each in await store.list(mine)]
        expect(listed == ["j4", "j2", "j0"], "newest first, of one agent of one project", listed)
        page = [each.job_id for each in await store.list(mine, limit=1, after="j4")]
        expect(page == ["j2"], "page by page", page)
        for after in ("j3", "j9"):
            await refused(InvalidInput, store.list(mine, after=after), "a page follows one of the agent's own")
        await refused(InvalidInput, store.list(mine, limit=0), "a page has a size")


@check
async def old_ones_are_swept_and_trimmed(make: Maker) -> None:
    async with make() as store:
        for number in range(5):
            made = await store.insert(job(f"j{number}"), REQUEST, 9)
            if number < 4:
                await store.change(_over(made, 2000.0 + number))
        expect(await store.sweep(2001.0) == 1, "those that ended before go")
        expect(await store.get("j0") is None and await store.get("j1") is not None, "and no others")
        expect(await store.trim(2) == 2, "the oldest ended ones above a number go")
        left = [each.job_id for each in await store.list(AgentScope("acme", "crawler"))]
        expect(left == ["j4", "j3"], "the newest and the live ones stay", left)
        expect(await store.trim(0) == 1 and await store.get("j4") is not None, "a live one always stays")
