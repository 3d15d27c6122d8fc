"""The secrets that a planned run is given: found, scoped, bound to hosts, written into the audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skillyard.domain.egress.rule import Rule
from skillyard.domain.errors import SkillyardError
from skillyard.domain.secret import Delivery, bound_hosts
from skillyard.domain.skill import SecretNeed
from skillyard.engine.plan import Plan
from skillyard.engine.refused import Refused

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """``delivery`` is what holds: GATE when the store or the manifest says so, and then ``hosts`` are not empty: names,
    each with its ports. ``version`` says where the value came from and which it is, such as ``store:3``."""

    name: str
    value: str = field(repr=False)
    delivery: Delivery
    hosts: tuple[Rule, ...]
    version: str


async def secrets_for_run(engine: Engine, plan: Plan) -> tuple[GivenSecret, ...]:
    """Those of the executed skill only, and for code by policy, in the order of their declaration.

    Raises Refused: ``MissingSecret`` for what is not there for this project and skill, or cannot be read,
    ``PolicyRefused`` for a gate secret that no host is bound to.
    """
    needs = _declared(plan, engine.config.run_code_secrets == "mounted")
    if not needs:
        return ()
    try:
        values = {need.name: await engine.secrets.get(need.name) for need in needs}
    except SkillyardError as error:
        raise Refused("MissingSecret", f"the secret store cannot be read: {error.message}") from error
    absent = [need.name for need in needs if values[need.name] is None and not need.optional]
    if absent:
        names = ", ".join(absent)
        raise Refused("MissingSecret", f"not in the secret store: {names} (skillyard secret set NAME)")
    return tuple(_given(need, value) for need in needs if (value := values[need.name]) is not None)


def secret_versions(given: Iterable[GivenSecret]) -> dict[str, str]:
    """For the run's ``digests``: name to version, never a value."""
    return {secret.name: secret.version for secret in given}


def _given(need: SecretNeed, value: str) -> GivenSecret:
    hosts = bound_hosts(need.hosts)
    if need.delivery is Delivery.GATE and not hosts:
        raise Refused("PolicyRefused", f"the secret '{need.name}' is delivered at the gate, and no host is bound to it")
    return GivenSecret(need.name, value, need.delivery, hosts, "store:1")


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
