"""The standing of skills: whether the needs that one declares are approved, and by whom."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from skillyard.config.packages import PackagesSettings
from skillyard.config.policy import TrustSettings
from skillyard.domain.checks import MAX_PAGE
from skillyard.domain.package.names import admits
from skillyard.domain.principal import Principal
from skillyard.domain.skill.skill import Skill, SkillSource
from skillyard.domain.skill.trust import Standing
from skillyard.engine.observer import ApprovalChanged, Observer
from skillyard.ports.approvals import ApprovalStore
from skillyard.values import dataclass

BUILT_IN = Standing(True, "built-in")
IN_DIRECTORY = Standing(True, "directory")
NOBODY = Standing(False, "nobody")
BEFORE_TOOLS = "it was approved before skills could declare tools: approve it again"
_NAMED = 3


@dataclass(frozen=True, slots=True)
class RunTrust:
    """The trust in one run. ``standings`` has every mounted skill by its name. ``least`` says why the run gets the
    least policy, and is empty when every skill is approved: all code in one sandbox shares its rights."""

    standings: Mapping[str, Standing] = field(default_factory=dict)
    least: str = ""


UNMOUNTED = RunTrust()
"""Of a run without skills."""


class Standings:
    """Asked anew for every run, so that an approval that is revoked counts no more."""

    def __init__(self, approvals: ApprovalStore, trust: TrustSettings, emit: Observer) -> None:
        self.approvals = approvals
        self.trust = trust
        self._emit = emit

    async def end(self, principal: Principal, name: str, version: str | None, note: str = "") -> int:
        """Ends the approvals of a version, or of all. Returns their number."""
        count = await self.approvals.revoke(name, version)
        if count:
            self._emit(ApprovalChanged("revoked", name, version or "*", "", principal.name, note))
        return count

    async def standing_of(self, skill: Skill) -> Standing:
        """Returns whether the skill's declared needs are approved, and by what."""
        if skill.source is SkillSource.BUILT_IN:
            return BUILT_IN
        if skill.source is SkillSource.DIRECTORY and self.trust.directories:
            return IN_DIRECTORY
        if (rule := self.trust.rule_for(skill.name, skill.version)) is not None:
            return Standing(True, "rule", rule.text)
        approval = await self.approvals.find(skill.name, skill.version, skill.digest)
        return NOBODY if approval is None else Standing(True, "operator", approval.approved_by, approval.needs)

    async def approved_versions(self, name: str) -> frozenset[str]:
        """Returns the versions of which an operator approved some bytes."""
        found: set[str] = set()
        after = None
        while page := await self.approvals.page(limit=MAX_PAGE, after=after, name=name):
            found |= {approval.version for approval in page}
            after = (page[-1].name, page[-1].version, page[-1].digest)
            if len(page) < MAX_PAGE:
                break
        return frozenset(found)

    async def of(self, skills: Collection[Skill]) -> RunTrust:
        """Returns the trust in a run that mounts ``skills``."""
        if not skills:
            return UNMOUNTED
        standings = {skill.name: await self.standing_of(skill) for skill in skills}
        return RunTrust(standings, _why_least([skill for skill in skills if not standings[skill.name].approved]))


def packages_allowed(standing: Standing, names: Iterable[str], config: PackagesSettings) -> tuple[str, ...]:
    """Returns the packages that a skill with this standing may have, of those that it asks for.

    An approved one may have all that the operator allows, another those that code may have too."""
    return tuple(
        name for name in names if admits(config.allow, name) and (standing.approved or admits(config.run_code, name))
    )


def _why_least(unapproved: list[Skill]) -> str:
    if not unapproved:
        return ""
    named = ", ".join(f"'{skill.name}' {skill.version}" for skill in unapproved[:_NAMED])
    more = f" and {len(unapproved) - _NAMED} more" if len(unapproved) > _NAMED else ""
    first = unapproved[0]
    are = "is" if len(unapproved) == 1 else "are"
    return f"{named}{more} {are} not approved: `skillyard skill approve {first.name}@{first.version}`"
