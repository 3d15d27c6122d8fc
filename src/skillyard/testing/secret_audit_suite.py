"""The conformance suite of the secrets' audit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import InvalidInput
from skillyard.domain.secret import SecretAct, SecretEvent
from skillyard.ports.secrets import SecretAudit
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[SecretAudit]]
check = Checks[Maker]()
CHECKS = check.all


def event(at: float, act: SecretAct = SecretAct.USED, name: str = "A", scope: str = "*/*") -> SecretEvent:
    return SecretEvent(at, act, name, "ann", "crm", "sales.leads", f"run_{at:.0f}", scope, "store:1", "env", "why")


@check
async def what_is_recorded_is_listed_newest_first(make: Maker) -> None:
    async with make() as audit:
        expect(list(await audit.list()) == [], "nothing at first")
        events = [event(float(at), name="AB"[at % 2]) for at in range(7)]
        await audit.record(events[:1])
        await audit.record(events[1:])
        await audit.record([])
        listed = await audit.list()
        expect([e for _, e in listed] == events[::-1], "every field of every event", listed)
        expect([n for n, _ in listed] == sorted((n for n, _ in listed), reverse=True), "numbers descend")
        expect([e.at for _, e in await audit.list(name="A")] == [6, 4, 2, 0], "of one name")


@check
async def pages_go_on_where_the_last_ended(make: Maker) -> None:
    async with make() as audit:
        await audit.record([event(float(at)) for at in range(7)])
        seen: list[float] = []
        before = None
        while page := await audit.list(limit=3, before=before):
            seen += [e.at for _, e in page]
            before = page[-1][0]
        expect(seen == [6, 5, 4, 3, 2, 1, 0], "every event once", seen)
        for limit in (0, 1001):
            await refused(InvalidInput, audit.list(limit=limit), "a page has a size")


@check
async def the_last_use_outlives_the_audit(make: Maker) -> None:
    async with make() as audit:
        await audit.record([event(1.0), event(2.0, name="B"), event(3.0, scope="crm/*"), event(4.0)])
        await audit.record([event(5.0, SecretAct.DENIED), event(6.0, SecretAct.SET)])
        expect(await audit.sweep(5.0) == 4, "sweep says how many went")
        expect(len(await audit.list()) == 2, "the rest stays")
        expect(await audit.sweep(5.0) == 0, "and stays")
        used = await audit.used_at()
        expect(used == {("A", "*/*"): 4.0, ("B", "*/*"): 2.0, ("A", "crm/*"): 3.0}, "last uses", used)
        await audit.record([event(7.0, SecretAct.DELETED)])
        expect(("A", "*/*") not in await audit.used_at(), "what is deleted is no longer used")
