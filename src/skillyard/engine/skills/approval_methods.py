"""Operators' consent to what skills declare: ``catalogue.needs``, ``approve``, ``revoke`` and ``approvals``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.config.packages import PackagesSettings
from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import InvalidInput, SkillNotFound, shown
from skillyard.domain.network.policy import OPERATOR, Layer
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill
from skillyard.domain.skill.trust import Approval, Standing
from skillyard.domain.work.limits import LimitFamily
from skillyard.engine.method import (
    BOOLEAN,
    CURSOR,
    INTEGER,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.observer import ApprovalChanged, Observer
from skillyard.engine.runs.plan import capped
from skillyard.engine.shapes import APPROVAL, NEED, NEXT_CURSOR, STRINGS, TEXT_OR_NULL, or_null, shape
from skillyard.engine.skills import cursor as cursors
from skillyard.engine.skills import need_rows
from skillyard.engine.skills.need_rows import Row
from skillyard.engine.skills.publishing import Publisher
from skillyard.engine.skills.service import SkillService
from skillyard.engine.skills.standings import BEFORE_TOOLS
from skillyard.ports.clock import Clock

Params = Mapping[str, Any]

MOST_NOTE = 1000
_LONGEST = 1000
"""Characters of one text: nothing of what is approved is left out."""
_PLACE = "approvals"
ALLOWED = Standing(True, "operator")
"""Of what is about to be approved."""


class Approvals:
    """Operators' consent. ``network``, ``limits`` and ``packages`` bound the needs of an approved skill."""

    def __init__(
        self,
        skills: SkillService,
        publisher: Publisher,
        network: NetworkSettings,
        limits: LimitFamily,
        packages: PackagesSettings,
        clock: Clock,
        emit: Observer,
    ) -> None:
        self.skills = skills
        self.standings = skills.standings
        self.store = skills.standings.approvals
        self.publisher = publisher
        self.network = network
        self.limits = limits
        self.packages = packages
        self.clock = clock
        self.emit = emit


async def show_needs(approvals: Approvals, principal: Principal, params: Params) -> dict[str, Any]:
    skill = await approvals.skills.find(principal, params["name"], params.get("version"))
    return await _needs_view(approvals, principal, skill)


async def approve(approvals: Approvals, principal: Principal, params: Params) -> dict[str, Any]:
    """Approves between changes of the catalogue: to restore a version ends its approvals."""
    check_unicode("note", params["note"])
    return await approvals.publisher.change(_approve(approvals, principal, params))


async def _approve(approvals: Approvals, principal: Principal, params: Params) -> dict[str, Any]:
    skill = await approvals.skills.find(principal, params["name"], params.get("version"))
    if params.get("digest") not in (None, skill.digest):
        rule = f"is not that of '{skill.name}' {skill.version} as it is now: look at its needs again"
        raise InvalidInput("digest", rule, shown(params["digest"]))
    made = Approval(skill.name, skill.version, skill.digest, approvals.clock.now(), principal.name, params["note"])
    await approvals.store.approve(made)
    approvals.emit(ApprovalChanged("approved", made.name, made.version, made.digest, principal.name, made.note))
    return {**await _needs_view(approvals, principal, skill), "approval": _view(made)}


async def revoke(approvals: Approvals, principal: Principal, params: Params) -> dict[str, Any]:
    name, version = params["name"], params.get("version")
    if not principal.may_use(name):
        raise SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
    count = await approvals.standings.end(principal, name, version)
    if not count:
        await approvals.skills.find(principal, name, version)  # a name that nothing has is a slip, and says so
    return {"name": name, "version": version, "revoked": count, "still": await _still(approvals, name, version)}


async def _still(approvals: Approvals, name: str, version: str | None) -> dict[str, Any] | None:
    """Returns what approves the version, or the latest, all the same: a rule, or where it lies."""
    try:
        skill = await approvals.skills.store.get(name, version)
    except SkillNotFound:
        return None
    standing = await approvals.standings.standing_of(skill)
    if not standing.approved:
        return None
    return {"version": skill.version, "by": standing.by, "because": standing.because}


async def list_approvals(approvals: Approvals, principal: Principal, params: Params) -> dict[str, Any]:  # noqa: ARG001
    limit, after = params["limit"], None
    if params["cursor"] is not None:
        name, version, digest = json.loads(cursors.unseal(approvals.skills.cursor_key, _PLACE, params["cursor"]))
        after = (name, version, digest)
    found = await approvals.store.page(limit=limit + 1, after=after, name=params.get("name"))
    page = found[:limit]
    last = json.dumps([page[-1].name, page[-1].version, page[-1].digest]) if page else ""
    return {
        "approvals": [
            {
                **_view(one),
                "served": await _is_served(approvals, one),
                "locks": list(await approvals.store.locks(one.name, one.version, one.digest)),
            }
            for one in page
        ],
        "next_cursor": cursors.seal(approvals.skills.cursor_key, _PLACE, last) if len(found) > limit else None,
    }


async def _is_served(approvals: Approvals, approval: Approval) -> bool:
    try:
        return (await approvals.skills.store.get(approval.name, approval.version)).digest == approval.digest
    except SkillNotFound:
        return False


async def _needs_view(approvals: Approvals, principal: Principal, skill: Skill) -> dict[str, Any]:
    standing = await approvals.standings.standing_of(skill)
    rows = [*_rows(approvals, skill, standing), *await _requires_rows(approvals, principal, skill)]
    return {
        "name": skill.name,
        "version": skill.version,
        "digest": skill.digest,
        "source": skill.source.value,
        "approved": standing.approved,
        "by": standing.by,
        "because": standing.because,
        "needs": [row.as_dict(_LONGEST) for row in rows],
    }


