"""What a planned run may have: packages, network, secrets. Decided before a sandbox is made.

What is refused here is a failed run with a record of its own (skills-protocol §6 and §10): the request was
well formed, and what it asks for cannot be given or does not fit the skill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from skillyard.config.sections import Sections
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import EgressPlan, GateSecret
from skillyard.domain.package.environment import SHOWN
from skillyard.domain.sandbox.frames import FrameLimits
from skillyard.domain.sandbox.guest_request import BlobMount, GuestCall, SkillMount
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, SandboxSpec
from skillyard.domain.secret.secret import Delivery
from skillyard.domain.skill.skill import Skill
from skillyard.domain.work.limits import Limits
from skillyard.engine.backends import Offer
from skillyard.engine.network.grant import check_offer, granted, layers_of
from skillyard.engine.network.run_network import NetworkGrant
from skillyard.engine.observer import SecretsGiven
from skillyard.engine.packages.ahead import Wish, consented
from skillyard.engine.packages.environment import Environment
from skillyard.engine.packages.for_run import run_environment
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.plan import Plan
from skillyard.engine.secrets.for_run import GivenSecret, secret_versions, secrets_for_run
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.skills.run_needs import Given, run_needs
from skillyard.engine.skills.schemas import complaint

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

PLACEHOLDER = "skillyard-secret-"
"""What stands in a sandbox for a secret that stays at the gate begins so; 32 hexadecimal digits follow."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What the sandbox is made from and what the guest is told."""

    spec: SandboxSpec
    environment: str
    guest: Mapping[str, Any]
    collect: Mapping[str, Any]
    digests: dict[str, Any]
    redaction: Redaction
    blob_prefix: str
    limits: FrameLimits
    network: NetworkGrant | None = None
    needs: dict[str, Any] | None = None
    wish: Wish | None = None


async def make_grant(engine: Engine, plan: Plan) -> Grant:
    """Raises Refused; InvalidInput for an environment that does not exist."""
    await _check_inputs(engine, plan)
    policy = _network(engine, plan)
    environment = await run_environment(engine, plan)
    ref, wish = _ahead(engine, plan, environment)
    given = await secrets_for_run(engine, plan)
    _tell(engine, plan, given)
    env, gated = _delivered(given)
    prefix = engine.ids.blob() + "-"
    limits = engine.frame_limits
    call = _call(plan, prefix, env, limits)
    return Grant(
        spec=_spec(engine.config, plan, ref),
        environment=_named(engine, plan, environment),
        guest=call.request(),
        collect=call.collect(),
        digests=_digests(plan, environment.ref, policy, given),
        redaction=Redaction(secret.value for secret in given) if given else NOTHING,
        blob_prefix=prefix,
        limits=limits,
        network=_network_grant(engine, policy, given, gated),
        needs=run_needs(engine.config, plan, Given(policy, given, environment.distributions)),
        wish=wish,
    )


def _named(engine: Engine, plan: Plan, environment: Environment) -> str:
    """For the record: the operator's name, and the beginning of a digest when others asked for more packages."""
    if environment.built is None or engine.environments.is_named(environment):
        return plan.environment
    return f"{plan.environment}+{environment.digest[:SHOWN]}"


def _ahead(engine: Engine, plan: Plan, environment: Environment) -> tuple[EnvironmentRef, Wish | None]:
    """The environment with what is imported ahead, where that may be."""
    named = environment.built is None or engine.environments.is_named(environment)
    modules = consented(plan, environment, engine.environments.definition(plan.environment), named=named)
    return engine.ahead.chosen(plan.offer.backend, environment.ref, modules, _group(engine.config, plan))


async def _check_inputs(engine: Engine, plan: Plan) -> None:
    skill, request = plan.skill, plan.request
    if skill is None or skill.inputs_schema is None:
        return
    key, given = f"{skill.digest} in", request.args_json.encode()
    verdict = await engine.schemas.check(plan.principal.name, key, skill.inputs_schema, given)
    if wrong := complaint(verdict, "args"):
        raise Refused("ValidationError", wrong)


def _network(engine: Engine, plan: Plan) -> Policy | None:
    """None for no network. Raises Refused."""
    policy = granted(engine.config.network, plan.skill, plan.skills, plan.request.network, plan.trust.least)
    if policy is not None:
        check_offer(plan.offer, engine.gate is not None, policy)
    return policy


def _network_grant(
    engine: Engine, policy: Policy | None, given: Sequence[GivenSecret], gated: tuple[GateSecret, ...]
) -> NetworkGrant | None:
    """Host names that foreign code tries are in lower case, so secrets are looked for in that too."""
    if policy is None or engine.gate is None:
        return None
    values = {value for secret in given for value in (secret.value, secret.value.lower())}
    plan = EgressPlan(policy, engine.config.network.limits.egress, gated)
    return NetworkGrant(engine.gate, plan, Redaction(values) if values else NOTHING)


def _tell(engine: Engine, plan: Plan, given: Sequence[GivenSecret]) -> None:
    if given:
        skill = plan.skill.name if plan.skill else None
        engine.emit(SecretsGiven(plan.run_id, plan.principal.name, skill, tuple(sorted(s.name for s in given))))


def _delivered(given: Iterable[GivenSecret]) -> tuple[dict[str, str], tuple[GateSecret, ...]]:
    """What stands in the sandbox's environment, and what stays at the gate."""
    env: dict[str, str] = {}
    gated = []
    for secret in given:
        env[secret.name] = secret.value
        if secret.delivery is Delivery.GATE:
            env[secret.name] = placeholder = PLACEHOLDER + token_hex(16)
            gated.append(GateSecret(secret.name, placeholder, secret.value, secret.hosts))
    return env, tuple(gated)


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


def _spec(config: Sections, plan: Plan, environment: EnvironmentRef) -> SandboxSpec:
    mounts = (*map(_skill_mount, plan.skills), *plan.blob_mounts) if plan.skills or plan.blobs else ()
    group = _group(config, plan)
    return make_spec(plan.offer, plan.limits, environment, mounts, group, plan.principal.name)


def _group(config: Sections, plan: Plan) -> str:
    return plan.principal.name if config.policy.separate_principals else ""


def _skill_mount(skill: Skill) -> Mount:
    return Mount(skill.root, f"/skills/{skill.name}", skill.digest)


def _call(plan: Plan, prefix: str, secrets: Mapping[str, str], limits: FrameLimits) -> GuestCall:
    request, skill = plan.request, plan.skill
    entrypoint = skill.runtime.export if skill and skill.runtime else request.entrypoint
    return GuestCall(
        blob_prefix=prefix,
        entrypoint=entrypoint,
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


def _digests(
    plan: Plan, environment: EnvironmentRef, policy: Policy | None, given: Sequence[GivenSecret]
) -> dict[str, Any]:
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
    if policy is not None:
        digests["network"] = _sha256(json.dumps(layers_of(policy)))
    if given:
        digests["secrets"] = secret_versions(given)
    return digests


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
