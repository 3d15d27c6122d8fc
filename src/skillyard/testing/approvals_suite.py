"""The conformance suite of the approvals port."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.trust import Approval, ApprovedPackages
from skillyard.ports.approvals import ApprovalStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[ApprovalStore]]
check = Checks[Maker]()
CHECKS = check.all


def approval(name: str = "a.b", version: str = "1.0.0", digest: str = "d1") -> Approval:
    return Approval(name, version, digest, 1000.5, "ann", "read it, \0 and ü")


@check
async def an_approval_is_of_exactly_these_bytes(make: Maker) -> None:
    async with make() as store:
        await store.approve(approval())
        expect(await store.find("a.b", "1.0.0", "d1") == approval(), "it comes back whole")
        for other in (("a.b", "1.0.0", "d2"), ("a.b", "1.0.1", "d1"), ("a.c", "1.0.0", "d1"), ("A.B", "1.0.0", "d1")):
            expect(await store.find(*other) is None, "nothing else is approved by it", other)
        expect(await store.find("a.\ud800", "1.0.0", "d1") is None, "what is no name has none")


@check
async def approving_again_replaces(make: Maker) -> None:
    async with make() as store:
        await store.approve(approval())
        again = replace(approval(), approved_by="bob", approved_at=2000.0, note="")
        await store.approve(again)
        expect(await store.page() == [again], "the last word stands", await store.page())


@check
async def a_note_is_text(make: Maker) -> None:
    async with make() as store:
        error = await refused(InvalidInput, store.approve(replace(approval(), note="\ud800")), "half a surrogate")
        expect(error.field == "note", "the error names the field", error.field)
        expect(list(await store.page()) == [], "nothing is stored")


@check
async def a_revoked_one_is_gone_at_once(make: Maker) -> None:
    async with make() as store:
        kept = [approval(version="2.0.0"), approval("a.b.c"), approval("a")]
        for one in (approval(), approval(digest="d2"), *kept):
            await store.approve(one)
        expect(await store.revoke("a.b", "1.0.0") == 2, "every digest of the version")
        expect(await store.find("a.b", "1.0.0", "d1") is None, "it is not found any more")
        expect(await store.revoke("a.b", "1.0.0") == 0, "nothing is left to revoke")
        expect(set(await store.page()) == set(kept), "the others stay")
        expect(await store.revoke("a.b") == 1, "every version")
        expect({one.name for one in await store.page()} == {"a", "a.b.c"}, "of that very name")


@check
async def requirements_are_bound_to_the_lock_that_came_first(make: Maker) -> None:
    async with make() as store:
        own = ("a.b", "1.0.0", "d1")
        expect(await store.bind(*own, "w", "l1") is None, "nothing is bound without an approval")
        for digest in ("d1", "d2"):
            await store.approve(approval(digest=digest))
        expect(await store.bind(*own, "w", "l1") == "l1", "the first is bound")
        expect(await store.bind(*own, "w", "l2") == "l1", "and stays")
        expect(await store.bind(*own, "v", "l2") == "l2", "other requirements are others")
        expect(await store.bind("a.b", "1.0.0", "d2", "w", "l3") == "l3", "so are other bytes")
        expect(list(await store.locks(*own)) == ["l1", "l2"], "each once", await store.locks(*own))
        await store.approve(approval())
        expect(list(await store.locks(*own)) == [], "approving again binds anew")
        expect(await store.bind("a.b", "1.0.0", "d2", "w", "l4") == "l3", "other bytes stay bound")
        expect(await store.bind(*own, "w", "l2") == "l2", "to what comes then")
        await store.revoke("a.b")
        expect(list(await store.locks(*own)) == [], "nothing is left of a revoked one")
        await store.approve(approval())
        expect(await store.bind(*own, "w", "l5") == "l5", "nor comes it back")


@check
async def an_approval_is_of_the_packages_that_came_first(make: Maker) -> None:
    async with make() as store:
        own, first, later = ("a.b", "1.0.0", "d1"), ApprovedPackages("w", "l1"), ApprovedPackages("v", "l2")
        expect(await store.bind_packages(*own, first) is None, "nothing is bound without an approval")
        for digest in ("d1", "d2"):
            await store.approve(approval(digest=digest))
        expect(await store.packages(*own) is None, "nothing is bound at once")
        expect(await store.bind_packages(*own, first) == first, "the first are bound")
        expect(await store.bind_packages(*own, later) == first, "and stay")
        expect(await store.packages(*own) == first, "as they are")
        expect(await store.bind_packages("a.b", "1.0.0", "d2", later) == later, "other bytes have their own")
        await store.approve(approval())
        expect(await store.packages(*own) is None, "approving again lets them go")
        expect(await store.packages("a.b", "1.0.0", "d2") == later, "those of other bytes stay")
        await store.bind_packages(*own, later)
        await store.revoke("a.b", "1.0.0")
        for digest in ("d1", "d2"):
            await store.approve(approval(digest=digest))
            expect(await store.packages("a.b", "1.0.0", digest) is None, "nothing is left of a revoked one", digest)


@check
async def pages_go_on_where_the_last_ended(make: Maker) -> None:
    async with make() as store:
        held = [approval(name, version, digest) for name in ("a", "b-c", "b.c") for version in "12" for digest in "de"]
        for one in reversed(held):
            await store.approve(one)
        seen: list[Approval] = []
        after = None
        while page := await store.page(limit=5, after=after):
            seen += page
            after = (page[-1].name, page[-1].version, page[-1].digest)
        expect(seen == held, "each once, in order", seen)
        expect([one.version for one in await store.page(name="b.c", limit=3)] == ["1", "1", "2"], "of one name")
        for limit in (0, 1001):
            await refused(InvalidInput, store.page(limit=limit), "a page has a size")
