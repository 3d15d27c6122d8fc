"""The methods ``catalogue.*`` of those who publish. Bundles come and go by ``PUT`` and ``GET /skills``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import Forbidden, SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.publication import MAX_REASON
from skillyard.engine.method import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    SKILL_NAME,
    STRING,
    VERSION,
    Handler,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.shapes import FINDING, TEXT_OR_NULL, or_null
from skillyard.engine.skills.publishing import Publisher
from skillyard.engine.skills.service import SkillService

Params = Mapping[str, Any]


async def _versions(publisher: Publisher, principal: Principal, params: Params) -> dict[str, Any]:
    return await publisher.versions(principal, params["name"], params["history"])


async def _withdraw(publisher: Publisher, principal: Principal, params: Params) -> dict[str, Any]:
    check_unicode("reason", params["reason"])
    return await publisher.withdraw(principal, params["name"], params["version"], params["reason"])


async def _restore(publisher: Publisher, principal: Principal, params: Params) -> dict[str, Any]:
    return await publisher.restore(principal, params["name"], params["version"])


async def _pin(publisher: Publisher, principal: Principal, params: Params) -> dict[str, Any]:
    return await publisher.pin(principal, params["name"], params["version"])


async def _unpin(publisher: Publisher, principal: Principal, params: Params) -> dict[str, Any]:
    return await publisher.unpin(principal, params["name"])


async def _problems(skills: SkillService, _principal: Principal, params: Params) -> dict[str, Any]:
    found = await skills.store.problems()
    return {"problems": [asdict(problem) for problem in found[: params["limit"]]], "total": len(found)}


_EXACT: Schema = {**VERSION, "description": "the exact version"}
_PUBLICATION: dict[str, Schema] = {
    "name": STRING,
    "version": STRING,
    "digest": described(STRING, "SHA-256 over the paths, modes and bytes of its files"),
    "state": described(STRING, "'published', 'withdrawn'; 'directory' or 'built-in' for what was not published"),
    "project": described(STRING, "which the name belongs to"),
    "published_at": NUMBER,
    "published_by": STRING,
    "size_bytes": INTEGER,
    "files": INTEGER,
    "withdrawn_at": NUMBER,
    "withdrawn_by": STRING,
    "reason": STRING,
}


def _change(
    name: str, doc: str, params: Schema, result: Schema, handler: Handler[Any], *errors: type[Any], **example: str
) -> Method[Any]:
    return Method(
        name=name,
        doc=doc,
        params=params,
        result=result,
        errors=(SkillNotFound, Forbidden, *errors),
        handler=handler,
        service=Publisher,
        scope=Scope.PUBLISH,
        example={"name": "acme.words.say", **example},
    )


_EVENT = answer({"at": NUMBER, **dict.fromkeys(("act", "version", "digest", "principal", "reason"), STRING)})
_OPTIONAL = "project published_at published_by size_bytes files withdrawn_at withdrawn_by reason"

TABLE = (
    Method(
        name="catalogue.versions",
        doc="Every version of a skill, withdrawn ones too, newest first, and who did what with them.",
        params=obj(
            {
                "name": SKILL_NAME,
                "history": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 1000,
                    "default": 50,
                    "description": "how many events of its history, newest first",
                },
            },
            "name",
        ),
        example={"name": "acme.words.say"},
        result=answer(
            {
                "name": STRING,
                "latest": described(TEXT_OR_NULL, "what the name alone means; null when no version is served"),
                "pin": or_null(answer({"version": STRING, "at": NUMBER, "by": STRING})),
                "project": described(TEXT_OR_NULL, "which the name belongs to; null for one that nobody published"),
                "versions": list_of(answer({**_PUBLICATION, "latest": BOOLEAN}, optional=_OPTIONAL), "newest first"),
                "history": list_of(_EVENT, "newest first"),
            }
        ),
        errors=(SkillNotFound,),
        handler=_versions,
        service=Publisher,
        scope=Scope.DISCOVER,
        also=frozenset({Scope.PUBLISH}),
        repeatable=True,
    ),
    _change(
        "catalogue.withdraw",
        "Serve a published version no longer: it is not listed, read or executed; runs at work go on. Its name, version"
        " and content stay taken.",
        obj(
            {
                "name": SKILL_NAME,
                "version": _EXACT,
                "reason": described(STRING, "told to callers that ask for it", maxLength=MAX_REASON, default=""),
            },
            "name",
            "version",
        ),
        answer(
            {
                **_PUBLICATION,
                "changed": described(BOOLEAN, "false when it was withdrawn before"),
                "unpinned": described(BOOLEAN, "it was pinned before this call"),
            },
            optional=_OPTIONAL,
        ),
        _withdraw,
        version="1.1.0",
        reason="a mistake in it",
    ),
    _change(
        "catalogue.restore",
        "Serve a withdrawn version again.",
        obj({"name": SKILL_NAME, "version": _EXACT}, "name", "version"),
        answer(
            {**_PUBLICATION, "changed": described(BOOLEAN, "false when it was not withdrawn")},
            optional=_OPTIONAL,
        ),
        _restore,
        version="1.1.0",
    ),
    _change(
        "catalogue.pin",
        "Choose which version a skill's name alone means, until it is unpinned or withdrawn.",
        obj({"name": SKILL_NAME, "version": _EXACT}, "name", "version"),
        answer(
            {
                "name": STRING,
                "version": STRING,
                "digest": STRING,
                "pinned_at": NUMBER,
                "pinned_by": STRING,
                "changed": described(BOOLEAN, "false when it was pinned to that version before"),
            }
        ),
        _pin,
        version="1.0.0",
    ),
    _change(
        "catalogue.unpin",
        "Let a skill's name mean its newest version again.",
        obj({"name": SKILL_NAME}, "name"),
        answer(
            {
                "name": STRING,
                "unpinned": described(TEXT_OR_NULL, "the version that was pinned; null when none was"),
                "unpinned_at": NUMBER,
                "unpinned_by": STRING,
                "latest": TEXT_OR_NULL,
            },
            optional="unpinned_at unpinned_by",
        ),
        _unpin,
    ),
    Method(
        name="catalogue.problems",
        doc="Skills in directories that are not served, versions that others hide, and what the search had to say.",
        params=obj({"limit": {"type": "integer", "minimum": 1, "maximum": 5000, "default": 500}}),
        example={"limit": 20},
        result=answer(
            {
                "problems": list_of(FINDING, "as validation gives them"),
                "total": described(INTEGER, "of all that there are"),
            }
        ),
        scope=Scope.ADMIN,
        repeatable=True,
        handler=_problems,
        service=SkillService,
    ),
)