def _rows(approvals: Approvals, skill: Skill, standing: Standing) -> Iterable[Row]:
    """Returns what it asks for, and what the operator's policy leaves of it once it is approved."""
    yield from need_rows.network_rows(skill, [Layer(OPERATOR, approvals.network.rules)], approvals.network.open)
    declared = {need.name: need_rows.delivery(need.delivery, need.hosts) for need in skill.needs.secrets}
    yield from need_rows.secret_rows(skill, declared)
    limits = approvals.limits.resolve(capped(skill.needs.limits, approvals.limits.maxima))
    yield from need_rows.limit_rows(skill, limits, {}, "the operator's maximum")
    yield from need_rows.package_rows(skill, ALLOWED, approvals.packages, {})
    yield from need_rows.environment_rows(skill, need_rows.environment_of(skill))
    for pattern in skill.needs.tools:
        covered = standing.covers_tools
        yield Row(need_rows.TOOL, pattern, pattern if covered else "", "" if covered else BEFORE_TOOLS)


async def _requires_rows(approvals: Approvals, principal: Principal, skill: Skill) -> list[Row]:
    """Returns what it would be mounted with, and whether that is approved, too."""
    if not skill.needs.requires:
        return []
    try:
        mounted = await approvals.skills.mounted(principal, skill, (), as_approved=True)
    except InvalidInput as error:
        return [Row(row.need, row.asked, "", error.rule) for row in need_rows.requires_rows(skill, {})]
    others = [other for other in mounted if other is not skill]
    rows = list(need_rows.requires_rows(skill, {other.name: other.version for other in others}))
    least = (await approvals.standings.of(others)).least
    return [Row(row.need, row.asked, row.granted, least) for row in rows]


def _view(approval: Approval) -> dict[str, Any]:
    return {
        "name": approval.name,
        "version": approval.version,
        "digest": approval.digest,
        "approved_at": approval.approved_at,
        "approved_by": approval.approved_by,
        "note": approval.note,
    }


_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_NEEDS = {
    "name": STRING,
    "version": STRING,
    "digest": described(STRING, "SHA-256 over the paths, modes and bytes of its files: what an approval is bound to"),
    "source": described(STRING, "'published', 'directory' or 'built-in'"),
    "approved": BOOLEAN,
    "by": described(STRING, "'operator', 'rule', 'directory', 'built-in' or 'nobody'"),
    "because": described(STRING, "who approved it, or the rule"),
    "needs": list_of(NEED, "with what is granted once it is approved"),
}

TABLE = (
    Method(
        name="catalogue.needs",
        doc="The declared needs of a skill, what policy leaves of them, and whether it is approved.",
        params=obj({"name": SKILL_NAME, "version": VERSION}, "name"),
        example={"name": "acme.words.say"},
        result=answer(_NEEDS),
        errors=(SkillNotFound,),
        handler=show_needs,
        service=Approvals,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE, Scope.PUBLISH}),
        repeatable=True,
    ),
    Method(
        name="catalogue.approve",
        doc="Consent to what one version of a skill declares that it needs; runs get it from now on.",
        params=obj(
            {
                "name": SKILL_NAME,
                "version": VERSION,
                "digest": described(_DIGEST, "refuse when the version has other bytes than those that were looked at"),
                "note": described(STRING, "kept with it", maxLength=MOST_NOTE, default=""),
            },
            "name",
        ),
        example={"name": "acme.words.say", "version": "1.0.0", "note": "read it"},
        result=answer({**_NEEDS, "approval": shape("Approval", "an operator's consent", APPROVAL)}),
        errors=(SkillNotFound,),
        handler=approve,
        service=Approvals,
        scope=Scope.ADMIN,
    ),
    Method(
        name="catalogue.revoke",
        doc="Take approvals back: of one version, or of every one. Runs at work go on as they are.",
        params=obj({"name": SKILL_NAME, "version": described(VERSION, "every version when omitted")}, "name"),
        example={"name": "acme.words.say", "version": "1.0.0"},
        result=answer(
            {
                "name": STRING,
                "version": described(TEXT_OR_NULL, "null for every one"),
                "revoked": described(INTEGER, "how many approvals went"),
                "still": described(
                    or_null(answer({"version": STRING, "by": STRING, "because": STRING})),
                    "what approves it all the same",
                ),
            }
        ),
        errors=(SkillNotFound,),
        handler=revoke,
        service=Approvals,
        scope=Scope.ADMIN,
    ),
    Method(
        name="catalogue.approvals",
        doc="Approvals that operators gave one by one, by name and version.",
        params=obj(
            {
                "name": SKILL_NAME,
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
            }
        ),
        example={"limit": 20},
        result=answer(
            {
                "approvals": list_of(
                    answer(
                        {
                            **APPROVAL,
                            "locks": described(
                                STRINGS, "environments whose packages it is bound to; none before a run had some"
                            ),
                            "served": described(BOOLEAN, "the catalogue has these very bytes under the version"),
                        }
                    ),
                    "rows",
                ),
                "next_cursor": NEXT_CURSOR,
            }
        ),
        handler=list_approvals,
        service=Approvals,
        scope=Scope.ADMIN,
        repeatable=True,
    ),
)
