"""What a planned run may have: packages, network, secrets. Decided before a sandbox is made.

What is refused here is a failed run with a record of its own (skills-protocol §6 and §10): the request was
well formed, and what it asks for cannot be given or does not fit the skill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.frames import FrameLimits
from skillyard.domain.guest_request import BlobMount, GuestCall, SkillMount
from skillyard.domain.limits import Limits
from skillyard.domain.sandbox import EnvironmentRef, Mount, SandboxSpec
from skillyard.domain.skill import SecretNeed, Skill
from skillyard.engine.backends import Offer
from skillyard.engine.config import EngineConfig
from skillyard.engine.dependencies import missing
from skillyard.engine.environments import Environment, InstallFailed
from skillyard.engine.observer import SecretsGiven
from skillyard.engine.plan import Plan
from skillyard.engine.redact import NOTHING, Redaction
from skillyard.engine.refused import Refused

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Grant:
    """What the sandbox is made from and what the guest is told."""

    spec: SandboxSpec
    guest: Mapping[str, Any]
    digests: dict[str, Any]
    redaction: Redaction
    blob_prefix: str
    limits: FrameLimits


async def make_grant(engine: Engine, plan: Plan) -> Grant:
    """Raises Refused; InvalidInput for an environment that does not exist."""
    await _check_inputs(engine, plan)
    _check_network(plan.skill)
    environment = await _environment(engine, plan)
    _check_dependencies(plan.skills, environment)
    secrets = await _secrets(engine, plan)
    prefix = engine.ids.blob() + "-"
    limits = engine.frame_limits
    return Grant(
        spec=_spec(engine.config, plan, environment.ref),
        guest=_call(plan, prefix, secrets, limits).request(),
        digests=_digests(plan, environment.ref),
        redaction=Redaction(secrets.values()) if secrets else NOTHING,
        blob_prefix=prefix,
        limits=limits,
    )


async def _check_inputs(engine: Engine, plan: Plan) -> None:
    skill, request = plan.skill, plan.request
    if skill is None or skill.inputs_schema is None:
        return
    complaint = await engine.schemas.complaint(
        (skill.digest, "in"), skill.inputs_schema, request.args, "args", len(request.args_json)
    )
    if complaint:
        raise Refused("ValidationError", complaint)


def _check_network(skill: Skill | None) -> None:
    if skill is not None and skill.needs.network:
        hosts = ", ".join(skill.needs.network)
        raise Refused("PolicyRefused", f"'{skill.name}' needs the network ({hosts}), and this server gives none")


async def _environment(engine: Engine, plan: Plan) -> Environment:
    try:
        return await engine.environments.get(plan.environment)
    except InstallFailed as error:
        raise Refused("SandboxError", error.message) from error


def _check_dependencies(skills: Iterable[Skill], environment: Environment) -> None:
    for skill in skills:
        lacking = missing(skill.needs.dependencies, environment.distributions)
        if lacking:
            raise Refused(
                "PolicyRefused",
                f"'{skill.name}' needs packages that the environment '{environment.ref.name}' does not have: "
                + ", ".join(lacking),
            )


async def _secrets(engine: Engine, plan: Plan) -> dict[str, str]:
    """Values of the declared secrets, by name: of the executed skill only, and for code by policy."""
    needs = _declared(plan, engine.config.run_code_secrets == "mounted")
    if not needs:
        return {}
    try:
        values = {need.name: await engine.secrets.get(need.name) for need in needs}
    except SkillyardError as error:
        raise Refused("MissingSecret", f"the secret store cannot be read: {error.message}") from error
    absent = [need.name for need in needs if values[need.name] is None and not need.optional]
    if absent:
        names = ", ".join(absent)
        raise Refused("MissingSecret", f"not in the secret store: {names} (skillyard secret set NAME)")
    given = {name: value for name, value in values.items() if value is not None}
    if given:
        skill = plan.skill.name if plan.skill else None
        engine.emit(SecretsGiven(plan.run_id, plan.principal.name, skill, tuple(sorted(given))))
    return given


def _declared(plan: Plan, code_may: bool) -> list[SecretNeed]:
    if plan.skill is not None:
        return list(plan.skill.needs.secrets)
    if not code_may:
        return []
    merged: dict[str, SecretNeed] = {}
    for need in (need for skill in plan.skills for need in skill.needs.secrets):
        known = merged.get(need.name)
        merged[need.name] = need if known is None or known.optional else known
    return list(merged.values())


def make_spec(
    offer: Offer,
    limits: Limits,
    environment: EnvironmentRef,
    mounts: tuple[Mount, ...] = (),
    group: str = "",
    tenant: str = "",
) -> SandboxSpec:
    """A sandbox for one program under the operator's policy."""
    return SandboxSpec(
        limits=limits,
        environment=environment,
        mounts=mounts,
        group=group,
        tenant=tenant,
        single=True,
        kernel_only=offer.demand.kernel_only,
        allow_degraded=offer.demand.allow_degraded,
    )


def _spec(config: EngineConfig, plan: Plan, environment: EnvironmentRef) -> SandboxSpec:
    mounts = (*map(_skill_mount, plan.skills), *plan.blob_mounts) if plan.skills or plan.blobs else ()
    group = plan.principal.name if config.separate_principals else ""
    return make_spec(plan.offer, plan.limits, environment, mounts, group, plan.principal.name)


def _skill_mount(skill: Skill) -> Mount:
    return Mount(skill.root, f"/skills/{skill.name}", skill.digest)


def _call(plan: Plan, prefix: str, secrets: Mapping[str, str], limits: FrameLimits) -> GuestCall:
    request, skill = plan.request, plan.skill
    entrypoint = skill.runtime.export if skill and skill.runtime else request.entrypoint
    return GuestCall(
        blob_prefix=prefix,
        entrypoint=entrypoint or "main",
        code=request.code,
        skill=skill.import_name if skill else None,
        args=request.args,
        skills={s.import_name: _importable(s) for s in plan.skills},
        blobs={b.blob_id: BlobMount(b.kind, b.size) for b in plan.blobs},
        env=secrets,
        limits=limits,
    )


def _importable(skill: Skill) -> SkillMount:
    return SkillMount(f"/skills/{skill.name}", skill.runtime.entrypoint if skill.runtime else None)


def _digests(plan: Plan, environment: EnvironmentRef) -> dict[str, Any]:
    """What makes the run repeatable."""
    request = plan.request
    digests: dict[str, Any] = {"args": _sha256(request.args_json), "environment": environment.digest}
    if request.code is not None:
        digests["code"] = _sha256(request.code)
    if plan.skills:
        digests["skills"] = {skill.name: skill.digest for skill in plan.skills}
    if plan.skill is not None:
        digests["skill"] = plan.skill.digest
    if plan.blobs:
        digests["blobs"] = {blob.blob_id: blob.sha256 for blob in plan.blobs}
    return digests


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
