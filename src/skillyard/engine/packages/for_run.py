"""The packages that a planned run gets.

They are those of its named environment, and those that its skills and its code ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from skillyard.config.packages import PackagesSettings
from skillyard.domain.package.environment import DEFAULT_ENVIRONMENT, SHOWN, Pin, Wanted, agreed, parse_lock
from skillyard.domain.package.names import denies
from skillyard.domain.skill.requirement import Requirement, is_requirement
from skillyard.domain.skill.skill import Skill
from skillyard.domain.skill.trust import ApprovedPackages
from skillyard.engine.packages.asked import Asked, required_name, union, why_refused
from skillyard.engine.packages.environment import BuildFailed, Environment, wanted_on
from skillyard.engine.packages.environments import UNNAMED, Environments
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.plan import Plan
from skillyard.engine.secrets.service import RunSecrets
from skillyard.engine.skills.standings import Standings, packages_allowed

ANEW = (
    "resolve such a skill's packages anew (`skillyard environment build NAME --skill --refresh`) and approve it again"
)


class RunPackages:
    """Finds or builds the environment of a planned run."""

    def __init__(
        self, environments: Environments, standings: Standings, secrets: RunSecrets, config: PackagesSettings
    ) -> None:
        self._environments = environments
        self._standings = standings
        self._secrets = secrets
        self._config = config

    async def give(self, plan: Plan) -> Environment:
        """Built first when it has to be, which the run's timeout does not count.

        Raises Refused; InvalidInput for an environment that does not exist.
        """
        environments, asked = self._environments, _asked_by(plan)
        if not asked and (bare := environments.bare(plan.environment)) is not None:
            return bare
        try:
            own = await _there(plan, plan.environment, environments.wanted(plan.environment))
            ready = await environments.meeting(plan.environment, own, asked)
            if ready is not None:  # what a named environment has anyway needs nobody's leave
                return ready
            if not asked:
                await self._check_secrets(plan, own)
                environment = await environments.of(own, plan.principal.name, name=plan.environment)
                await self._check_trust(plan)
                return environment
            self._check_packages(plan, asked)
            both = union(environments.definition(plan.environment), asked)
            wanted = await self._held(plan, asked, await _there(plan, UNNAMED, both))
            await self._check_secrets(plan, wanted)
            environment = await self._built(plan, wanted)
            anyway = await environments.ready(own) if own else None
            self._check_drawn_in(
                plan, asked, set(environment.distributions) - set(anyway.distributions if anyway else ())
            )
            await self._check_trust(plan)
            for skill in _operators(plan, asked):
                await self._check_lock(skill, wanted, environment.digest)
            return environment
        except BuildFailed as error:
            more = f" (whole log: {error.log})" if error.log else ""
            raise Refused("SandboxError", error.message + more) from error

    async def _held(self, plan: Plan, asked: Sequence[Asked], wanted: Wanted) -> Wanted:
        """Returns the requirements, held to the packages that operators' approvals are of.

        An approved skill gets the packages that it gets alone, in every environment and beside all other requirements.
        Raises Refused, BuildFailed.
        """
        mounted = {skill.name: skill for skill in plan.skills}
        skills = _operators(plan, asked)
        required = {skill.name: _required(skill, mounted) for skill in skills}
        bound: dict[str, tuple[Skill, ApprovedPackages]] = {}
        for skill in sorted(skills, key=lambda skill: (len(required[skill.name]), skill.name)):
            others = [bound[name] for name in bound if name in required[skill.name]]
            alone = replace(wanted, held=_joined(others))
            bound[skill.name] = skill, await self._approved_packages(plan, skill, alone)
        if all(packages.wanted == wanted.digest for _, packages in bound.values()):
            return wanted
        return replace(wanted, held=_joined(bound.values()))

    async def _approved_packages(self, plan: Plan, skill: Skill, alone: Wanted) -> ApprovedPackages:
        """Returns the packages of an approval, and resolves them first where none are bound to it.

        They are those of the skill alone, in its own environment; otherwise a caller would choose them for everybody by
        other requirements. ``alone`` has the platform, and holds those of the skills that it requires, without which it
        never runs.
        """
        approvals, environments = self._standings.approvals, self._environments
        packages = await approvals.packages(skill.name, skill.version, skill.digest)
        if packages is not None:
            return packages
        named = skill.runtime.environment if skill.runtime is not None else DEFAULT_ENVIRONMENT
        if named not in environments.names:
            named = DEFAULT_ENVIRONMENT
        own = union(environments.definition(named), [Asked(skill.needs.dependencies, skill)])
        own = replace(alone, requirements=own.requirements)
        stored = await environments.lock(own)
        if stored is None:
            await self._check_secrets(plan, own)
            built = (await self._built(plan, own)).built
            assert built is not None, "it has requirements"
            lock = built.lock
        else:
            lock = stored.lock
        await self._check_trust(plan)
        await self._check_lock(skill, own, lock.digest)
        packages = ApprovedPackages(own.digest, lock.text)
        packages = await approvals.bind_packages(skill.name, skill.version, skill.digest, packages)
        if packages is None:
            raise Refused("PolicyRefused", f"'{skill.name}' {skill.version} is not approved any more")
        return packages

    async def _built(self, plan: Plan, wanted: Wanted) -> Environment:
        """Returns the environment, built first when it has to be. Raises BuildFailed."""
        try:
            return await self._environments.of(wanted, plan.principal.name)
        except BuildFailed as error:
            if not wanted.held:
                raise
            skills = [skill for skill in plan.skills if plan.trust.standings[skill.name].by == "operator"]
            names = ", ".join(f"'{skill.name}' {skill.version}" for skill in skills if skill.needs.dependencies)
            rule = f"{error.message}; runs get the packages that {names} are approved with"
            raise BuildFailed(f"{rule}: where these are in the way, {ANEW}", error.log) from error

    async def _check_secrets(self, plan: Plan, wanted: Wanted) -> None:
        """Nobody waits for a build to be told that a secret is missing. Raises Refused."""
        if wanted and await self._environments.ready(wanted) is None:
            await self._secrets.check(plan)

    def _check_drawn_in(self, plan: Plan, asked: Sequence[Asked], names: Iterable[str]) -> None:
        """Holds packages that others require to the names that are denied, too. Raises Refused."""
        config = self._config
        approved = all(who.skill is not None and plan.trust.standings[who.skill.name].approved for who in asked)
        for setting, patterns in (("allow", config.allow), ("run_code", () if approved else config.run_code)):
            if denied := sorted(name for name in names if denies(patterns, name)):
                shown = ", ".join(f"'{name}'" for name in denied)
                raise Refused("PolicyRefused", f"what is asked for requires {shown}, which packages.{setting} denies")

    async def _check_trust(self, plan: Plan) -> None:
        """A build takes minutes: what was revoked meanwhile is revoked. Raises Refused."""
        if plan.trust.least:
            return
        trust = await self._standings.of(plan.skills)
        if trust.least:
            raise Refused("PolicyRefused", f"while packages were built an approval was revoked: {trust.least}")

    async def _check_lock(self, skill: Skill, wanted: Wanted, lock: str) -> None:
        """Refuses a run whose approved requirements now resolve to other packages. Raises Refused.

        An operator approved the packages of one lock, not the text of the requirements.
        """
        bound = await self._standings.approvals.bind(skill.name, skill.version, skill.digest, wanted.digest, lock)
        if bound != lock:
            rule = f"'{skill.name}' {skill.version} was approved with other packages for the same requirements"
            locks = f"lock {bound[:SHOWN]}, now {lock[:SHOWN]}" if bound else "it is not any more"
            mend = f"`skillyard skill approve {skill.name}@{skill.version}`"
            raise Refused("PolicyRefused", f"{rule} ({locks}): look at them, then {mend}")

    def _check_packages(self, plan: Plan, asked: Sequence[Asked]) -> None:
        """Whether everybody may have what they ask for. Raises Refused."""
        config = self._config
        for who in asked:
            if odd := [text for text in who.requirements if not is_requirement(text)]:
                raise Refused("PolicyRefused", f"{who} asks for {odd[0][:100]!r}, which is not a valid requirement")
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
                raise Refused(
                    "PolicyRefused", f"{who} asks for the packages {shown}: {setting} admits none of them{lacks}"
                )


async def _there(plan: Plan, name: str, wanted: Wanted) -> Wanted:
    """Returns the requirements for the sandbox of a run, whose environment will have that name."""
    command = plan.request.command
    return await wanted_on(wanted, plan.offer, name, "python" if command is None else command.language, plan.image)


def _asked_by(plan: Plan) -> tuple[Asked, ...]:
    """Returns everybody who asks for packages beside the operator's named environment."""
    asked = [Asked(skill.needs.dependencies, skill) for skill in plan.skills if skill.needs.dependencies]
    if plan.request.packages:
        asked.append(Asked(plan.request.packages))
    return tuple(asked)


