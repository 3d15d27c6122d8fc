"""Which environment a caller means: by name, by digest, by a skill, or by packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.config.packages import PackagesSettings
from skillyard.domain.errors import EnvironmentNotFound, Forbidden, InvalidInput, shown
from skillyard.domain.package.environment import DEFAULT_ENVIRONMENT, SHOWN, BuiltEnvironment, Wanted
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.requirement import is_requirement
from skillyard.engine.backends import Backends
from skillyard.engine.packages.asked import Asked, required_name, union, why_refused
from skillyard.engine.packages.environment import wanted_on
from skillyard.engine.packages.environments import UNNAMED, Environments
from skillyard.engine.skills.service import SkillService
from skillyard.engine.skills.standings import packages_allowed
from skillyard.ports.blobs import BlobStore
from skillyard.values import dataclass

_WAYS = ("environment", "skill", "packages")


@dataclass(frozen=True, slots=True)
class PackageService:
    """Environments, and who may have which packages. Archives of wheels are kept as ``blobs``, for ``blob_ttl_s``."""

    environments: Environments
    backends: Backends
    skills: SkillService
    config: PackagesSettings
    blobs: BlobStore
    blob_ttl_s: float | None

    async def usual(self, wanted: Wanted, name: str = UNNAMED) -> Wanted:
        """Returns the requirements for sandboxes of the default isolation. Raises InvalidInput, SandboxFault."""
        offer = self.backends.default
        return wanted if offer is None or offer.refusal is not None else await wanted_on(wanted, offer, name)


@dataclass(frozen=True, slots=True)
class Target:
    """One environment as a caller sees it.

    ``built`` is given for a digest; otherwise ``wanted`` holds its requirements. ``refusal`` says why the caller may
    not have it built.
    """

    label: str
    wanted: Wanted | None = None
    built: BuiltEnvironment | None = None
    refusal: str = ""

    def require(self) -> Wanted:
        """Returns what can be built. Raises Forbidden, InvalidInput."""
        if self.refusal:
            raise Forbidden(self.refusal)
        if self.wanted is None:
            raise InvalidInput("environment", "is a digest: name the environment, the skill or the packages to build")
        return self.wanted


async def find_target(packages: PackageService, principal: Principal, params: Mapping[str, Any]) -> Target:
    """Raises InvalidInput, EnvironmentNotFound, SkillNotFound."""
    given = [way for way in _WAYS if params.get(way)]
    if len(given) != 1:
        raise InvalidInput("environment", f"exactly one of {', '.join(_WAYS)} is needed")
    if given == ["environment"]:
        return await _named(packages, params["environment"])
    if given == ["skill"]:
        return await _of_skill(packages, principal, params["skill"], params.get("version"))
    return await _of_packages(packages, principal, params["packages"])


async def _named(packages: PackageService, name: str) -> Target:
    environments = packages.environments
    if name in environments.names:
        return Target(name, await packages.usual(environments.wanted(name), name))
    built = await environments.store.find(name) or await _beginning(packages, name)
    if built is None:
        known = ", ".join(environments.names)
        raise EnvironmentNotFound(
            "environment", f"no environment has this name or digest; known are {known}", shown(name)
        )
    return Target(built.digest, built=built)


async def _beginning(packages: PackageService, digest: str) -> BuiltEnvironment | None:
    """The only one whose digest begins so, as lists and records show it."""
    if len(digest) < SHOWN:
        return None
    found = [built for built in await packages.environments.store.list() if built.digest.startswith(digest)]
    return found[0] if len(found) == 1 else None


async def _of_skill(packages: PackageService, principal: Principal, name: str, version: str | None) -> Target:
    """Returns what a run of the skill alone would get."""
    skill = await packages.skills.find(principal, name, version, field="skill")
    named = skill.runtime.environment if skill.runtime is not None else DEFAULT_ENVIRONMENT
    asked = (Asked(skill.needs.dependencies, skill),) if skill.needs.dependencies else ()
    wanted = await packages.usual(union(packages.environments.definition(named), asked), UNNAMED if asked else named)
    standing = await packages.skills.standings.standing_of(skill)
    names = [required_name(text) for text in skill.needs.dependencies]
    denied = sorted(set(names) - set(packages_allowed(standing, names, packages.config)))
    refusal = f"'{skill.name}' may not have {', '.join(denied)}: packages.allow, packages.run_code" if denied else ""
    return Target(f"{skill.name}@{skill.version}", wanted, refusal=refusal)


async def _of_packages(service: PackageService, principal: Principal, packages: list[str]) -> Target:
    """Returns what code that asks for them would get."""
    for index, text in enumerate(packages):
        if not is_requirement(text):
            rule = "must be a requirement such as 'numpy>=2,<3'; no URLs, paths or options"
            raise InvalidInput(f"packages[{index}]", rule, shown(text))
    wanted = await service.usual(Wanted.of(packages))
    return Target("packages", wanted, refusal=_why_not(service, principal, wanted))


def _why_not(packages: PackageService, principal: Principal, wanted: Wanted) -> str:
    if Scope.ADMIN in principal.scopes:
        return ""
    if Scope.RUN_CODE not in principal.scopes:
        return "packages are for code, and this token lacks the scope 'run_code'"
    return why_refused(wanted.requirements, packages.config)
