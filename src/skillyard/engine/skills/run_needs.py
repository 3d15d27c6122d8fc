"""The declared needs of a run's skills beside the grants of the run: ``needs`` of its record.

``{"least": "...", "skills": [...], "dropped": 0}``: ``least`` says why the run got the least policy, ``dropped`` counts
the rows that a record has no room for. A skill is ``{"skill", "version", "approved", "by", "because", "needs": [...]}``
with rows of :class:`skillyard.engine.skills.need_rows.Row`. The record's ``enforced`` and ``limits`` say what was
enforced, ``network`` what was reached.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.config.packages import PackagesSettings
from skillyard.config.policy import PolicySettings, SandboxSettings
from skillyard.config.profiles import ProfileSettings
from skillyard.domain.network.policy import OPERATOR, Layer, Policy
from skillyard.domain.skill.skill import Skill
from skillyard.engine.network.grant import CODE, SKILL
from skillyard.engine.runs.plan import Plan
from skillyard.engine.secrets.service import GivenSecret
from skillyard.engine.skills import need_rows
from skillyard.engine.skills.need_rows import Row
from skillyard.engine.skills.standings import BEFORE_TOOLS
from skillyard.values import dataclass

MOST_BYTES = 32 * 1024
"""Of all rows of one record, as JSON."""
LONGEST = 200
"""Characters of one text."""
_FEW = 8
"""Rows that have room however long their texts are."""

UNAPPROVED = "not approved"
REFUSED = "the run was refused"
_BESIDE = "only what the executed skill declares is granted"
_NOT_TO_CODE = "the operator gives code nothing that skills declare"
_UNASKED = "the code asks for none of it"
_MAXIMUM = "the operator's maximum"
_DEFAULT = "not approved: the default at most"
_ABSENT = "there is none for this project and skill"


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's settings that bound the rights of a run."""

    network: NetworkSettings
    policy: PolicySettings
    packages: PackagesSettings
    profiles: Mapping[str, ProfileSettings]
    sandbox: SandboxSettings


@dataclass(frozen=True, slots=True)
class Given:
    """The grants of a run, as far as they were decided.

    ``installed`` are its packages by normalized name, ``tools`` the full names of those that it may call.
    """

    policy: Policy | None = None
    secrets: Sequence[GivenSecret] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    tools: Collection[str] = ()
    refused: bool = False


def run_needs(rules: Rules, plan: Plan, given: Given) -> dict[str, Any] | None:
    """Returns None when the skills declare nothing."""
    if not any(map(need_rows.declares, plan.skills)):
        return None
    rows = [(skill, row) for skill in plan.skills for row in _rows(rules, plan, given, skill)]
    kept = _kept([row.as_dict(LONGEST) for _, row in rows])
    return {
        "least": plan.trust.least,
        "skills": [
            _told(plan, skill, [kept[i] for i, (owner, _) in enumerate(rows) if owner is skill and i in kept])
            for skill in plan.skills
            if need_rows.declares(skill) or not plan.trust.standings[skill.name].approved
        ],
        "dropped": len(rows) - len(kept),
    }


def _told(plan: Plan, skill: Skill, rows: list[dict[str, str]]) -> dict[str, Any]:
    standing = plan.trust.standings[skill.name]
    told: dict[str, Any] = {"skill": skill.name, "version": skill.version, "approved": standing.approved}
    return told | {"by": standing.by, "because": standing.because, "needs": rows}


def _rows(rules: Rules, plan: Plan, given: Given, skill: Skill) -> Iterable[Row]:
    refused = REFUSED if given.refused else ""
    against = _against_network(rules, plan, given, skill)
    yield from need_rows.network_rows(skill, _bounds(rules, plan, given), rules.network.open, against)
    secrets = {s.name: need_rows.delivery(s.delivery, [rule.text for rule in s.hosts]) for s in given.secrets}
    code = rules.policy.run_code_secrets == "mounted"
    yield from need_rows.secret_rows(skill, secrets, _beside(plan, skill, code) or _least(plan) or refused, _ABSENT)
    cap = _DEFAULT if plan.trust.least else _MAXIMUM
    others = "" if skill is plan.skill else _BESIDE if plan.skill else _NOT_TO_CODE
    yield from need_rows.limit_rows(skill, plan.limits, plan.request.limits, cap, others)
    yield from need_rows.requires_rows(skill, {mounted.name: mounted.version for mounted in plan.skills})
    standing = plan.trust.standings[skill.name]
    yield from need_rows.package_rows(skill, standing, rules.packages, given.installed, refused)
    yield from need_rows.environment_rows(skill, plan.environment, refused)
    yield from need_rows.image_rows(skill, plan.image, refused)
    beside = "" if skill is plan.of or plan.skill is None else _BESIDE
    before = "" if standing.covers_tools else BEFORE_TOOLS
    yield from need_rows.tool_rows(skill, given.tools, beside or _least(plan) or before or refused, _UNASKED)


def _against_network(rules: Rules, plan: Plan, given: Given, skill: Skill) -> str:
    other = _beside(plan, skill, rules.network.run_code == "mounted") or _least(plan)
    if other or given.policy is not None:
        return other
    return REFUSED if given.refused else "the request asked for none"


def _beside(plan: Plan, skill: Skill, code_may: bool) -> str:
    if plan.skill is not None:
        return "" if skill is plan.skill else _BESIDE
    return "" if code_may else _NOT_TO_CODE


def _least(plan: Plan) -> str:
    return UNAPPROVED if plan.trust.least else ""


def _bounds(rules: Rules, plan: Plan, given: Given) -> list[Layer]:
    """Returns the layers that bound the declared rules, of a refused run as they would be."""
    if given.policy is not None:
        return [layer for layer in given.policy.layers if layer.name not in (SKILL, CODE)]
    return [Layer(OPERATOR, rules.network.rules)] if given.refused and not plan.trust.least else []


def _kept(rows: Sequence[dict[str, str]]) -> dict[int, dict[str, str]]:
    """Returns the rows that fit into a record, by place; those not granted in full go first."""
    if len(rows) <= _FEW:
        return dict(enumerate(rows))
    room, kept = MOST_BYTES, {}
    for index in sorted(range(len(rows)), key=lambda i: "why" not in rows[i]):
        room -= len(json.dumps(rows[index])) + 2
        if room < 0:
            break
        kept[index] = rows[index]
    return kept
