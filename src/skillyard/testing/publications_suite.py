"""The conformance suite of the store of publications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import Forbidden, InvalidInput, QuotaExceeded, SkillyardError, VersionTaken
from skillyard.domain.skill.publication import Disabled, Pin, Publication, PublicationAct, PublicationLimits
from skillyard.ports.publications import Inserted, PublicationStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[PublicationLimits], AbstractAsyncContextManager[PublicationStore]]
check = Checks[Maker]()
CHECKS = check.all

ROOMY = PublicationLimits()


def published(
    version: str = "1.0.0", digest: str = "", *, name: str = "a.b", project: str = "crm", at: float = 1.0, size: int = 9
) -> Publication:
    return Publication(name, version, digest or f"digest-{name}-{version}", at, "ann", project, size, 2)


@check
async def what_is_published_is_found_whole(make: Maker) -> None:
    async with make(ROOMY) as store:
        expect(await store.find("a.b", "1.0.0") is None and await store.owner("a.b") is None, "nothing at first")
        expect(list(await store.of("a.b")) == [] and list(await store.every()) == [], "nothing at first")
        one = published()
        expect(await store.insert(one) == Inserted(one, created=True), "the stored one")
        expect(await store.find("a.b", "1.0.0") == one, "every field")
        expect(await store.owner("a.b") == "crm", "the name belongs to the project")
        other = published(name="a.c", at=2.0)
        await store.insert(other)
        expect(list(await store.every()) == [one, other], "all, as they came")


@check
async def versions_come_newest_first(make: Maker) -> None:
    async with make(ROOMY) as store:
        for version in ("1.10.0", "1.9.0", "2.0.0-rc.1", "2.0.0", "2.0.0-rc.11"):
            await store.insert(published(version))
        order = [row.version for row in await store.of("a.b")]
        expect(order == ["2.0.0", "2.0.0-rc.11", "2.0.0-rc.1", "1.10.0", "1.9.0"], "by precedence", order)


@check
async def the_same_bytes_are_the_same_version(make: Maker) -> None:
    async with make(ROOMY) as store:
        first = published(at=1.0)
        await store.insert(first)
        again = await store.insert(published(at=2.0))
        expect(again == Inserted(first, created=False), "the first one, as it was", again)
        expect(len(await store.history("a.b")) == 1, "nothing happened")


@check
async def other_bytes_under_a_version_are_refused(make: Maker) -> None:
    async with make(ROOMY) as store:
        first = published(digest="one")
        await store.insert(first)
        error = await refused(VersionTaken, store.insert(published(digest="two")), "a version never changes")
        facts = (error.details["stored_digest"], error.details["offered_digest"])
        expect(facts == ("one", "two") and "one" in error.rule and "two" in error.rule, "both digests are named", error)
        await refused(VersionTaken, store.insert(published("1.0.0+build", "two")), "build metadata does not count")
        await refused(VersionTaken, store.insert(published("1.0.0+build", "one")), "nor for the same bytes")
        await refused(InvalidInput, store.insert(published("one")), "a version is a semantic version")
        expect(list(await store.every()) == [first], "nothing was stored")
        expect(await store.find("a.b", "1.0.0+other") == first, "and is found however it was built")


@check
async def of_many_at_once_one_wins(make: Maker) -> None:
    async with make(ROOMY) as store:

        async def insert(n: int) -> SkillyardError | None:
            try:
                await store.insert(published(digest=f"bytes-{n}", at=float(n)))
            except VersionTaken as error:
                return error
            return None

        outcomes = await asyncio.gather(*(insert(n) for n in range(12)))
        expect(outcomes.count(None) == 1, "exactly one", outcomes)
        stored = await store.find("a.b", "1.0.0")
        winner = outcomes.index(None)
        expect(stored is not None and stored.digest == f"bytes-{winner}", "and it is the one that was told so")


@check
async def a_name_belongs_to_the_first_project(make: Maker) -> None:
    async with make(ROOMY) as store:
        await store.insert(published(project="crm"))
        theirs = published("2.0.0", project="hr")
        await refused(Forbidden, store.insert(theirs), "another project's name")
        await refused(Forbidden, store.insert(published(project="hr")), "for the same bytes too")
        expect(await store.find("a.b", "2.0.0") is None, "nothing was stored")
        stored = await store.insert(theirs, any_project=True)
        expect(stored.publication.project == "crm", "a principal with the scope publishes for the owner", stored)
        fresh = await store.insert(published(name="x.y", project="hr"), any_project=True)
        expect(fresh.publication.project == "hr", "a free name goes to its first publisher")


@check
async def a_withdrawn_version_stays_taken(make: Maker) -> None:
    async with make(ROOMY) as store:
        one = published()
        await store.insert(one)
        expect(await store.withdraw("a.b", "9.9.9", at=2.0, by="bob", reason="x") is None, "there is no such version")
        gone = await store.withdraw("a.b", "1.0.0", at=2.0, by="bob", reason="leaks")
        assert gone is not None
        row = gone.publication
        told = (row.withdrawn, row.withdrawn_at, row.withdrawn_by, row.reason, row.digest)
        expect(told == (True, 2.0, "bob", "leaks", one.digest), "who, when and why", row)
        expect(gone.changed and not gone.unpinned, "it was changed, and no pin went")
        expect(await store.find("a.b", "1.0.0") == row, "and is remembered")
        again = await store.withdraw("a.b", "1.0.0", at=3.0, by="cid", reason="other")
        expect(again is not None and not again.changed and again.publication == row, "once is enough", again)
        await refused(VersionTaken, store.insert(published()), "publishing does not bring it back")
        await refused(VersionTaken, store.insert(published(digest="new")), "nor other bytes")
        await refused(
            InvalidInput, store.withdraw("a.b", "1.0.0", at=1.0, by="x", reason="\ud800"), "a reason is Unicode"
        )


@check
async def restoring_brings_it_back(make: Maker) -> None:
    async with make(ROOMY) as store:
        one = published()
        await store.insert(one)
        await store.withdraw("a.b", "1.0.0", at=2.0, by="bob", reason="leaks")
        expect(await store.restore("a.b", "9.9.9", at=3.0, by="cid") is None, "there is no such version")
        expect(await store.restore("a.b", "1.0.0", at=3.0, by="cid") == one, "as it was")
        expect(await store.restore("a.b", "1.0.0", at=4.0, by="cid") == one, "once is enough")
        expect(await store.insert(published(at=9.0)) == Inserted(one, created=False), "the same bytes are it again")
        acts = [event.act for event in await store.history("a.b")]
        expect(acts == [PublicationAct.RESTORED, PublicationAct.WITHDRAWN, PublicationAct.PUBLISHED], "history", acts)


@check
async def checking_stores_nothing(make: Maker) -> None:
    async with make(PublicationLimits(count=1)) as store:
        await store.check(published())
        expect(list(await store.every()) == [] and await store.changed(0) == (0, []), "nothing is stored")
        await store.insert(published(digest="one"))
        await store.check(published(digest="one"))
        await refused(VersionTaken, store.check(published(digest="two")), "what insert would say")
        await refused(Forbidden, store.check(published("2.0.0", project="hr")), "what insert would say")
        await refused(QuotaExceeded, store.check(published("2.0.0"), any_project=True), "what insert would say")


@check
async def pins(make: Maker) -> None:
    async with make(ROOMY) as store:
        expect(await store.pinned("a.b") is None, "no pin at first")
        for version in ("1.0.0", "2.0.0"):
            await store.insert(published(version))
        first, second = Pin("a.b", "1.0.0", 5.0, "ann"), Pin("a.b", "2.0.0", 6.0, "bob")
        expect(await store.pin(first) == first and await store.pin(second) == second, "the stored one")
        again = Pin("a.b", "2.0.0", 6.5, "cid")
        expect(await store.pin(again) == second, "to the same version it is the earlier one")
        expect(len(await store.history("a.b")) == 4, "and nothing happened")
        expect(await store.pinned("a.b") == second, "one a name, the last")
        expect(await store.unpin("a.b", at=7.0, by="ann") == second, "the pin that went")
        expect(await store.unpin("a.b", at=8.0, by="ann") is None, "once is enough")
        expect(await store.pinned("a.b") is None, "it is gone")
        directory = Pin("dir.only", "1.0.0", 9.0, "root")
        await store.pin(directory)
        expect(await store.pinned("dir.only") == directory, "a version of a directory can be pinned")


@check
async def a_pin_never_holds_a_withdrawn_version(make: Maker) -> None:
    async with make(ROOMY) as store:
        for version in ("1.0.0+abc", "2.0.0"):
            await store.insert(published(version))
        earlier = Pin("a.b", "1.0.0+abc", 5.0, "ann")
        await store.pin(earlier)
        other = await store.withdraw("a.b", "2.0.0", at=6.0, by="bob", reason="")
        expect(other is not None and not other.unpinned, "another version's withdrawal leaves the pin")
        await refused(InvalidInput, store.pin(Pin("a.b", "2.0.0", 7.0, "ann")), "a withdrawn version")
        expect(await store.pinned("a.b") == earlier, "the earlier pin stays")
        gone = await store.withdraw("a.b", "1.0.0", at=8.0, by="bob", reason="")
        expect(gone is not None and gone.unpinned, "the pin went with its version")
        expect(await store.pinned("a.b") is None, "and is not found")
        await store.restore("a.b", "1.0.0", at=9.0, by="bob")
        expect(await store.pinned("a.b") is None, "and does not come back by itself")


@check
async def history_tells_who_did_what(make: Maker) -> None:
    async with make(ROOMY) as store:
        await store.insert(published())
        await store.insert(published(name="x.y"))
        await store.pin(Pin("a.b", "1.0.0", 5.0, "bob"))
        await store.withdraw("a.b", "1.0.0", at=6.0, by="cid", reason="leaks")
        events = await store.history("a.b")
        told = [(event.at, str(event.act), event.principal, event.reason) for event in events]
        expected = [
            (6.0, "unpinned", "cid", ""),
            (6.0, "withdrawn", "cid", "leaks"),
            (5.0, "pinned", "bob", ""),
            (1.0, "published", "ann", ""),
        ]
        expect(told == expected, "newest first", told)
        expect({event.digest for event in events} == {published().digest}, "with the digest")
        expect(len(await store.history("a.b", limit=2)) == 2, "no more than asked for")
        for limit in (0, 1001):
            await refused(InvalidInput, store.history("a.b", limit=limit), "a page has a size")


@check
async def what_changed_since_is_told(make: Maker) -> None:
    async with make(ROOMY) as store:
        expect(await store.changed(0) == (0, []), "nothing at first")
        await store.insert(published())
        await store.insert(published(name="x.y"))
        first, names = await store.changed(0)
        expect(first > 0 and sorted(names) == ["a.b", "x.y"], "every name", names)
        expect(await store.changed(first) == (first, []), "nothing since")
        await store.insert(published())
        expect(await store.changed(first) == (first, []), "the same bytes again are no change")
        await store.pin(Pin("dir.only", "1.0.0", 2.0, "ann"))
        await store.withdraw("x.y", "1.0.0", at=3.0, by="bob", reason="")
        await store.restore("x.y", "1.0.0", at=4.0, by="bob")
        last, names = await store.changed(first)
        expect(last > first and sorted(names) == ["dir.only", "x.y"], "each once", names)


@check
async def a_project_disables_a_skill_for_itself(make: Maker) -> None:
    async with make(ROOMY) as store:
        expect(list(await store.disabled()) == [], "nothing at first")
        ours, theirs = Disabled("hr", "a.b", 2.0, "ann"), Disabled("crm", "x.y", 1.0, "bob")
        expect(await store.disable(ours) == ours and await store.disable(theirs) == theirs, "the stored one")
        expect(await store.disable(Disabled("hr", "a.b", 3.0, "eve")) == ours, "the first one stays")
        expect(list(await store.disabled()) == [theirs, ours], "by project and name")
        expect(not await store.enable("crm", "a.b"), "of no other project")
        expect(await store.enable("hr", "a.b") and not await store.enable("hr", "a.b"), "once")
        expect(list(await store.disabled()) == [theirs], "the other stays")
        expect(await store.changed(0) == (0, []), "no version has changed")


@check
async def a_project_has_a_quota(make: Maker) -> None:
    async with make(PublicationLimits(count=3, bytes=100)) as store:
        await store.insert(published("1.0.0", size=60))
        await refused(QuotaExceeded, store.insert(published("2.0.0", size=41)), "too many bytes")
        await store.insert(published("2.0.0", size=20))
        await store.insert(published("3.0.0", size=20))
        await refused(QuotaExceeded, store.insert(published("4.0.0", size=0)), "too many versions")
        expect(not (await store.insert(published("1.0.0", size=60))).created, "what is there costs nothing again")
        await store.insert(published(name="x.y", project="hr", size=100))
