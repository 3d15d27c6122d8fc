"""Measures runs and sessions on a backend, beside native and beside its component used bare, in turns."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.backends.bare import Bare
from bench.backends.components import Component
from skillyard.bench.subject import PLAIN, SUM
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, SandboxSpec
from skillyard.domain.work.record import Outcome
from skillyard.runtime import Runtime

Work = Callable[[], Awaitable[Any]]
BASE = "native"
SKILL = "skills.protocol.guide"
_TRUE = ("true",)
_COMMANDS = 3
_AT_ONCE = 4
_REST_S, _LOOK_S, _MOST_REST_S = 1.5, 0.1, 60.0
"""How long the number of sandboxes that wait ready stays the same before the next turn, at most after the last."""


@dataclass(frozen=True)
class Plan:
    """``rounds`` of each single thing, and so many runs ``at`` a time in the last part."""

    rounds: int
    runs: int

    @classmethod
    def of(cls, *, quick: bool, rounds: int | None = None, runs: int | None = None) -> Plan:
        usual = cls(2, 4) if quick else cls(15, 100)
        return cls(rounds or usual.rounds, runs or usual.runs)


async def measure(name: str, component: Component, home: Path, plan: Plan) -> dict[str, Any]:
    """Returns medians in seconds: by part, those of the backend, of native and of the bare component.

    The parts: ``sandbox`` (made, ``true``, ended), ``run`` (``run_code`` with its record), ``session`` (made, three
    commands, ended) and ``runs`` (many, four at a time). Each turn of the first three begins when those who make
    sandboxes ahead have made them.
    """
    async with AsyncExitStack() as stack:
        held = {"ours": _Ours(await _open(stack, component, name, home / name))}
        if name != BASE:
            held["native"] = _Ours(await _open(stack, Component({}), BASE, home / BASE))
        workers = {who: each.parts() for who, each in held.items()}
        if component.bare is not None:
            workers["bare"] = _bare(component.bare)
        found: dict[str, dict[str, Any]] = {}
        for part in ("sandbox", "run", "session"):
            times: dict[str, list[float]] = {who: [] for who in workers}
            for who in workers:  # the first of each makes ready what later ones find
                await workers[who][part]()
            for each in held.values():
                await each.rest()
            for _ in range(plan.rounds):
                for who, parts in workers.items():
                    await asyncio.to_thread(component.rest)
                    times[who].append(await _timed(parts[part]))
                    if who in held:
                        await held[who].rest()
            found[part] = {who: statistics.median(taken) for who, taken in times.items()}
        found["runs"] = {}
        for who, parts in workers.items():
            await asyncio.to_thread(component.rest)
            found["runs"][who] = await _timed(_many(parts["run"], plan.runs))
        for times_of in found.values():
            times_of.setdefault("native", times_of["ours"])
        return {"seconds": found, "rounds": plan.rounds, "runs": plan.runs}


async def _open(stack: AsyncExitStack, component: Component, name: str, data_dir: Path) -> Runtime:
    await component.prepare(data_dir)
    return await stack.enter_async_context(Runtime(settings=component.load(name, data_dir)))


class _Ours:
    """A runtime whose runs have one backend."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def parts(self) -> dict[str, Work]:
        return {"sandbox": self._sandbox, "run": self._run, "session": self._session}

    async def rest(self) -> None:
        """Returns when no sandbox was made ahead for a while."""
        offer = self._runtime.app.backends.default
        if offer is None or not hasattr(offer.backend, "stats"):
            return  # it makes none ahead
        told, until = await offer.backend.stats(), time.monotonic() + _MOST_REST_S
        since = time.monotonic()
        while time.monotonic() < min(since + _REST_S, until):
            await asyncio.sleep(_LOOK_S)
            before, told = told, await offer.backend.stats()
            since = since if told == before else time.monotonic()

    async def _sandbox(self) -> None:
        offer = self._runtime.app.backends.default
        assert offer is not None
        probe = await offer.backend.probe()
        missing = frozenset(name for name, held in probe.protections.items() if held.level is Level.MISSING)
        spec = SandboxSpec(allow_degraded=missing, single=True, command=True)
        sandbox = await offer.backend.create(spec, f"bench-{uuid.uuid4().hex}")
        try:
            ended = await (await sandbox.start(Argv(_TRUE), id="one")).wait()
            assert (ended.outcome, ended.code) == (Outcome.EXIT, 0), ended
        finally:
            await offer.backend.destroy(sandbox.handle)

    async def _run(self) -> None:
        run = await self._runtime.run_code(SUM.code, SUM.args)
        SUM.check(run.raise_for_status().output)

    async def _session(self) -> None:
        id = f"bench-{uuid.uuid4().hex[:12]}"
        for _ in range(_COMMANDS):
            told = await self._runtime.run_cmd(SKILL, "true", session_id=id)
            assert told["status"] == "succeeded", told
        await self._runtime.end_session(id)


def _bare(used: Bare) -> dict[str, Work]:
    def run() -> None:
        SUM.check(json.loads(used.once(("python3", "-I", "-c", PLAIN, SUM.request(None)))))

    return {
        "sandbox": lambda: asyncio.to_thread(used.once, _TRUE),
        "run": lambda: asyncio.to_thread(run),
        "session": lambda: asyncio.to_thread(used.session, [_TRUE] * _COMMANDS),
    }


def _many(work: Work, count: int) -> Work:
    async def all_of_them() -> None:
        left = iter(range(count))

        async def one_after_another() -> None:
            for _ in left:
                await work()

        await asyncio.gather(*(one_after_another() for _ in range(_AT_ONCE)))

    return all_of_them


async def _timed(work: Work) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began
