"""The methods that show, build and remove environments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from skillyard.domain.errors import Busy, EnvironmentNotFound, InvalidInput, QuotaExceeded, SkillNotFound
from skillyard.domain.package.environment import BuildState, BuiltEnvironment
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.method import (
    BOOLEAN,
    INTEGER,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.packages.build import BuildLog
from skillyard.engine.packages.environment import BuildFailed
from skillyard.engine.packages.service import PackageService, Target, find_target
from skillyard.engine.shapes import ENVIRONMENT

Params = Mapping[str, Any]

ABSENT = "absent"
"""The state of what nobody has built."""
ARCHIVE = "application/x-tar"
_BRIEF = ("name", "state", "digest", "requirements")


async def list_environments(packages: PackageService, _principal: Principal, _params: Params) -> dict[str, Any]:
    environments = packages.environments
    building = environments.building
    wanted = {name: await packages.usual(environments.wanted(name), name) for name in environments.names}
    named = [await _shown(packages, Target(name, wanted[name])) for name in environments.names]
    return {
        "named": [{key: one[key] for key in _BRIEF if key in one} for one in named],
        "environments": [_without_lock(_built(built)) for built in await environments.store.list()],
        "builds": [build.view() for build in (*building.at_work(), *building.failures())],
    }


def _without_lock(environment: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in environment.items() if key != "lock"}


async def show_environment(packages: PackageService, principal: Principal, params: Params) -> dict[str, Any]:
    """Returns the requirements as their asker sees them.

    The requests of others for the same packages stay private. So does the presence of packages that the caller may not
    have.
    """
    target = await find_target(packages, principal, params)
    if params.get("packages"):
        target.require()
    shown = await _shown(packages, target)
    if target.built is not None and Scope.ADMIN not in principal.scopes:
        shown["requirements"] = []
    return {"environment": shown}


async def build_environment(packages: PackageService, principal: Principal, params: Params) -> dict[str, Any]:
    """A build that fails is a result, as a run that fails is."""
    target = await find_target(packages, principal, params)
    wanted, refresh = target.require(), params["refresh"]
    if not wanted:
        return {"environment": _nothing(target)}
    if refresh:
        principal.require(Scope.ADMIN)
    ready = None if refresh else await packages.environments.ready(wanted)
    if ready is not None:
        return {"environment": {"name": target.label, **_built(ready)}}
    build = packages.environments.begin(wanted, principal.name, refresh=refresh)
    if params["wait"]:
        try:
            await build.result()
        except BuildFailed:
            return {"environment": {"name": target.label, **build.view()}}
    return {"environment": await _shown(packages, target)}


async def remove_environment(packages: PackageService, principal: Principal, params: Params) -> dict[str, Any]:
    target = await find_target(packages, principal, params)
    digest = target.built.digest if target.built is not None else await _digest(packages, target)
    removed = await packages.environments.remove(digest, forget=params["forget"]) if digest else False
    if not removed:
        raise EnvironmentNotFound("environment", "it is not built")
    return {"removed": digest}


async def fetch_wheels(packages: PackageService, principal: Principal, params: Params) -> dict[str, Any]:
    target = await find_target(packages, principal, params)
    built = target.built
    if built is None:
        wanted = target.require()
        built = (
            await packages.environments.ready(wanted)
            or await packages.environments.begin(wanted, principal.name, refresh=False).result()
        )
    tags = await packages.environments.store.wheel_tags(built.digest)
    async with aclosing(packages.environments.building.fetch(built.lock, tags, BuildLog(), principal.name)) as chunks:
        info = await packages.blobs.create(principal.name, ARCHIVE, chunks, ttl_s=packages.blob_ttl_s)
    return {"digest": built.digest, "lock": built.lock.text, "archive": info.blob_id, "size_bytes": info.size}


async def _digest(packages: PackageService, target: Target) -> str:
    ready = await packages.environments.ready(target.wanted) if target.wanted else None
    return ready.digest if ready is not None else ""


async def _shown(packages: PackageService, target: Target) -> dict[str, Any]:
    if target.built is not None:
        return {"name": target.label, **_built(target.built)}
    wanted = target.wanted
    if not wanted:
        return _nothing(target)
    build = packages.environments.building.find(wanted)
    if build is not None and build.state is not BuildState.FAILED:
        return {"name": target.label, **build.view()}
    ready = await packages.environments.ready(wanted)
    if ready is not None:
        return {"name": target.label, **_built(ready), "requirements": list(wanted.requirements)}
    if build is not None:
        return {"name": target.label, **build.view()}
    lock = await packages.environments.lock(wanted)
    known = {"digest": lock.lock.digest, "lock": lock.lock.text, "resolved_at": lock.resolved_at} if lock else {}
    return {"name": target.label, "state": ABSENT, "requirements": list(wanted.requirements), **known}


def _nothing(target: Target) -> dict[str, Any]:
    """The standard library alone is always there."""
    return {"name": target.label, "state": BuildState.READY.value, "requirements": [], "digest": ""}


def _built(built: BuiltEnvironment) -> dict[str, Any]:
    return {
        "state": BuildState.READY.value,
        "digest": built.digest,
        "requirements": list(built.requirements),
        "distributions": dict(sorted(built.distributions.items())),
        "modules": list(built.modules),
        "size_bytes": built.size,
        "built_at": built.built_at,
        "used_at": built.used_at,
        "build_ms": round(built.build_ms, 1),
        "log": built.log,
        "lock": built.lock.text,
        "platform": built.lock.platform,
    }


_STATE: Schema = {"type": "string", "enum": [ABSENT, *(state.value for state in BuildState)]}
_ENVIRONMENT: Schema = {**ENVIRONMENT, "properties": {**ENVIRONMENT["properties"], "state": _STATE}}
_TARGET: dict[str, Schema] = {
    "environment": described(
        STRING, "a name of the settings, a digest, or its first 16 digits", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
    ),
    "skill": described(SKILL_NAME, "the environment that a run of this skill gets"),
    "version": VERSION,
    "packages": list_of(
        {"type": "string", "minLength": 1, "maxLength": 1000}, "the environment that code with these gets", maxItems=64
    ),
}
_EITHER = frozenset({Scope.RUN_CODE})

TABLE = (
    Method(
        name="environments.list",
        doc="Named environments, built ones, the one used last first, and builds at work or that failed a moment ago.",
        params=obj({}),
        result=answer(
            {
                "named": list_of(_ENVIRONMENT, f"those of the settings, built or not: {', '.join(_BRIEF)}"),
                "environments": list_of(_ENVIRONMENT, "built ones, without name and lock"),
                "builds": list_of(_ENVIRONMENT, "likewise"),
            }
        ),
        scope=Scope.ADMIN,
        repeatable=True,
        handler=list_environments,
        service=PackageService,
    ),
    Method(
        name="environments.show",
        doc="One environment: what is in it, or how far its build is.",
        params=obj(_TARGET),
        example={"environment": "tables"},
        result=answer({"environment": _ENVIRONMENT}),
        scope=Scope.EXECUTE,
        also=_EITHER,
        errors=(EnvironmentNotFound, SkillNotFound),
        repeatable=True,
        handler=show_environment,
        service=PackageService,
    ),
    Method(
        name="environments.build",
        doc="Build an environment ahead of its first run, as policy lets that run have it.",
        params=obj(
            {
                **_TARGET,
                "refresh": described(
                    BOOLEAN, "resolve anew and take its place; needs the scope 'admin'", default=False
                ),
                "wait": described(BOOLEAN, "return when the build has ended", default=True),
            }
        ),
        example={"environment": "tables"},
        result=answer({"environment": _ENVIRONMENT}),
        scope=Scope.EXECUTE,
        also=_EITHER,
        errors=(EnvironmentNotFound, SkillNotFound, Busy),
        builds=True,
        handler=build_environment,
        service=PackageService,
    ),
    Method(
        name="environments.remove",
        doc="Remove a built environment that no run uses; the next run that needs it builds it again.",
        params=obj(
            {
                **_TARGET,
                "forget": described(BOOLEAN, "its locks too: the next build resolves anew", default=False),
            }
        ),
        example={"environment": "tables"},
        result=answer({"removed": described(STRING, "its digest")}),
        scope=Scope.ADMIN,
        errors=(EnvironmentNotFound, SkillNotFound, Busy),
        handler=remove_environment,
        service=PackageService,
    ),
    Method(
        name="environments.wheels",
        doc="The wheels of an environment's lock, as a tar archive in a blob: what an offline server installs from.",
        params=obj(_TARGET),
        example={"environment": "tables"},
        result=answer(
            {"digest": STRING, "lock": STRING, "archive": described(STRING, "the blob"), "size_bytes": INTEGER}
        ),
        scope=Scope.EXECUTE,
        also=_EITHER,
        errors=(EnvironmentNotFound, SkillNotFound, InvalidInput, QuotaExceeded, Busy),
        handler=fetch_wheels,
        service=PackageService,
    ),
)
