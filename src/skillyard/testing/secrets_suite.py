"""The conformance suite of the secrets port: the store's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import InvalidInput, SecretNotFound
from skillyard.domain.secret import EVERYBODY, Delivery, SecretScope
from skillyard.ports.secrets import SecretStore
from skillyard.testing.memory import ManualClock
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[ManualClock, int], AbstractAsyncContextManager[SecretStore]]
"""Makes a store of this clock that keeps so many versions."""
check = Checks[Maker]()
CHECKS = check.all

NO_NAMES = ("", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "A\0", "A" * 129)
DANGEROUS = ("PATH", "path", "HOME", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "IFS", "LC_ALL")
NO_VALUES = ("", "a\0b", "x" * 65_537, "ü" * 32_769, "\ud800")
NO_PROJECTS = (".", "a b", "a/b", "ä", "a\n", "a" * 65, "*")
NO_PATTERNS = ("*", "*.a", "a.*.b", "a b", "ä", "a\n", "a?", "a" * 300, "a**")
NO_HOSTS = ("*", "10.0.0.1", "10.0.0.0/8", "[::1]", "!api.x.com", "https://x.com", "x.com/a", "", "x.com:0", "é.com")


async def value(store: SecretStore, name: str, project: str = "default", skill: str = "a.b") -> str | None:
    found = await store.find(name, project, skill)
    return None if found is None else found.value


@check
async def a_secret_comes_back(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        expect(await value(store, "API_KEY") is None, "an unknown secret is None")
        values = {"API_KEY": "first", "_x1": "line\nline ü \U0001f511", "BIG": "x" * 65_536}
        for name, given in values.items():
            await store.set(name, given)
        for name, given in values.items():
            expect(await value(store, name) == given, f"{name} comes back")
        names = [entry.name for entry in await store.list()]
        expect(names == sorted(values), "the list is sorted", names)


@check
async def a_secret_is_replaced_and_removed(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        await store.set("TOKEN", "old")
        await store.set("TOKEN", "new")
        expect(await value(store, "TOKEN") == "new", "the later value stands")
        expect(await store.delete("TOKEN"), "delete says that it was there")
        expect(not await store.delete("TOKEN"), "and that it was not")
        expect(await value(store, "TOKEN") is None, "it is gone")
        expect(list(await store.list()) == [], "from the list too")


@check
async def names_are_environment_variables(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        for name in (*NO_NAMES, *DANGEROUS):
            error = await refused(InvalidInput, store.set(name, "v"), f"the name {name!r} is refused")
            expect(error.field == "name", "the error names the field", error.field)
            expect(await value(store, name) is None, "nothing was stored")


@check
async def values_are_environment_values(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        await store.set("A", "before")
        for given in NO_VALUES:
            error = await refused(InvalidInput, store.set("A", given), "the value is refused")
            expect(error.field == "value", "the error names the field", error.field)
        expect(await value(store, "A") == "before", "a refused value changes nothing")


@check
async def nothing_but_find_tells_values(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        for name, given in (("A", "hunter2\0"), ("PATH", "hunter2")):
            error = await refused(InvalidInput, store.set(name, given), "it is refused")
            expect("hunter2" not in f"{error} {error.data}", "no error holds a value", str(error))
        shown = [await store.set("A", "hunter2"), await store.list(), await store.find("A", "p", "s"), store]
        expect("hunter2" not in repr(shown), "no representation holds a value", shown)


@check
async def a_scope_admits_its_runs_alone(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        await store.set("A", "crm", SecretScope("crm"))
        await store.set("B", "sales", SecretScope("", "sales.*"))
        await store.set("C", "both", SecretScope("crm", "sales.leads"))
        seen = {
            (project, skill): [await value(store, name, project, skill) for name in "ABC"]
            for project in ("crm", "default", "CRM")
            for skill in ("sales.leads", "sales", "salesforce", "other")
        }
        for (project, skill), values in seen.items():
            a = "crm" if project == "crm" else None
            b = "sales" if skill == "sales.leads" else None
            c = "both" if (project, skill) == ("crm", "sales.leads") else None
            expect(values == [a, b, c], f"what {skill} in {project} sees", values)


@check
async def the_most_specific_scope_decides(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        scopes = [
            EVERYBODY,
            SecretScope("", "s*"),
            SecretScope("", "sales.*"),
            SecretScope("", "sales.leads"),
            SecretScope("crm"),
            SecretScope("crm", "s*"),
            SecretScope("crm", "sales.leads"),
        ]
        for scope in (*scopes[1::2], *scopes[::2]):
            await store.set("A", str(scope), scope)
        for scope in reversed(scopes):
            found = await store.find("A", "crm", "sales.leads")
            expect(found is not None and found.value == str(scope), f"{scope} decides", found)
            expect(found is not None and found.scope == scope, "and says so")
            await store.delete("A", scope)
        expect(await value(store, "A", "crm", "sales.leads") is None, "then nothing is left")


@check
async def scopes_and_hosts_have_a_form(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        for project in NO_PROJECTS:
            error = await refused(InvalidInput, store.set("A", "v", SecretScope(project)), f"{project!r} is refused")
            expect(error.field == "project", "the error names the field", error.field)
        for pattern in NO_PATTERNS:
            error = await refused(InvalidInput, store.set("A", "v", SecretScope("", pattern)), f"{pattern!r}")
            expect(error.field == "skills", "the error names the field", error.field)
        await store.set("B", "v")
        for host in NO_HOSTS:
            for asked in (
                store.set("A", "v", hosts=["api.x.com", host]),
                store.bind("B", delivery=Delivery.GATE, hosts=["api.x.com", host]),
            ):
                error = await refused(InvalidInput, asked, f"the host {host!r} is refused")
                expect(error.field == "hosts[1]", "the error names the host", error.field)
        await refused(InvalidInput, store.set("A", "v", hosts=["x.com"] * 33), "too many hosts are refused")
        expect([entry.name for entry in await store.list()] == ["B"], "nothing was stored")


@check
async def delivery_stays_until_it_is_changed(make: Maker) -> None:
    async with make(ManualClock(), 5) as store:
        first = await store.set("A", "1")
        expect((first.delivery, first.hosts) == (Delivery.ENV, ()), "env at first", first)
        hosts = ["api.x.com", "*.x.com:8443"]
        await store.set("A", "2", delivery=Delivery.GATE, hosts=hosts)
        third = await store.set("A", "3")
        expect((third.delivery, third.hosts) == (Delivery.GATE, tuple(hosts)), "a new value changes neither", third)
        back = await store.rollback("A", 1)
        expect(back.delivery is Delivery.GATE, "nor does an old one", back)
        found = await store.find("A", "p", "s")
        expect(found is not None and (found.delivery, found.hosts) == (Delivery.GATE, tuple(hosts)), "runs see it")
        bound = await store.bind("A", delivery=Delivery.ENV, hosts=[])
        expect((bound.delivery, bound.hosts, bound.current) == (Delivery.ENV, (), 1), "bind changes them", bound)
        expect(await value(store, "A") == "1", "and not the value")
        await refused(SecretNotFound, store.bind("B", delivery=Delivery.ENV, hosts=[]), "what is not there")


@check
async def versions_are_kept_and_come_back(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock, 3) as store:
        times = []
        for number in range(1, 6):
            await store.set("A", f"value {number}", by=f"who {number}")
            times.append(clock.now())
            clock.advance(10)
        [entry] = await store.list()
        kept = [(v.number, v.created_at, v.created_by) for v in entry.versions]
        expect(kept == [(n, times[n - 1], f"who {n}") for n in (3, 4, 5)], "the last three are kept", kept)
        found = await store.find("A", "p", "s")
        expect(found is not None and (found.value, found.version) == ("value 5", "store:5"), "the last is current")
        await store.rollback("A", 3)
        found = await store.find("A", "p", "s")
        expect(found is not None and (found.value, found.version) == ("value 3", "store:3"), "an old one comes back")
        for wrong in (2, 6):
            error = await refused(InvalidInput, store.rollback("A", wrong), f"version {wrong} is not kept")
            expect(error.field == "version", "the error names the field", error.field)
        entry = await store.set("A", "value 6")
        expect(entry.current == 6, "numbers are never used twice", entry)
        await refused(SecretNotFound, store.rollback("B", 1), "what is not there")
        await refused(SecretNotFound, store.rollback("A", 4, SecretScope("crm")), "nor in another scope")


@check
async def a_rotation_changes_nothing_that_is_seen(make: Maker) -> None:
    async with make(ManualClock(), 3) as store:
        await store.set("A", "1", SecretScope("crm"), delivery=Delivery.GATE, hosts=["x.com"])
        await store.set("A", "2", SecretScope("crm"))
        await store.set("B", "3")
        before = list(await store.list())
        expect(await store.rotate() == 3, "every version is sealed anew")
        expect(list(await store.list()) == before, "the list is as it was")
        expect([await value(store, name, "crm") for name in "AB"] == ["2", "3"], "values too")
        await store.rollback("A", 1, SecretScope("crm"))
        expect(await value(store, "A", "crm") == "1", "old ones too")


@check
async def values_of_a_run_are_kept_until_they_are_forgotten(make: Maker) -> None:
    async with make(ManualClock(), 1) as store:
        expect(await store.kept("run_1") is None, "none are kept at first")
        await store.forget("run_1")
        await store.set("A", "old")
        values = ("old", "line\nline ü \U0001f511", "x" * 65_536)
        await store.keep("run_1", ["another"])
        await store.keep("run_1", values)
        await store.keep("run_2", [])
        await store.set("A", "new")
        await store.delete("A")
        await store.rotate()
        expect(tuple(await store.kept("run_1") or ()) == values, "they outlive the secret and a rotation of the key")
        expect(await store.kept("run_2") == (), "no values are not the same as none kept")
        expect(set(await store.keeping()) == {"run_1", "run_2"}, "it tells whose are kept")
        await store.forget("run_1")
        expect(await store.kept("run_1") is None, "forgotten ones are gone")
        expect(set(await store.keeping()) == {"run_2"}, "and only those")