def _operators(plan: Plan, asked: Sequence[Asked]) -> list[Skill]:
    """Returns the skills with requirements that an operator approved one by one."""
    skills = (who.skill for who in asked if who.skill is not None)
    return [skill for skill in skills if plan.trust.standings[skill.name].by == "operator"]


def _required(skill: Skill, mounted: Mapping[str, Skill]) -> set[str]:
    """Returns the names of all mounted skills that it requires, itself or through others."""
    found: set[str] = set()
    waiting = [skill]
    while waiting:
        named = {Requirement.parse(text).name for text in waiting.pop().needs.requires} & mounted.keys()
        waiting += [mounted[name] for name in named - found]
        found |= named
    return found - {skill.name}


def _joined(bound: Iterable[tuple[Skill, ApprovedPackages]]) -> tuple[Pin, ...]:
    """Returns the packages of several approvals together. Raises Refused where two contradict each other."""
    found: dict[str, tuple[Pin, Skill]] = {}
    for skill, packages in bound:
        for pin in _pins(packages.lock):
            known, first = found.get(pin.name, (pin, skill))
            both = agreed(known, pin)
            if both is None:
                raise Refused("PolicyRefused", _contradiction(first, known, skill, pin))
            found[pin.name] = both, first
    return tuple(found[name][0] for name in sorted(found))


_pins = lru_cache(16)(parse_lock)


def _contradiction(one: Skill, its: Pin, other: Skill, others: Pin) -> str:
    files = " (other files)" if its.version == others.version else ""
    first = f"'{one.name}' {one.version} is approved with {its.name} {its.version}"
    second = f"'{other.name}' {other.version} with {others.name} {others.version}{files}"
    return f"packages: {first}, {second}; let both require one exact version, or {ANEW}"
