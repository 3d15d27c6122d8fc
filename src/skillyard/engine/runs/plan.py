"""The plan of a request: skills, blobs, limits and environment, found and checked.

Everything in this file answers to the caller's request as such. An error is one of the protocol and leaves no record
(skills-protocol §6). :mod:`skillyard.engine.runs.grant` decides about the rights of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skillyard.config.profiles import ProfileSettings, bound, check_quota
from skillyard.domain.errors import (
    BlobNotFound,
    InvalidInput,
    NotExecutable,
    UnsupportedLanguage,
    shown,
)
from skillyard.domain.package.environment import DEFAULT_ENVIRONMENT
from skillyard.domain.package.script_metadata import OPENING
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount
from skillyard.domain.skill.skill import Skill, SkillKind
from skillyard.domain.work.command import VIEWS
from skillyard.domain.work.limits import MINIMUM, LimitFamily, Limits
from skillyard.domain.work.record import RunKind, RunRecord
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.blobs.service import agents_blob, owned_blob
from skillyard.engine.packages.asked import check_python
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.skills.service import SkillService
from skillyard.engine.skills.standings import UNMOUNTED, RunTrust
from skillyard.ports.blobs import BlobInfo, BlobStore
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.records import RecordStore
from skillyard.values import dataclass

_SHORT = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with everything it names. ``skills`` are all that will be mounted, ``skill`` the one that is
    executed; ``offer`` is the backend it will run on; ``taken_at`` is on the monotonic clock.

    A command is code that mounts a skill: it gets what policy leaves to code, and ``of`` is that skill.
    """

    run_id: str
    principal: Principal
    request: RunRequest
    created_at: float
    taken_at: float
    limits: Limits
    environment: str
    offer: Offer
    image: str = ""
    """The image that the request or its skills name; empty for the backend's own."""
    skill: Skill | None = None
    of: Skill | None = None
    """The skill that the run is of: the executed one, or that of a command."""
    skills: tuple[Skill, ...] = ()
    trust: RunTrust = UNMOUNTED
    blobs: tuple[BlobInfo, ...] = ()
    blob_mounts: tuple[Mount, ...] = ()
    blob_prefix: str = ""
    """Begins the ids of its blobs; empty where it is made when the run is granted what it may have."""


class Planner:
    """Finds and checks everything that requests name. ``limits`` are the defaults and maxima of runs."""

    def __init__(
        self,
        skills: SkillService,
        backends: Backends,
        blobs: BlobStore,
        clock: Clock,
        ids: Ids,
        limits: LimitFamily,
        command_limits: LimitFamily,
        profiles: Mapping[str, ProfileSettings],
        records: RecordStore,
    ) -> None:
        self._skills = skills
        self._backends = backends
        self._blobs = blobs
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._command_limits = command_limits
        self._profiles = profiles
        self._records = records

    def check_tasks(self, principal: Principal, held: int) -> None:
        """Raises QuotaExceeded for a principal with ``held`` tasks whose profile allows no more."""
        check_quota(self._profiles, principal, "tasks", held)

    async def _blob(self, principal: Principal, request: RunRequest, blob_id: str, field: str) -> BlobInfo:
        """Raises BlobNotFound."""
        if request.command is None:
            return await owned_blob(self._blobs, principal, blob_id, field)
        return (await agents_blob(self._blobs, self._records, principal, blob_id, field))[0]

    async def plan(self, principal: Principal, request: RunRequest, before: RunRecord | None = None) -> Plan:
        """Finds and checks everything that a request names. ``before`` is the record of a run that is planned again.

        Raises SkillNotFound, BlobNotFound, NotExecutable, UnsupportedLanguage, InvalidInput, ProtectionMissing, and
        Forbidden for a principal whose profile is not there any more.
        """
        family = self._limits if request.command is None else self._command_limits
        isolation = request.isolation
        if principal.profile is not None:
            principal, family, isolation = self._profiled(principal, request, family)
        named = request.skill is not None or request.mount_skills
        of, skills, trust = await self._find_skills(principal, request) if named else (None, (), UNMOUNTED)
        image = _image(request, skills)
        offer = await self._offer(isolation, skills, trust, image)
        skill = of if request.command is None else None
        if request.code and OPENING in request.code and request.command is None:
            await check_python(request.code, offer, _environment(request, skill, skills), image)
        if request.command is not None and request.command.service is not None:
            if ports := request.command.service.ports:
                offer.probe.demand("forwarding")
                if taken := sorted(offer.backend.nature.ports & {*ports}):
                    raise InvalidInput(
                        "expose_ports", f"must name ports that '{offer.name}' does not use", str(taken[0])
                    )
            if request.session is not None:
                offer.probe.demand("keeping")
        elif request.session is not None and request.is_cell:
            offer.probe.demand("keeping")
        run_id = self._ids.run() if before is None else before.run_id
        now, taken_at = self._clock.now(), self._clock.monotonic()
        if request.session is not None:
            request = _in_session(request, of)
        ids = enumerate(request.input_blobs)
        blobs = tuple([await self._blob(principal, request, id, f"input_blobs[{i}]") for i, id in ids])
        return Plan(
            run_id=run_id,
            principal=principal,
            request=request,
            created_at=now if before is None else before.created_at,
            taken_at=taken_at if before is None else taken_at - max(0.0, now - before.created_at),
            limits=_limits(family, request, of, trust),
            environment=_environment(request, skill, skills),
            offer=offer,
            image=image,
            skill=skill,
            of=of,
            skills=skills,
            trust=trust,
            blobs=blobs,
            blob_mounts=tuple([await _blob_mount(self._blobs, blob) for blob in blobs]),
            blob_prefix="" if before is None else before.blob_prefix,
        )

    async def ahead(self, principal: Principal, skill: Skill) -> Plan:
        """Returns the plan of code that mounts a skill, for what can be made ready ahead of it.

        Raises what :meth:`plan` raises."""
        request, family, isolation = RunRequest(RunKind.CODE, code=""), self._command_limits, None
        if principal.profile is not None:
            principal, family, isolation = self._profiled(principal, request, family)
        skills = await self._skills.mounted(principal, skill, ())
        trust, image = await self._skills.standings.of(skills), _image(request, skills)
        return Plan(
            run_id="",
            principal=principal,
            request=request,
            created_at=self._clock.now(),
            taken_at=self._clock.monotonic(),
            limits=family.defaults,
            environment=_environment(request, None, skills),
            offer=await self._offer(isolation, skills, trust, image),
            image=image,
            skills=skills,
            trust=trust,
        )

    async def _offer(self, asked: str | None, skills: Sequence[Skill], trust: RunTrust, image: str) -> Offer:
        """Returns the backend of a run with these skills and this image.

        Raises InvalidInput, ProtectionMissing, SandboxFault.
        """
        named = [(skill.name, skill.version, trust.standings[skill.name].approved) for skill in skills]
        theirs = [skill.runtime.guarantees for skill in skills if skill.runtime is not None]
        return await self._backends.choose(asked, named, frozenset().union(*theirs), image)

    def _profiled(
        self, principal: Principal, request: RunRequest, family: LimitFamily
    ) -> tuple[Principal, LimitFamily, str | None]:
        """Returns the principal with its profile's rights, and the limits and isolation of its runs."""
        principal = bound(self._profiles, principal)
        principal.require_profile()
        profile, isolation = self._profiles[principal.profile or ""], request.isolation
        if profile.isolation is not None and isolation not in (None, profile.isolation):
            rule = f"must be '{profile.isolation}': the profile '{principal.profile}' has no other"
            raise InvalidInput("isolation", rule, shown(isolation))
        bounded = f"the profile '{principal.profile}' of this token"
        return principal, family.within(profile.limits.most, bounded), profile.isolation or isolation

    async def _find_skills(
        self, principal: Principal, request: RunRequest
    ) -> tuple[Skill | None, tuple[Skill, ...], RunTrust]:
        skill = None
        if request.skill is not None:
            name = "name" if request.command is None else "skill_name"
            skill = await self._skills.find(principal, request.skill, request.version, name)
            if request.kind is RunKind.SKILL:
                _executable(skill)
        skills = await self._skills.mounted(principal, skill, request.mount_skills)
        return skill, skills, await self._skills.standings.of(skills)


