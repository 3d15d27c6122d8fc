"""The packages that a planned run gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from skillyard.domain.skill import Skill
from skillyard.engine.dependencies import missing
from skillyard.engine.environments import Environment, InstallFailed
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
    return environment


def _check_dependencies(skills: Iterable[Skill], environment: Environment) -> None:
    for skill in skills:
        lacking = missing(skill.needs.dependencies, environment.distributions)
        if lacking:
            raise Refused(
                "PolicyRefused",
                f"'{skill.name}' needs packages that the environment '{environment.ref.name}' does not have: "
                + ", ".join(lacking),
            )
