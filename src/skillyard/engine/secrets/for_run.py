"""The secrets that a planned run is given: found, scoped, bound to hosts, written into the audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skillyard.domain.errors import SkillyardError
from skillyard.domain.network.rule import Rule
from skillyard.domain.secret import Delivery, Secret, SecretAct, SecretEvent, bound_hosts
from skillyard.domain.skill.skill import SecretNeed
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.plan import Plan

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


LEAST_AT_GATE = 8
"""Characters of a value that the gate can tell from other text in answers."""


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """``delivery`` is what holds: GATE when the store or the manifest says so, and then ``hosts`` are not empty: names,
    each with its ports. ``version`` says where the value came from and which it is, such as ``store:3``."""

    name: str
    value: str = field(repr=False)
    delivery: Delivery
    hosts: tuple[Rule, ...]
    version: str


@dataclass(frozen=True, slots=True)
class _Want:
    """A need, and the skill that declares it."""

    skill: str
    need: SecretNeed


async def secrets_for_run(engine: Engine, plan: Plan) -> tuple[GivenSecret, ...]:
    """Those of the executed skill only, and for code by policy, in the order of their declaration. Their use is in the
    audit when this returns.

    Raises Refused: ``MissingSecret`` for what is not there for this project and skill, or cannot be read or audited,
    ``PolicyRefused`` for a gate secret that no host is bound to, for skills that mean different values by one name,
    and for one that must be there where not every skill is approved; an optional one is then absent.
    """
    wants = _wants(plan, engine.config.policy.run_code_secrets == "mounted")
    if not wants:
        return ()
    if plan.trust.least:
        return await _none(engine, plan, wants)
    found = [(want, await _find(engine, plan, want)) for want in wants]
    await _check_absent(engine, plan, [want for want, secret in found if secret is None])
    there = [(want, secret) for want, secret in found if secret is not None]
    given = [_given(name, there) for name in dict.fromkeys(want.need.name for want, _ in there)]
    effective = {secret.name: secret.delivery for secret in given}
    await _note(
        engine,
        [_event(engine, plan, want, SecretAct.USED, secret, effective[secret.name]) for want, secret in there],
    )
    return tuple(given)


async def check_secrets(engine: Engine, plan: Plan) -> None:
    """Whether those that must be there are there, ahead of :func:`secrets_for_run`. Only a refusal is written into the
    audit, and no value is kept. Raises Refused as that does."""
    wants = [
        want for want in _wants(plan, engine.config.policy.run_code_secrets == "mounted") if not want.need.optional
    ]
    if wants and plan.trust.least:
        await _none(engine, plan, wants)
    await _check_absent(engine, plan, [want for want in wants if await _find(engine, plan, want) is None])


async def _check_absent(engine: Engine, plan: Plan, wants: Sequence[_Want]) -> None:
    """Raises Refused for those that must be there."""
    absent = [want for want in wants if not want.need.optional]
    if absent:
        await _note(engine, [_event(engine, plan, want, SecretAct.DENIED) for want in absent])
        raise Refused("MissingSecret", _missing(plan, absent))


def secret_versions(given: Iterable[GivenSecret]) -> dict[str, str]:
    """For the run's ``digests``: name to version, never a value."""
    return {secret.name: secret.version for secret in given}


def _wants(plan: Plan, code_may: bool) -> list[_Want]:
    if plan.skill is not None:
        return [_Want(plan.skill.name, need) for need in plan.skill.needs.secrets]
    if not code_may:
        return []
    return [_Want(skill.name, need) for skill in plan.skills for need in skill.needs.secrets]


async def _none(engine: Engine, plan: Plan, wants: Sequence[_Want]) -> tuple[GivenSecret, ...]:
    """Of a run that gets the least policy. No store is asked."""
    reason = plan.trust.least[:500]
    await _note(engine, [_event(engine, plan, want, SecretAct.DENIED, reason=reason) for want in wants])
    needed = [want for want in wants if not want.need.optional]
    if needed:
        names = ", ".join(dict.fromkeys(want.need.name for want in needed))
        raise Refused("PolicyRefused", f"'{needed[0].skill}' needs the secret {names}, and {plan.trust.least}")
    return ()


async def _find(engine: Engine, plan: Plan, want: _Want) -> Secret | None:
    try:
        return await engine.secret_book.find(want.need.name, plan.principal.project, want.skill)
    except SkillyardError as error:
        message = f"the secret '{want.need.name}' cannot be read: {error.message}"
        await _note(engine, [_event(engine, plan, want, SecretAct.DENIED, reason=error.message[:500])])
        raise Refused("MissingSecret", message) from error


def _missing(plan: Plan, absent: Sequence[_Want]) -> str:
    names = ", ".join(dict.fromkeys(want.need.name for want in absent))
    whom = f"project '{plan.principal.project}' and skill '{absent[0].skill}'"
    return f"not in the secret store for {whom}: {names} (skillyard secret set NAME)"


def _given(name: str, there: Sequence[tuple[_Want, Secret]]) -> GivenSecret:
    """What all that declare ``name`` get together. The operator's choice goes before the manifests', and of these the
    narrower one."""
    mine = [(want.need, secret) for want, secret in there if want.need.name == name]
    first = mine[0][1]
    if any((secret.version, secret.scope) != (first.version, first.scope) for _, secret in mine):
        raise Refused("PolicyRefused", f"the mounted skills mean different secrets by '{name}'")
    gated = first.delivery is Delivery.GATE or any(need.delivery is Delivery.GATE for need, _ in mine)
    if not gated:
        return GivenSecret(name, first.value, Delivery.ENV, (), first.version)
    hosts = bound_hosts(first.hosts or dict.fromkeys(host for need, _ in mine for host in need.hosts))
    if not hosts:
        mend = f"skillyard secret bind {name} --delivery gate --host HOST"
        raise Refused(
            "PolicyRefused", f"the secret '{name}' is delivered at the gate, and no host is bound to it: {mend}"
        )
    if len(first.value) < LEAST_AT_GATE:
        rule = f"is shorter than {LEAST_AT_GATE} characters: the gate could not tell it from other text in answers"
        raise Refused("PolicyRefused", f"the secret '{name}' is delivered at the gate and {rule}")
    return GivenSecret(name, first.value, Delivery.GATE, hosts, first.version)


async def _note(engine: Engine, events: Sequence[SecretEvent]) -> None:
    try:
        await engine.secret_book.audit.record(events)
    except SkillyardError as error:
        message = f"the use of secrets cannot be written down: {error.message}"
        raise Refused("MissingSecret", message) from error


def _event(
    engine: Engine,
    plan: Plan,
    want: _Want,
    act: SecretAct,
    secret: Secret | None = None,
    delivery: Delivery | None = None,
    reason: str = "",
) -> SecretEvent:
    return SecretEvent(
        at=engine.clock.now(),
        act=act,
        name=want.need.name,
        principal=plan.principal.name,
        project=plan.principal.project,
        skill=want.skill,
        run_id=plan.run_id,
        scope=str(secret.scope) if secret else "",
        version=secret.version if secret else "",
        delivery=delivery.value if delivery else "",
        reason=reason,
    )
