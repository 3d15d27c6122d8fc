"""The life of a lent sandbox: a place before it, nothing of it left when the place is free."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from skillyard.config.limits import AdmissionSettings
from skillyard.domain.errors import Busy, InvalidInput, ProtectionMissing, SandboxFault
from skillyard.domain.package.environment import Wanted
from skillyard.domain.sandbox.guarantees import Demand, Probe
from skillyard.domain.sandbox.spec import Guest, SandboxSpec, Start
from skillyard.domain.work.limits import Limits
from skillyard.engine.backends import Offer
from skillyard.engine.lending import Lender, Order
from skillyard.engine.observer import Fault
from skillyard.engine.packages.build import BuildLog
from skillyard.engine.packages.building import SandboxBuilder
from skillyard.engine.packages.environment import BuildFailed, standard_library
from skillyard.engine.packages.steps import Steps
from skillyard.engine.shares import Admission, Budget, Room
from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import Launched
from tests.unit.engine.conftest import Rig

pytestmark = pytest.mark.anyio

LIMITS = Limits(1000, 100, 1.0, 10, 100)


class Shop:
    """A lender of ``places`` sandboxes and ``memory_mb``, over the rig's backend."""

    def __init__(self, rig: Rig, places: int = 1, memory_mb: int = 1 << 20) -> None:
        self.rig = rig
        self.admission = Admission(AdmissionSettings(running=places), memory_mb)
        self.lender = Lender(
            self.admission, Tasks(), rig.events.append, Room(1), Budget(1, 1, "full"), Budget(1, 1, "full")
        )

    def order(self, key: str = "k", **more: Any) -> Order:
        offer = self.rig.app.backends.default
        assert offer is not None
        return Order(key, "ann", offer, SandboxSpec(LIMITS, standard_library("base")), **more)


async def test_the_place_is_free_when_nothing_is_left(rig: Rig) -> None:
    shop = Shop(rig)
    async with shop.lender.lend(shop.order()) as loan:
        assert shop.admission.running == 1
        assert shop.admission.reserved_mb == LIMITS.memory_mb + LIMITS.disk_mb
        sandbox, guest = await loan.open({"env": {}})
        assert guest == {"env": {}}
        assert sandbox.handle in rig.backend.held
    assert rig.backend.held == {}
    assert (shop.admission.running, shop.admission.reserved_mb) == (0, 0)


async def test_the_next_one_waits_and_is_told_how_many_do(rig: Rig) -> None:
    shop, told = Shop(rig), list[int]()

    async def lend() -> None:
        async with shop.lender.lend(shop.order("second"), told.append) as loan:
            await loan.open({})

    async with shop.lender.lend(shop.order("first"), told.append) as loan:
        await loan.open({})
        second = asyncio.create_task(lend())
        while not shop.admission.waiting:
            await asyncio.sleep(0)
        assert [held.key for held in rig.backend.held.values()] == ["first"]
    await asyncio.wait_for(second, 5)
    assert told == [1]


async def test_a_creation_that_was_interrupted_leaves_nothing(rig: Rig) -> None:
    shop = Shop(rig)
    rig.backend.gate = asyncio.Event()

    async def lend() -> None:
        async with shop.lender.lend(shop.order()) as loan:
            await loan.open({})

    lending = asyncio.create_task(lend())
    while not rig.backend.held:
        await asyncio.sleep(0)
    lending.cancel()
    await asyncio.gather(lending, return_exceptions=True)
    assert rig.backend.held == {}
    assert shop.admission.running == 0


async def test_one_without_a_wall_is_not_lent(rig: Rig) -> None:
    shop = Shop(rig)
    rig.backend.in_force["seccomp"] = "missing"
    async with shop.lender.lend(shop.order()) as loan:
        with pytest.raises(ProtectionMissing, match="seccomp"):
            await loan.open({})
        assert loan.enforced["seccomp"] == "missing"
    assert rig.backend.held == {}


