"""Walls that are missing: a run is refused, and a record never claims what is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skillyard.domain.errors import ProtectionMissing, SkillyardError
from skillyard.domain.sandbox.guarantees import ADVISORY, WALLS, Demand, Level, Probe, Protection
from skillyard.domain.sandbox.spec import SandboxSpec, Start
from skillyard.runtime import Runtime
from skillyard.sandbox import registry
from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, broken, escaped, not_applicable
from skillyard.verify.home import workplace
from skillyard.verify.site import HEARTBEAT, Site
from skillyard.wiring import make_backends

POLICY = Family("policy", invariants=(10,))


async def _record(site: Site) -> Judgement:
    run = await site.run(HEARTBEAT, {"word": "policy"})
    enforced: dict[str, str] = dict(run.raw.get("enforced") or {})
    if not run.ok or not enforced:
        return broken("the run's record says nothing of its walls")
    accepted = registry.nature(str(run.raw.get("isolation") or "")).without
    if site.runtime is not None:
        accepted |= site.runtime.settings.policy.allow_degraded
    offered = {name: Protection(Level(level)) for name, level in enforced.items()}
    missing = Demand(allow_degraded=accepted).shortfall(offered)
    if unnamed := sorted(set(missing) - set(enforced)):
        return escaped(f"the record does not speak of {', '.join(unnamed)}")
    if not missing:
        return CONTAINED
    named = ", ".join(sorted(missing))
    if site.runtime is None:
        return not_applicable(f"the server runs without {named}; its policy is not to be seen")
    return escaped(f"{named} is missing, and the policy does not allow that")


POLICY.steps("record", "Run where a wall is missing without the record or the policy saying so.", _record)


class _Weaker:
    """A backend whose sandboxes lack one of the walls that its probe promised."""

    def __init__(self, real: Any, wall: str) -> None:
        self._real = real
        self._wall = wall

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def close(self) -> None:
        """The real one serves the next wall."""

    async def create(self, spec: SandboxSpec, key: str) -> Any:
        return _WeakerSandbox(await self._real.create(spec, key), self._wall)

    @property
    def enforces(self) -> dict[str, str] | None:
        told = getattr(self._real, "enforces", None)
        return None if told is None else {**told, self._wall: Level.MISSING.value}

    async def launch(self, spec: SandboxSpec, key: str, first: Start) -> Any:
        launched = await self._real.launch(spec, key, first)
        return launched._replace(sandbox=_WeakerSandbox(launched.sandbox, self._wall))


class _WeakerSandbox:
    def __init__(self, real: Any, wall: str) -> None:
        self._real = real
        self._wall = wall

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def enforced(self) -> dict[str, str]:
        return {**self._real.enforced, self._wall: Level.MISSING.value}


class _Promising(_Weaker):
    """A backend whose probe says that a wall is missing."""

    async def probe(self) -> Probe:
        found: Probe = await self._real.probe()
        lost = replace(found.protections[self._wall], level=Level.MISSING, why="taken away by the battery")
        return replace(found, protections={**found.protections, self._wall: lost})

    async def create(self, spec: SandboxSpec, key: str) -> Any:
        return await self._real.create(spec, key)


async def _refused(site: Site, kind: type[_Weaker]) -> Judgement:
    """Takes away each wall in turn, over a real backend of the kind met here: no run may start."""
    assert site.runtime is not None
    name = str((await site.run(HEARTBEAT, {"word": "policy"})).raw["isolation"])
    with workplace() as place:
        settings = site.runtime.settings.model_copy(update={"data_dir": place / "data", "skills_dirs": ()})
        real = make_backends(site.runtime.settings, place / "run")[name]  # whose secrets have a provider's key
        try:
            for wall in sorted(set(WALLS) - ADVISORY - registry.nature(name).without - settings.policy.allow_degraded):
                async with Runtime(settings=settings, backend=kind(real, wall)) as runtime:
                    if (judgement := await _turned_away(runtime, wall)) is not CONTAINED:
                        return judgement
        finally:
            await real.close()
    return CONTAINED


async def _turned_away(runtime: Runtime, wall: str) -> Judgement:
    try:
        run = await runtime.run_code(HEARTBEAT, {"word": "policy"})
    except SkillyardError as error:
        if isinstance(error, ProtectionMissing) and wall in str(error.details):
            return CONTAINED
        return broken(f"without {wall}: {error.type}: {error.message}")
    return escaped(f"a run without {wall} was {run.status}")


async def _refused_by_sandbox(site: Site) -> Judgement:
    return await _refused(site, _Weaker)


async def _refused_by_probe(site: Site) -> Judgement:
    return await _refused(site, _Promising)


POLICY.steps(
    "missing-on-host", "Get a run on a host that cannot give a wall.", _refused_by_probe,
    needs=[Need.IN_PROCESS], alone=True,
)  # fmt: skip
POLICY.steps(
    "missing-in-sandbox", "Get a run in a sandbox that lacks a wall which the host's probe had promised.",
    _refused_by_sandbox, needs=[Need.IN_PROCESS], alone=True,
)  # fmt: skip
