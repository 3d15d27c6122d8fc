"""The conformance suite of the store of kept network sessions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import StoreFault
from skillyard.ports.gate import SessionStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[], AbstractAsyncContextManager[SessionStore]]
check = Checks[Maker]()
CHECKS = check.all

STATE = b'{"plan": "a state"}' * 1000


@check
async def a_state_is_kept_under_its_key(make: Maker) -> None:
    async with make() as store:
        expect(await store.get("run_1") is None, "nothing at first")
        expect(list(await store.keys()) == [], "and no keys")
        await store.put("run_1", STATE)
        await store.put("run_2", b"")
        expect(await store.get("run_1") == STATE, "it comes back as it was")
        expect(await store.get("run_2") == b"", "an empty one too")
        expect(sorted(await store.keys()) == ["run_1", "run_2"], "its key is listed")


@check
async def the_latest_state_counts(make: Maker) -> None:
    async with make() as store:
        for number in range(20):
            await store.put("run_1", STATE + b"%d" % number)
        expect(await store.get("run_1") == STATE + b"19", "a later state takes the place of an earlier one")
        expect(list(await store.keys()) == ["run_1"], "there is one of each key")


@check
async def what_is_erased_is_gone(make: Maker) -> None:
    async with make() as store:
        await store.put("run_1", STATE)
        await store.put("run_2", STATE)
        for _ in range(2):
            await store.erase("run_1")
        await store.erase("never")
        expect(await store.get("run_1") is None, "it cannot be read")
        expect(list(await store.keys()) == ["run_2"], "the others stay")
        await store.put("run_1", b"again")
        expect(await store.get("run_1") == b"again", "its key can be used again")


@check
async def keys_are_plain_names(make: Maker) -> None:
    async with make() as store:
        for key in ("", ".", "..", "../run_1", "a/b", "a.b", "ü", "a\n", "x" * 129):
            await refused(StoreFault, store.put(key, STATE), f"the key {key!r} is refused")
            await refused(StoreFault, store.get(key), f"the key {key!r} cannot be read")
        await store.put("x" * 128, STATE)
        expect(list(await store.keys()) == ["x" * 128], "the longest key is kept")
