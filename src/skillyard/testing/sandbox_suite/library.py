"""The library of attacks over a backend.

Every attack and benign program is a check of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.testing.attacks import ATTACKS
from skillyard.testing.attacks.attack import FAILURES, Attack, Need, Place, Ran, Verdict, tried, weaker
from skillyard.testing.attacks.canaries import Canaries, planted, planted_file
from skillyard.testing.attacks.prelude import moved
from skillyard.testing.sandbox_suite.check import Check, Failed, NotApplicable
from skillyard.testing.sandbox_suite.ground import ROOT, Done, Ground
from skillyard.testing.sandbox_suite.ground import code as guest
from skillyard.testing.sandbox_suite.guest import frames


class _Over(Place):
    """Runs each program in a sandbox of its own, as a guest."""

    def __init__(self, ground: Ground, enforced: Mapping[str, str], canaries: Canaries | None) -> None:
        self._ground = ground
        self.canaries, self.patience = canaries, ground.patience
        self.hidden = [str(path) for path in ground.hidden]
        self.enforced = dict(enforced)
        self.levels = weaker(enforced)
        self.levels["bounding_set"] = Level.MISSING if ground.keeps_bounding_set else Level.KERNEL
        self.outcomes = set()

    @property
    def offers(self) -> frozenset[Need]:
        return frozenset(Need)

    async def run(self, code: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Ran:
        source = moved(code) if ROOT in self._ground.variables else code
        timeout_ms = int(limits.pop("timeout_ms", 30_000) * self.patience)
        done = await self._ground.run(guest(source, args), Limits(timeout_ms=timeout_ms, **limits))
        self.outcomes.add(done.ending.outcome.value)
        return _ran(done)


def _ran(done: Done) -> Ran:
    """Returns what the judge reads; a channel that is cut off has no result."""
    ending, usage = done.ending, done.ending.usage
    try:
        found = frames(done.channel)[-1:]
    except Failed:
        found = []
    error: dict[str, Any] = next((frame.value for frame in found if frame.kind == "X"), {})
    raised = f"{error.get('type')}: {error.get('message')}" if error else ""
    said = ending.reason or raised or repr(done.stdout[-300:])
    ok = bool(found) and found[0].kind == "R" and ending.outcome is Outcome.EXIT and not ending.code
    return Ran(
        ok=ok,
        output=found[0].value if ok else None,
        log=done.stdout.decode(errors="replace"),
        ends=frozenset({ending.outcome.value, str(error.get("type", "")), *ending.hits} - {""}),
        why=f"{ending.outcome}, code {ending.code}, signal {ending.signal}: {said}"[:400],
        cpu_ms=usage.cpu_ms,
        wall_ms=usage.wall_ms,
    )


def _check(attack: Attack) -> Check:
    async def hold(ground: Ground) -> None:
        enforced = (await ground.backend.probe()).enforced()
        with ExitStack() as stack:
            canaries = None
            if Need.CANARIES in attack.needs:
                canaries = stack.enter_context(planted())
                stack.enter_context(planted_file(canaries, ground.scratch))
            judgement = await tried(_Over(ground, enforced, canaries), attack)
        if judgement.verdict in FAILURES:
            raise Failed(f"{attack.tries} {judgement.verdict}: {judgement.why}")
        if judgement.verdict is Verdict.NOT_APPLICABLE:
            raise NotApplicable(judgement.why)

    name = attack.name.removeprefix(f"{attack.family}-")
    return Check(name, attack.family, frozenset(), hold, frozenset(attack.walls))


CHECKS = [_check(attack) for attack in ATTACKS]
