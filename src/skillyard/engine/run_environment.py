"""The packages that a planned run gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from skillyard.domain.skill import Skill
from skillyard.engine.asked_packages import why_refused
from skillyard.engine.dependencies import missing
from skillyard.engine.environments import Environment, InstallFailed
from skillyard.engine.packages_config import PackagesConfig
from skillyard.engine.plan import Plan
from skillyard.engine.refused import Refused

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


async def run_environment(engine: Engine, plan: Plan) -> Environment:
    """Raises Refused; InvalidInput for an environment that does not exist."""
    try:
        environment = await engine.environments.get(plan.environment)
    except InstallFailed as error:
        raise Refused("SandboxError", error.message) from error
    _check_dependencies(plan.skills, environment)
    _check_packages(plan.request.packages, environment, engine.config.packages)
    return environment


def _check_packages(packages: Iterable[str], environment: Environment, config: PackagesConfig) -> None:
    """What the environment has anyway needs nobody's leave."""
    lacking = missing(packages, environment.distributions)
    if not lacking:
        return
    if why := why_refused(lacking, config):
        raise Refused("PolicyRefused", why)
    raise Refused(
        "PolicyRefused", f"the environment '{environment.ref.name}' does not have what the code asks for: {lacking}"
    )


def _check_dependencies(skills: Iterable[Skill], environment: Environment) -> None:
    for skill in skills:
        lacking = missing(skill.needs.dependencies, environment.distributions)
        if lacking:
            raise Refused(
                "PolicyRefused",
                f"'{skill.name}' needs packages that the environment '{environment.ref.name}' does not have: "
                + ", ".join(lacking),
            )
