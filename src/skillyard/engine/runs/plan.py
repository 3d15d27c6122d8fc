"""What a request means here: the skills, blobs, limits and environment it names, found and checked.

Everything in this file answers to the caller's request as such, so what it finds wrong is a protocol-level
error and leaves no record (skills-protocol §6). What the run may have is decided in
:mod:`skillyard.engine.runs.grant`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import (
    BlobNotFound,
    InvalidInput,
    NotExecutable,
    UnsupportedLanguage,
)
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.spec import Mount
from skillyard.domain.skill.skill import Skill, SkillKind
from skillyard.domain.work.limits import MINIMUM, LimitFamily, Limits
from skillyard.domain.work.record import RunKind
from skillyard.engine.backends import Offer
from skillyard.engine.blobs.service import owned_blob
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.skills.discovery import find_skill
from skillyard.engine.skills.needs import UNMOUNTED, RunTrust, trust_of
from skillyard.engine.skills.requires import mounted_skills
from skillyard.ports.blobs import BlobInfo

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

DEFAULT_ENVIRONMENT = "base"


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with everything it names. ``skills`` are all that will be mounted, ``skill`` the one that is
    executed; ``offer`` is the backend it will run on; ``taken_at`` is on the monotonic clock."""

    run_id: str
    principal: Principal
    request: RunRequest
    created_at: float
    taken_at: float
    limits: Limits
    environment: str
    offer: Offer
    skill: Skill | None = None
    skills: tuple[Skill, ...] = ()
    trust: RunTrust = UNMOUNTED
    blobs: tuple[BlobInfo, ...] = ()
    blob_mounts: tuple[Mount, ...] = ()


async def make_plan(engine: Engine, principal: Principal, request: RunRequest) -> Plan:
    """Raises SkillNotFound, BlobNotFound, NotExecutable, UnsupportedLanguage, InvalidInput, ProtectionMissing."""
    offer = await engine.backends.choose(request.isolation)
    skill = await _target(engine, principal, request)
    named = request.mount_skills
    skills = await mounted_skills(engine, principal, skill, named) if skill or named else ()
    trust = await trust_of(engine, skills)
    blobs = tuple([await _input(engine, principal, blob_id, i) for i, blob_id in _numbered(request)])
    return Plan(
        run_id=engine.ids.run(),
        principal=principal,
        request=request,
        created_at=engine.clock.now(),
        taken_at=engine.clock.monotonic(),
        limits=_limits(engine.config.limits.family, request, skill, trust),
        environment=_environment(request, skill, skills),
        offer=offer,
        skill=skill,
        skills=skills,
        trust=trust,
        blobs=blobs,
        blob_mounts=tuple([await _blob_mount(engine, blob) for blob in blobs]),
    )


def run_facts(plan: Plan, environment: str, digests: dict[str, Any], needs: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of the run's record that do not change while it goes on."""
    request, skill = plan.request, plan.skill
    return {
        "run_id": plan.run_id,
        "kind": request.kind,
        "principal": plan.principal.name,
        "project": plan.principal.project,
        "created_at": plan.created_at,
        "skill": skill.name if skill else None,
        "version": skill.version if skill else None,
        "environment": environment,
        "isolation": plan.offer.name,
        "limits": plan.limits.as_dict(),
        "digests": digests,
        "needs": needs,
        "idempotency_key": request.idempotency_key,
        "request_digest": request.digest() if request.idempotency_key else "",
    }


def _numbered(request: RunRequest) -> Iterable[tuple[int, str]]:
    return enumerate(request.input_blobs)


async def _target(engine: Engine, principal: Principal, request: RunRequest) -> Skill | None:
    if request.kind is not RunKind.SKILL or request.skill is None:
        return None
    skill = await find_skill(engine, principal, request.skill, request.version)
    if skill.kind is not SkillKind.ACTION or skill.runtime is None:
        rule = f"'{skill.name}' is an instruction skill: read it with describe_skill, it cannot be executed"
        raise NotExecutable("name", rule, skill=skill.name)
    if skill.runtime.language != "python":
        rule = f"'{skill.name}' is written in {skill.runtime.language}; only python runs here"
        raise UnsupportedLanguage("name", rule, supported=["python"])
    return skill


async def _input(engine: Engine, principal: Principal, blob_id: str, index: int) -> BlobInfo:
    return await owned_blob(engine.blobs, principal, blob_id, f"input_blobs[{index}]")


async def _blob_mount(engine: Engine, blob: BlobInfo) -> Mount:
    """Under both names of the reference: ``/blobs/blob:<id>`` and ``/blobs/<id>`` (§10, row 2)."""
    try:
        source = await engine.blobs.path(blob.blob_id)
    except BlobNotFound:  # expired since it was looked up
        raise BlobNotFound("input_blobs", f"no blob '{blob.blob_id}'", blob_id=blob.blob_id) from None
    bare = blob.blob_id.removeprefix("blob:")
    return Mount(source, f"/blobs/{blob.blob_id}", blob.sha256, aliases=(f"/blobs/{bare}",))


def _limits(family: LimitFamily, request: RunRequest, skill: Skill | None, trust: RunTrust) -> Limits:
    """The request's limits, the manifest's below them, the defaults below both."""
    declared = skill.needs.limits if skill else {}
    if not declared:
        return family.resolve(request.limits) if request.limits else family.defaults
    return family.resolve({**capped(declared, most(family, trust)), **request.limits})


def most(family: LimitFamily, trust: RunTrust) -> Limits:
    """That a manifest may have: the operator's maxima (skills-protocol §8), and what every run has without approval."""
    return family.defaults if trust.least else family.maxima


def capped(declared: Mapping[str, Any], maxima: Limits) -> dict[str, Any]:
    return {
        name: max(getattr(MINIMUM, name), min(value, getattr(maxima, name)))
        for name, value in declared.items()
        if hasattr(maxima, name)
    }


def _environment(request: RunRequest, skill: Skill | None, skills: Iterable[Skill]) -> str:
    """What the request names, else what the executed skill names, else what the mounted skills agree on."""
    if request.environment is not None:
        return request.environment
    if skill is not None and skill.runtime is not None and skill.runtime.environment != DEFAULT_ENVIRONMENT:
        return skill.runtime.environment
    wanted = {s.runtime.environment: s.name for s in skills if s.runtime is not None}
    wanted.pop(DEFAULT_ENVIRONMENT, None)
    if len(wanted) > 1:
        needs = ", ".join(f"'{name}' needs {environment}" for environment, name in sorted(wanted.items()))
        raise InvalidInput("environment", f"the mounted skills do not agree: {needs}; name one")
    return next(iter(wanted), DEFAULT_ENVIRONMENT)
