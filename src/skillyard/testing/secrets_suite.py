"""The conformance suite of the secrets port."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import InvalidInput
from skillyard.ports.secrets import SecretStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[SecretStore]]
check = Checks[Maker]()
CHECKS = check.all

NO_NAMES = ("", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "A\0", "A" * 129)
DANGEROUS = ("PATH", "path", "HOME", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "IFS", "LC_ALL")
NO_VALUES = ("", "a\0b", "x" * 65_537, "ü" * 32_769, "\ud800")


@check
async def a_secret_comes_back(make: Maker) -> None:
    async with make() as store:
        expect(await store.get("API_KEY") is None, "an unknown secret is None")
        values = {"API_KEY": "first", "_x1": "line\nline ü \U0001f511", "BIG": "x" * 65_536}
        for name, value in values.items():
            await store.set(name, value)
        for name, value in values.items():
            expect(await store.get(name) == value, f"{name} comes back")
        expect(list(await store.names()) == sorted(values), "names are sorted", await store.names())


@check
async def a_secret_is_replaced_and_removed(make: Maker) -> None:
    async with make() as store:
        await store.set("TOKEN", "old")
        await store.set("TOKEN", "new")
        expect(await store.get("TOKEN") == "new", "the later value stands")
        expect(await store.delete("TOKEN"), "delete says that it was there")
        expect(not await store.delete("TOKEN"), "and that it was not")
        expect(await store.get("TOKEN") is None, "it is gone")
        expect(list(await store.names()) == [], "its name too")


@check
async def names_are_environment_variables(make: Maker) -> None:
    async with make() as store:
        for name in (*NO_NAMES, *DANGEROUS):
            error = await refused(InvalidInput, store.set(name, "v"), f"the name {name!r} is refused")
            expect(error.field == "name", "the error names the field", error.field)
            expect(await store.get(name) is None, "nothing was stored")


@check
async def values_are_environment_values(make: Maker) -> None:
    async with make() as store:
        await store.set("A", "before")
        for value in NO_VALUES:
            error = await refused(InvalidInput, store.set("A", value), "the value is refused")
            expect(error.field == "value", "the error names the field", error.field)
        expect(await store.get("A") == "before", "a refused value changes nothing")


@check
async def errors_do_not_tell_values(make: Maker) -> None:
    async with make() as store:
        for name, value in (("A", "hunter2\0"), ("PATH", "hunter2")):
            error = await refused(InvalidInput, store.set(name, value), "it is refused")
            expect("hunter2" not in f"{error} {error.data()}", "no error holds a value", str(error))
