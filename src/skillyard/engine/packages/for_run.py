"""The packages that a planned run gets: those of its named environment, and what its skills and its code ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from skillyard.domain.package.environment import SHOWN, Wanted
from skillyard.domain.package.names import denies
from skillyard.domain.skill.manifest_needs import is_requirement
from skillyard.engine.packages.asked import required_name, why_refused
from skillyard.engine.packages.environment import BuildFailed, Environment
from skillyard.engine.packages.wants import Asked, asked_by, union
from skillyard.engine.runs.plan import Plan
from skillyard.engine.runs.refused import Refused
from skillyard.engine.secrets.for_run import check_secrets
from skillyard.engine.skills.needs import packages_allowed, trust_of

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


async def run_environment(engine: Engine, plan: Plan) -> Environment:
    """Built first when it has to be, which the run's timeout does not count.

    Raises Refused; InvalidInput for an environment that does not exist.
    """
    environments, asked = engine.environments, asked_by(plan)
    try:
        ready = await environments.meeting(plan.environment, asked)
        if ready is not None:  # what a named environment has anyway needs nobody's leave
            return ready
        own = environments.wanted(plan.environment)
        if not asked:
            await _check_secrets(engine, plan, own)
            environment = await environments.get(plan.environment, plan.principal.name)
            await _check_trust(engine, plan)
            return environment
        check_packages(engine, plan, asked)
        wanted = union(environments.definition(plan.environment), asked)
        await _check_secrets(engine, plan, wanted)
        environment = await environments.of(wanted, plan.principal.name)
        anyway = await environments.ready(own) if own else None
        check_drawn_in(
            engine, plan, asked, set(environment.distributions) - set(anyway.distributions if anyway else ())
        )
        await _check_trust(engine, plan)
        await _check_lock(engine, plan, asked, wanted, environment)
        return environment
    except BuildFailed as error:
        more = f" (whole log: {error.log})" if error.log else ""
        raise Refused("SandboxError", error.message + more) from error


async def _check_secrets(engine: Engine, plan: Plan, wanted: Wanted) -> None:
    """Nobody waits for a build to be told that a secret is missing. Raises Refused."""
    if wanted and await engine.environments.ready(wanted) is None:
        await check_secrets(engine, plan)


def check_drawn_in(engine: Engine, plan: Plan, asked: Sequence[Asked], names: Iterable[str]) -> None:
    """What is denied by name is so for what other packages require, too. Raises Refused."""
    config = engine.config.packages
    approved = all(who.skill is not None and plan.trust.standings[who.skill.name].approved for who in asked)
    for setting, patterns in (("allow", config.allow), ("run_code", () if approved else config.run_code)):
        if denied := sorted(name for name in names if denies(patterns, name)):
            shown = ", ".join(f"'{name}'" for name in denied)
            raise Refused("PolicyRefused", f"what is asked for requires {shown}, which packages.{setting} denies")


async def _check_trust(engine: Engine, plan: Plan) -> None:
    """A build takes minutes: what was revoked meanwhile is revoked. Raises Refused."""
    if plan.trust.least:
        return
    trust = await trust_of(engine, plan.skills)
    if trust.least:
        raise Refused("PolicyRefused", f"while packages were built an approval was revoked: {trust.least}")


async def _check_lock(
    engine: Engine, plan: Plan, asked: Sequence[Asked], wanted: Wanted, environment: Environment
) -> None:
    """Refuses a run whose approved requirements now resolve to other packages. An operator approved the packages of one
    lock, not the text of the requirements. Raises Refused."""
    for skill in (who.skill for who in asked):
        if skill is None or plan.trust.standings[skill.name].by != "operator":
            continue
        bound = await engine.approvals.bind(skill.name, skill.version, skill.digest, wanted.digest, environment.digest)
        if bound != environment.digest:
            rule = f"'{skill.name}' {skill.version} was approved with other packages for the same requirements"
            locks = f"lock {bound[:SHOWN]}, now {environment.digest[:SHOWN]}" if bound else "it is not any more"
            mend = f"`skillyard skill approve {skill.name}@{skill.version}`"
            raise Refused("PolicyRefused", f"{rule} ({locks}): look at them, then {mend}")


def check_packages(engine: Engine, plan: Plan, asked: Sequence[Asked]) -> None:
    """Whether everybody may have what they ask for. Raises Refused."""
    config = engine.config.packages
    for who in asked:
        if odd := [text for text in who.requirements if not is_requirement(text)]:
            raise Refused("PolicyRefused", f"{who} asks for packages by what is no requirement: {odd[0][:100]!r}")
        if who.skill is None:
            if why := why_refused(who.requirements, config):
                raise Refused("PolicyRefused", why)
            continue
        standing = plan.trust.standings[who.skill.name]
        names = [required_name(text) for text in who.requirements]
        denied = sorted(set(names) - set(packages_allowed(standing, names, config)))
        if denied:
            shown = ", ".join(f"'{name}'" for name in denied)
            setting = "packages.allow" if standing.approved else "packages.run_code"
            lacks = "" if standing.approved else f", and {plan.trust.least}"
            raise Refused("PolicyRefused", f"{who} asks for the packages {shown}: {setting} admits none of them{lacks}")