def _in_session(request: RunRequest, skill: Skill | None) -> RunRequest:
    """Returns a request with a place of its own for the writable files of this skill."""
    if request.command is None or skill is None:
        return request
    view = f"{VIEWS}{skill.name}-{skill.digest[:_SHORT]}"
    return replace(request, command=replace(request.command, view=view))


def _executable(skill: Skill) -> None:
    """Raises NotExecutable, UnsupportedLanguage."""
    if skill.kind is not SkillKind.ACTION or skill.runtime is None:
        rule = f"'{skill.name}' is an instruction skill: read it with describe_skill, it cannot be executed"
        raise NotExecutable("name", rule, skill=skill.name)
    if skill.runtime.language != "python":
        rule = f"'{skill.name}' is written in {skill.runtime.language}; only python runs here"
        raise UnsupportedLanguage("name", rule, supported=["python"])


async def _blob_mount(blobs: BlobStore, blob: BlobInfo) -> Mount:
    """Under both names of the reference: ``/blobs/blob:<id>`` and ``/blobs/<id>`` (§10, row 2)."""
    try:
        source = await blobs.path(blob.blob_id)
    except BlobNotFound:  # expired since it was looked up
        raise BlobNotFound("input_blobs", f"no blob '{blob.blob_id}'", blob_id=blob.blob_id) from None
    bare = blob.blob_id.removeprefix("blob:")
    return Mount(Content(blob.sha256, source), f"/blobs/{blob.blob_id}", aliases=(f"/blobs/{bare}",))


def _limits(family: LimitFamily, request: RunRequest, skill: Skill | None, trust: RunTrust) -> Limits:
    """The request's limits, the manifest's below them, the defaults below both."""
    declared = skill.needs.limits if skill else {}
    if not declared:
        return family.resolve(request.limits) if request.limits else family.defaults
    return family.resolve({**capped(declared, most(family, trust)), **request.limits})


def most(family: LimitFamily, trust: RunTrust) -> Limits:
    """Returns the most that a manifest may ask for: the operator's maxima (skills-protocol §8).

    Without approval these are the defaults of every run.
    """
    return family.defaults if trust.least else family.maxima


def capped(declared: Mapping[str, Any], maxima: Limits) -> dict[str, Any]:
    return {
        name: max(getattr(MINIMUM, name), min(value, getattr(maxima, name)))
        for name, value in declared.items()
        if hasattr(maxima, name)
    }


def _environment(request: RunRequest, skill: Skill | None, skills: Iterable[Skill]) -> str:
    """Returns the environment that a run names.

    The request decides first, then the executed skill, then the mounted skills where they agree.
    """
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


def _image(request: RunRequest, skills: Iterable[Skill]) -> str:
    """Returns the image that the request and its skills name; empty for none. Raises InvalidInput for two."""
    wanted = {s.runtime.image: f"'{s.name}' needs" for s in skills if s.runtime is not None and s.runtime.image}
    if request.image is not None:
        wanted.setdefault(request.image, "the request names")
    if len(wanted) > 1:
        needs = ", ".join(f"{needer} {image}" for image, needer in sorted(wanted.items()))
        raise InvalidInput("image", f"must be one: {needs}")
    return next(iter(wanted), "")