async def test_one_that_cannot_be_ended_is_told_and_its_place_is_free(rig: Rig) -> None:
    shop = Shop(rig)

    async def destroy(_handle: str) -> Any:
        raise SandboxFault("it stays")

    async with shop.lender.lend(shop.order()) as loan:
        await loan.open({})
        plain, rig.backend.destroy = rig.backend.destroy, destroy  # type: ignore[method-assign, assignment]
    rig.backend.destroy = plain  # type: ignore[method-assign]
    assert [fault.where for fault in rig.of(Fault)] == ["destroy"]
    assert shop.admission.running == 0


async def test_too_large_for_the_host_is_refused_or_takes_all(rig: Rig) -> None:
    shop = Shop(rig, memory_mb=150)
    with pytest.raises(InvalidInput, match="at most 150"):
        async with shop.lender.lend(shop.order()):
            raise AssertionError("it was lent")
    async with shop.lender.lend(shop.order(trimmed=True)):
        assert shop.admission.reserved_mb == 150


async def test_a_build_has_a_place(rig: Rig) -> None:
    shop, seen = Shop(rig), list[tuple[int, int]]()

    async def create(spec: SandboxSpec, key: str) -> Any:
        seen.append((shop.admission.running, shop.admission.reserved_mb - spec.limits.memory_mb - spec.limits.disk_mb))
        raise SandboxFault("no room")

    rig.configure(packages={"offline": True, "wheels": rig.home})
    rig.app.backends.admit(rig.backend, await _probe(rig))
    rig.backend.create = create  # type: ignore[method-assign]
    config = rig.app.config
    steps = Steps(config.packages, config.network, rig.app.backends, shop.lender, None, rig.app.secrets, usual="base")
    with pytest.raises(BuildFailed, match="no room"):
        await SandboxBuilder(steps).resolve(Wanted.of(["x"]), BuildLog())
    assert seen == [(1, 0)]
    assert shop.admission.running == 0
    shop.admission.close()
    with pytest.raises(BuildFailed, match="shutting down"):
        await SandboxBuilder(steps).resolve(Wanted.of(["x"]), BuildLog())


async def test_no_program_is_launched_behind_lesser_walls(rig: Rig) -> None:
    probe, backend = await rig.backend.probe(), rig.backend
    backend.launch = backend.create  # type: ignore[attr-defined]
    backend.enforces = {**probe.enforced(), "network": "missing"}  # type: ignore[attr-defined]
    offer = Offer(backend, probe, Demand())
    with pytest.raises(ProtectionMissing, match="network"):
        offer.launcher()
    backend.enforces = None  # type: ignore[attr-defined]
    assert offer.launcher() is None
    backend.enforces = probe.enforced()  # type: ignore[attr-defined]
    assert offer.launcher() is not None


async def test_a_launch_that_nobody_waits_for_leaves_nothing(rig: Rig) -> None:
    probe, backend, asked = await rig.backend.probe(), rig.backend, []

    async def launch(spec: SandboxSpec, key: str, first: Start) -> Launched:
        raise AssertionError("it was awaited")

    def ask(spec: SandboxSpec, key: str, first: Start) -> Coroutine[Any, Any, Launched]:
        asked.append(first.id)
        return launch(spec, key, first)

    backend.enforces, backend.launch = probe.enforced(), ask  # type: ignore[attr-defined]
    await rig.app.backends.start()
    shop, made = Shop(rig), backend.create
    keys: list[str] = []

    async def create(spec: SandboxSpec, key: str) -> Any:
        keys.append(key)
        return await made(spec, key)

    backend.create = create  # type: ignore[method-assign]
    async with shop.lender.lend(shop.order("k")) as loan:
        loan.launch(Start(Guest({}), "p"))
        loan.launch(Start(Guest({}), "q"))
    assert (asked, keys, backend.held, shop.admission.running) == (["p"], ["k"], {}, 0)


async def test_none_is_lent_when_the_server_closes(rig: Rig) -> None:
    shop = Shop(rig)
    shop.admission.close()
    with pytest.raises(Busy):
        async with shop.lender.lend(shop.order()):
            raise AssertionError("it was lent")


async def _probe(rig: Rig) -> Probe:
    return await rig.backend.probe()
