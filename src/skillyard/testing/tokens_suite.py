"""The conformance suite of the tokens port."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import Principal, Scope
from skillyard.ports.tokens import TokenStore
from skillyard.testing.memory import ManualClock
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[ManualClock], AbstractAsyncContextManager[TokenStore]]
check = Checks[Maker]()
CHECKS = check.all

CI = Principal(
    "ci",
    frozenset({Scope.DISCOVER, Scope.RUN_CODE}),
    ("sales.*", "tools"),
    "crm",
    "crawler",
    ("crawler-*", "x@y"),
    "bounded",
)
CHOSEN = "chosen-by-a-user-0123456789"


@check
async def a_token_is_its_principal(make: Maker) -> None:
    async with make(ManualClock()) as store:
        token = await store.create(CI)
        other = await store.create(Principal("other"))
        expect(token.startswith("sky_") and len(token) >= 47, "a made token has 256 random bits")
        expect(await store.verify(token) == CI, "verify gives all that the token allows")
        expect(CI.agent == "crawler" and Principal("other").agent == "other", "an agent is its own name by default")
        expect(await store.verify(other) == Principal("other"), "each token is its own principal")


@check
async def what_is_no_token_is_nobody(make: Maker) -> None:
    async with make(ManualClock()) as store:
        expect(await store.verify("sky_" + "a" * 43) is None, "nobody before the first token")
        token = await store.create(CI)
        for wrong in ("", token[:-1], token + "a", token.upper(), "ü" * 30, "\ud800", "a" * 10**6, "\0"):
            expect(await store.verify(wrong) is None, "a wrong token is nobody")


@check
async def a_chosen_value_is_accepted_when_strong(make: Maker) -> None:
    async with make(ManualClock()) as store:
        expect(await store.create(CI, CHOSEN) == CHOSEN, "create gives the value back")
        expect(await store.verify(CHOSEN) == CI, "it is the token")
        for weak in ("", "x" * 23, "x" * 513, "with a space in it and long", "ümlaut-" + "x" * 30, "a\n" + "x" * 30):
            error = await refused(InvalidInput, store.create(Principal("b"), weak), "a weak value is refused")
            expect(error.field == "value", "the error names the field", error.field)
            expect(not weak or weak not in str(error), "and not the value")


@check
async def names_and_values_are_taken_once(make: Maker) -> None:
    async with make(ManualClock()) as store:
        await store.create(CI, CHOSEN)
        error = await refused(InvalidInput, store.create(Principal("ci")), "a taken name is refused")
        expect(error.field == "name", "the error names the field", error.field)
        error = await refused(InvalidInput, store.create(Principal("b"), CHOSEN), "a taken value is refused")
        expect(error.field == "value", "the error names the field", error.field)
        await store.revoke("ci")
        await refused(InvalidInput, store.create(Principal("b"), CHOSEN), "a revoked value stays refused")
        expect(await store.verify(CHOSEN) is None, "and stays revoked")


@check
async def names_and_patterns_have_a_form(make: Maker) -> None:
    async with make(ManualClock()) as store:
        for name in ("", ".", "a b", "a/b", "ä", "a\n", "a" * 65):
            error = await refused(InvalidInput, store.create(Principal(name)), f"the name {name!r} is refused")
            expect(error.field == "name", "the error names the field", error.field)
        for pattern in ("", "a b", "ä", "a\n"):
            asked = store.create(Principal("x", skills=("*", pattern)))
            error = await refused(InvalidInput, asked, f"the pattern {pattern!r} is refused")
            expect(error.field == "skills[1]", "the error names the pattern", error.field)
        for project in ("", "a b", "a/b", "*", "a\n"):
            error = await refused(InvalidInput, store.create(Principal("x", project=project)), f"{project!r}")
            expect(error.field == "project", "the error names the field", error.field)
        for agent in ("a b", "*", "a/b", "a\n", "a" * 65):
            error = await refused(InvalidInput, store.create(Principal("x", agent=agent)), f"{agent!r}")
            expect(error.field == "agent", "the error names the field", error.field)
        for profile in ("", "a b", "*"):
            error = await refused(InvalidInput, store.create(Principal("x", profile=profile)), f"{profile!r}")
            expect(error.field == "profile", "the error names the field", error.field)
        for pattern in ("", "a b", "ä", "a\n"):
            error = await refused(InvalidInput, store.create(Principal("x", agents=("*", pattern))), f"{pattern!r}")
            expect(error.field == "agents[1]", "the error names the pattern", error.field)
        expect(list(await store.list()) == [], "nothing was stored")


@check
async def a_revoked_token_is_nobody_at_once(make: Maker) -> None:
    async with make(ManualClock()) as store:
        token = await store.create(CI)
        expect(await store.verify(token) == CI, "it works")
        expect(await store.revoke("ci"), "revoke says that it was there")
        expect(await store.verify(token) is None, "it does not work any more")
        expect(not await store.revoke("ci"), "a second revoke finds nothing")
        expect(not await store.revoke("nobody"), "nor does one of an unknown name")


@check
async def a_revoked_name_may_return(make: Maker) -> None:
    async with make(ManualClock()) as store:
        old = await store.create(CI)
        await store.revoke("ci")
        new = await store.create(CI)
        expect(await store.verify(new) == CI, "the new token works")
        expect(await store.verify(old) is None, "the old one does not")


@check
async def a_list_tells_all_but_the_token(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock) as store:
        token = await store.create(CI)
        await store.create(Principal("another"))
        made = clock.now()
        clock.advance(500)
        await store.verify(token)
        await store.revoke("another")
        another, ci = await store.list()
        expect([another.principal.name, ci.principal.name] == ["another", "ci"], "sorted by name")
        expect(ci.principal == CI and ci.created_at == made, "who and since when", ci)
        expect(ci.last_used_at == clock.now() and not ci.revoked, "last use", ci)
        expect(another.revoked and another.last_used_at is None, "a revoked one stays listed", another)
        expect(token not in repr((another, ci)), "the token itself is told once only")
