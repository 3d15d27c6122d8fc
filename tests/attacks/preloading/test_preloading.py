"""Packages imported ahead, in real zygotes: what they may do there, and what becomes of those that do more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import Argv
from skillyard.sandbox.native.backend import NativeBackend
from tests.attacks.preloading.packages import Yard, write_packages

pytestmark = pytest.mark.anyio

STRAY = b"sleeps-for-a-stray"


async def need(yard: Yard) -> None:
    if not (probe := await yard.backend.probe()).ready:
        pytest.skip(probe.facts["why"])


@pytest.fixture(scope="module")
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    base = tmp_path_factory.mktemp("preloading")
    options = NativeSettings(ready=1, preload_mb=96, preload_s=1.5, zygotes_mb=4096)
    backend = NativeBackend(base / "run", options)
    yard = Yard(backend, write_packages(base / "packages"))
    await need(yard)
    yield yard
    await backend.close()


async def test_modules_are_there_before_they_are_asked_for(yard: Yard) -> None:
    made = await yard.warm("good", "fine")
    assert (made.preloaded, made.faults) == (("good", "fine"), {})
    assert 0 < made.memory_bytes < 96 << 20
    assert await yard.imported("good", "fine") == ["good", "fine"]
    assert await yard.imported() == [], "another set of modules is another zygote"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("threads", "starts threads"),
        ("programs", "starts processes"),
        ("strays", "starts processes"),
        ("bombs", ""),
        ("hangs", "longer than 1.5 s"),
        ("leaves", "the zygote ended"),
        ("raises", "ValueError: not today"),
        ("exits", "SystemExit: go away"),
        ("large", "native.preload_mb is 96"),
        ("grows", ""),
        ("forges", "out of turn"),
        ("babbles", "JSON"),
        ("claims", "nobody asked for"),
    ],
)
async def test_a_module_at_fault_is_left_out_and_runs_go_on(yard: Yard, module: str, why: str) -> None:
    made = await yard.warm("good", module, "fine")
    assert made.preloaded == ("good", "fine")
    assert list(made.faults) == [module]
    assert why in made.faults[module]
    assert await yard.imported("good", module, "fine") == ["good", "fine"]


@pytest.mark.parametrize("module", ["floods", "spoils"])
async def test_where_nobody_knows_which_is_at_fault_all_are_left_out(yard: Yard, module: str) -> None:
    made = await yard.warm("good", module, "fine")
    assert made.preloaded == ()
    assert sorted(made.faults) == sorted(["good", module, "fine"])
    assert await yard.imported("good", module, "fine") == []


async def test_what_is_written_while_importing_is_not_there_afterwards(yard: Yard) -> None:
    assert (await yard.warm("writes")).faults == {}
    look = "(writes.found, [__import__('os').path.exists(path) for path in (writes.file, writes.kept)])"
    assert await yard.evaluate(look, "writes") == [[True, True], [False, False]]
    assert await yard.shell("mount | grep -c scratch", "writes") == "0\n"


@pytest.mark.parametrize(
    ("module", "why"),
    [("unwalls", "not all walls"), ("unfilters", "before they are made"), ("lies", "not its own")],
)
async def test_a_zygote_that_was_spoiled_makes_no_sandbox_that_is_used(yard: Yard, module: str, why: str) -> None:
    assert (await yard.warm("good", module)).preloaded == ("good", module)
    status = await yard.shell("grep -E 'CapBnd|Seccomp:|NoNewPrivs' /proc/self/status", "good", module)
    assert status.split() == ["CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    made = await yard.warm("good", module)
    assert made.preloaded == ()
    assert why in made.faults["good"]
    assert why in made.faults[module]


async def test_what_is_imported_ahead_sees_nothing_of_others_and_can_make_nothing_writable(yard: Yard) -> None:
    """It sees itself and the first process of its namespace; it has the filter before its first instruction."""
    assert (await yard.warm("looks")).faults == {}
    told = await yard.evaluate("(looks.seen, looks.writable, looks.cloned, looks.status)", "looks")
    assert told == [[1, 2], -1, -1, ["1", "2"]]


async def test_zygotes_that_were_used_longest_ago_are_closed(tmp_path: Path) -> None:
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=0, zygotes_mb=1))
    yard = Yard(backend, write_packages(tmp_path / "packages"))
    try:
        await need(yard)
        for modules in (("good",), ("good", "fine")):
            await yard.warm(*modules)
        assert await becomes(lambda: _zygotes(backend), 1), "only the one without packages stays"
        assert await yard.imported("good") == ["good"], "it is made again when it is needed"
    finally:
        await backend.close()


async def test_what_a_spoiled_zygote_started_ends_with_the_last_sandbox_of_it(tmp_path: Path) -> None:
    """Here in a session of its own, as a child of the keeper; but not before that sandbox, which goes on."""
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=0))
    yard = Yard(backend, write_packages(tmp_path / "packages"))
    try:
        await need(yard)
        assert (await yard.warm("strays_later")).preloaded == ("strays_later",)
        kept = await backend.create(yard.spec("strays_later"), "kept")
        assert await yard.imported("strays_later") == []
        assert "other processes" in (await yard.warm("strays_later")).faults["strays_later"]
        assert _with_argument(STRAY)
        process = await kept.start(Argv(("echo", "on")), id="p")
        assert (await process.wait()).code == 0
        await backend.destroy(kept.handle)
        assert await becomes(_strays, 0)
    finally:
        await backend.close()


async def test_zygotes_that_nobody_needs_are_closed(tmp_path: Path) -> None:
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=0, retire_s=0.5))
    yard = Yard(backend, write_packages(tmp_path / "packages"))
    try:
        await need(yard)
        await yard.warm("good")
        assert await becomes(lambda: _zygotes(backend), 1)
        assert await yard.imported("good") == ["good"]
    finally:
        await backend.close()


async def becomes(look: Callable[[], Awaitable[int]], wanted: int, bound_s: float = 10) -> bool:
    with anyio.move_on_after(bound_s):
        while await look() != wanted:
            await anyio.sleep(0.02)
    return await look() == wanted


async def _zygotes(backend: NativeBackend) -> int:
    count: int = (await backend.stats())["zygotes"]
    return count


async def _strays() -> int:
    return len(_with_argument(STRAY))


def _with_argument(mark: bytes) -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(name)
    return found


async def test_descriptors_in_flight_stop_no_zygote(yard: Yard) -> None:
    """The kernel counts them by user: all zygotes of a keeper are one, and an ordinary user's keeper is it too."""
    made = await yard.warm("in_flight")
    assert made.preloaded == ("in_flight",)
    for modules in ((), ("good",), ("in_flight",), ("fine",)):
        assert set(await yard.imported(*modules)) == set(modules) | ({"good"} if "fine" in modules else set())
