"""The shapes of containers that are made ahead, and the pool of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.oci.home import Lent
from skillyard.sandbox.oci.pool import SHAPES, Pool, bare_spec, shape_of

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec(single=True)


class Ready:
    """A container that was made ahead."""

    def __init__(self, number: int) -> None:
        self.number, self.cut_off = number, False


class Engine:
    """Counts what a pool makes and removes."""

    def __init__(self, size: int = 1) -> None:
        self.made: list[Ready] = []
        self.dropped: list[Ready] = []
        self.fault = False
        self.goes = asyncio.Event()
        self.goes.set()
        self.pool = Pool(size, self.make, self.drop)  # type: ignore[arg-type]

    async def make(self, spec: SandboxSpec, image: str) -> Ready:
        await asyncio.sleep(0)
        await self.goes.wait()
        if self.fault:
            raise SandboxFault("the engine refuses")
        self.made.append(Ready(len(self.made)))
        return self.made[-1]

    async def drop(self, one: Ready) -> None:
        self.dropped.append(one)

    def take(self) -> Any:
        shape = shape_of(SPEC, "i")
        assert shape is not None
        return self.pool.take(shape)

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


def spec_of(memory_mb: int) -> SandboxSpec:
    return replace(SPEC, limits=Limits(memory_mb=memory_mb))


def test_a_shape_is_all_that_a_container_is_made_of(tmp_path: Path) -> None:
    skill = Mount(Content("d", tmp_path), "/skills/a")
    packages = EnvironmentRef(packages=Content("p", tmp_path))
    others = [
        replace(SPEC, limits=Limits(cpus=2)), replace(SPEC, limits=Limits(pids=9)), replace(SPEC, single=False),
        replace(SPEC, limits=Limits(disk_mb=9)), replace(SPEC, mounts=(skill,)), replace(SPEC, environment=packages),
        replace(SPEC, mounts=(replace(skill, target="/skills/b"),)), spec_of(9), replace(SPEC, owner=Owner.TASK),
    ]  # fmt: skip
    shapes = [shape_of(spec, "sha256:1") for spec in (SPEC, *others)] + [shape_of(SPEC, "sha256:2")]
    assert None not in shapes
    assert len(set(shapes)) == len(shapes)
    same = replace(SPEC, limits=replace(SPEC.limits, timeout_ms=9), tenant="ann", group="g")
    assert shape_of(same, "sha256:1") == shapes[0]
    assert (bare_spec(same).tenant, bare_spec(same).group) == ("", "")


def test_a_directory_that_was_made_again_is_another(tmp_path: Path) -> None:
    place = tmp_path / "skill"
    place.mkdir()
    spec = replace(SPEC, mounts=(Mount(Content("d", place), "/skills/a"),))
    before = shape_of(spec, "sha256:1")
    place.rename(tmp_path / "old")
    place.mkdir()
    assert shape_of(spec, "sha256:1") not in (before, None)
    place.rmdir()
    assert shape_of(spec, "sha256:1") is None


def test_what_is_a_runs_own_is_not_made_ahead(tmp_path: Path) -> None:
    for source, target in (
        (Content("d", tmp_path), "/blobs/blob:a"),
        (HostDirectory(tmp_path), "/skills/a"),
        (Content("d", open=lambda: iter(())), "/skills/a"),  # type: ignore[arg-type,return-value]
    ):
        assert shape_of(replace(SPEC, mounts=(Mount(source, target),)), "sha256:1") is None


async def test_each_is_taken_once_and_replaced() -> None:
    engine, shape = Engine(2), shape_of(SPEC, "i")
    assert shape is not None
    assert engine.pool.take(shape) is None
    engine.pool.want(shape, SPEC)
    await engine.settle()
    assert engine.pool.count == 2
    taken = [engine.take() for _ in range(3)]
    assert taken == [*engine.made, None]
    engine.pool.want(shape, SPEC)
    await engine.settle()
    assert engine.pool.take(shape) not in taken
    await engine.pool.close()
    assert {one.number for one in engine.dropped} == {3}


async def test_those_that_are_cut_off_are_removed() -> None:
    engine, shape = Engine(2), shape_of(SPEC, "i")
    assert shape is not None
    engine.pool.want(shape, SPEC)
    await engine.settle()
    engine.made[0].cut_off = True
    assert engine.take() is engine.made[1]
    await engine.settle()
    assert engine.dropped == [engine.made[0]]


async def test_none_is_made_while_something_is_created() -> None:
    engine, shape = Engine(), shape_of(SPEC, "i")
    assert shape is not None
    with engine.pool.busy():
        engine.pool.want(shape, SPEC)
        await engine.settle()
        assert engine.made == []
    await engine.settle()
    assert len(engine.made) == 1


async def test_shapes_that_were_used_longest_ago_are_given_up() -> None:
    engine = Engine()
    for number in range(SHAPES + 2):
        spec = spec_of(64 + number)
        shape = shape_of(spec, "i")
        assert shape is not None
        engine.pool.want(shape, spec)
        await engine.settle()
    assert engine.pool.count == SHAPES
    assert [one.number for one in engine.dropped] == [0, 1]


async def test_a_fault_gives_the_shape_up_until_it_is_used_again() -> None:
    engine, shape = Engine(), shape_of(SPEC, "i")
    assert shape is not None
    engine.fault = True
    engine.pool.want(shape, SPEC)
    await engine.settle()
    engine.fault = False
    await engine.settle()
    assert (engine.made, engine.pool.count) == ([], 0)
    engine.pool.want(shape, SPEC)
    await engine.settle()
    assert engine.pool.count == 1


@pytest.mark.parametrize("size", [0, 1])
async def test_none_is_made_without_a_place_or_after_the_end(size: int) -> None:
    engine, shape = Engine(size), shape_of(SPEC, "i")
    assert shape is not None
    if size:
        await engine.pool.close()
    engine.pool.want(shape, SPEC)
    await engine.settle()
    assert engine.made == []


async def test_one_that_is_made_when_the_pool_closes_is_removed() -> None:
    engine, shape = Engine(), shape_of(SPEC, "i")
    assert shape is not None
    engine.pool.want(shape, SPEC)
    await asyncio.sleep(0)
    await engine.pool.close()
    assert engine.dropped == engine.made


async def _at_work(engine: Engine) -> Any:
    """Returns the shape of which one is being made, until :attr:`Engine.goes` is set."""
    shape = shape_of(SPEC, "i")
    assert shape is not None
    engine.goes.clear()
    engine.pool.want(shape, SPEC)
    await engine.settle()
    return shape


async def _waiting(engine: Engine) -> asyncio.Task[Any]:
    waits = asyncio.create_task(engine.pool.soon(await _at_work(engine)))
    await engine.settle()
    assert not waits.done()
    return waits


async def test_one_waits_for_that_which_is_being_made_and_others_do_not() -> None:
    engine = Engine()
    first = await _waiting(engine)
    assert await engine.pool.soon(await _at_work(engine)) is None
    engine.goes.set()
    await engine.settle()
    assert await first is engine.made[0]
    assert (len(engine.made), engine.pool.count) == (2, 1), "another is made in its place"
    await engine.pool.close()
    assert engine.dropped == engine.made[1:]


async def test_one_that_nobody_waits_for_any_more_stays_ready() -> None:
    engine = Engine()
    waits = await _waiting(engine)
    waits.cancel()
    engine.goes.set()
    await engine.settle()
    assert waits.cancelled()
    assert engine.take() is engine.made[0]
    await engine.pool.close()


async def test_one_that_is_given_to_a_cancelled_call_stays_ready() -> None:
    engine, given = Engine(), Ready(9)
    waits = await _waiting(engine)
    assert engine.pool._awaited is not None
    engine.pool._awaited.set_result(given)  # type: ignore[arg-type]
    waits.cancel()
    await engine.settle()
    assert waits.cancelled()
    assert engine.take() is given
    engine.goes.set()
    await engine.pool.close()
    assert engine.dropped == engine.made


async def test_whoever_waits_hears_of_a_fault_and_of_the_end() -> None:
    engine = Engine()
    waits = await _waiting(engine)
    engine.fault = True
    engine.goes.set()
    assert await waits is None
    engine.fault = False
    waits = await _waiting(engine)
    closing = asyncio.create_task(engine.pool.close())
    await engine.settle()
    engine.goes.set()
    await closing
    assert await waits is None
    assert engine.dropped == engine.made
    assert len(engine.made) == 1


async def test_none_is_made_while_a_run_is_young() -> None:
    engine, shape = Engine(), shape_of(SPEC, "i")
    assert shape is not None
    engine.pool.lent("one")
    engine.pool.want(shape, SPEC)
    await engine.settle()
    assert engine.made == []
    engine.pool.aged("one")
    engine.pool.aged("one")
    await engine.settle()
    assert len(engine.made) == 1
    with engine.pool.busy():
        engine.pool.take(shape)
        engine.pool.want(shape, SPEC)
        await engine.settle()
        assert len(engine.made) == 1
    await engine.pool.close()


async def test_the_next_server_finds_what_was_lent_to_tasks(tmp_path: Path) -> None:
    before = Lent(tmp_path / "lent")
    before.add("a" * 64, "task", Owner.TASK, 1000)
    before.add("b" * 64, "run", Owner.RUN, 1000)
    (tmp_path / "lent" / f"{'c' * 64}.json").touch()  # cut off by the end of the host
    after = Lent(tmp_path / "lent")
    assert after.handles() == {"a" * 64}
    assert (after.handle_of("task"), after.timeout_ms("a" * 64)) == ("a" * 64, 1000)
    after.forget("a" * 64)
    assert Lent(tmp_path / "lent").handles() == frozenset()
    assert list((tmp_path / "lent").iterdir()) == []
