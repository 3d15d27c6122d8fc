"""Skills that ask for something, and what a run says that it gave them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import EgressPlan
from skillyard.domain.skill.skill import Needs, SecretNeed, Skill, SkillSource
from skillyard.domain.skill.trust import Approval
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill

ASKS = Needs(
    network=("api.x.com:443", "!bad.x.com"),
    secrets=(SecretNeed("KEY"), SecretNeed("MORE", optional=True)),
    limits={"memory_mb": 1024, "timeout_ms": 1000},
)
NET = Needs(network=("api.x.com:443",))


def published(name: str, needs: Needs | None = None, **more: Any) -> Skill:
    return replace(a_skill(name, needs=needs, **more), source=SkillSource.PUBLISHED)


def rules(*texts: str) -> Any:
    return tuple(map(parse_rule, texts))


async def approve(rig: Rig, skill: Skill, digest: str | None = None) -> None:
    approval = Approval(skill.name, skill.version, digest or skill.digest, 0.0, "ann")
    await rig.app.ports.approvals.approve(approval)


async def needs_of(rig: Rig, run: dict[str, Any]) -> dict[str, Any]:
    needs = (await rig.call("runs.show", run_id=run["run_id"]))["run"]["needs"]
    assert isinstance(needs, dict)
    return needs


def rows(needs: dict[str, Any], skill: int = 0) -> list[tuple[str, str, str, str]]:
    found = needs["skills"][skill]["needs"]
    return [(row["need"], row["asked"], row.get("granted", ""), row.get("why", "")) for row in found]


def opened(rig: Rig) -> EgressPlan | None:
    assert rig.gate is not None
    plans = [session.plan for session in rig.gate.sessions.values()]
    return plans[-1] if plans else None


def has_network(rig: Rig) -> bool:
    return rig.backend.started[-1][0].egress is not None
