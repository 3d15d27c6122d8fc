"""The operator's methods for secrets. Values go in and never come out: no answer, error or event holds one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from skillyard.domain.errors import InvalidInput, QuotaExceeded, SecretNotFound, StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.secret import MAX_HOSTS, Delivery, SecretAct, SecretEntry, SecretEvent, SecretScope
from skillyard.engine.method import (
    BOOLEAN,
    CURSOR,
    STRING,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
    tell_no_secret,
)
from skillyard.engine.secrets.service import SecretBook
from skillyard.engine.shapes import NEXT_CURSOR, SECRET, SECRET_EVENT

Params = Mapping[str, Any]
BookHandler = Callable[[SecretBook, Principal, Params], Awaitable[dict[str, Any]]]


async def call(book: SecretBook, principal: Principal, name: str, params: Params) -> dict[str, Any]:
    """A method of this table over a book, without an engine. Raises what the method raises."""
    method = next(method for method in TABLE if method.name == name)
    try:
        return await _HANDLERS[name](book, principal, method.bind(params))
    except InvalidInput as error:
        tell_no_secret(name, error)
        raise


async def rotate(book: SecretBook, principal: Principal) -> int:
    """Seals everything under a new key and returns the number of values.

    It is for an operator at the files: no method of the table does it.
    """
    count = await book.store.rotate()
    await book.audit.record([SecretEvent(book.clock.now(), SecretAct.ROTATED, "*", principal.name)])
    return count


async def set_secret(book: SecretBook, principal: Principal, params: Params) -> dict[str, Any]:
    delivery = Delivery(params["delivery"]) if "delivery" in params else None
    entry = await book.store.set(
        params["name"],
        params["value"],
        _scope(params),
        delivery=delivery,
        hosts=params.get("hosts"),
        by=principal.name,
    )
    await _note(book, principal, SecretAct.SET, entry)
    return {"secret": await _shown(book, entry)}


async def bind_secret(book: SecretBook, principal: Principal, params: Params) -> dict[str, Any]:
    entry = await book.store.bind(
        params["name"], _scope(params), delivery=Delivery(params["delivery"]), hosts=params["hosts"]
    )
    await _note(book, principal, SecretAct.BOUND, entry)
    return {"secret": await _shown(book, entry)}


async def rollback_secret(book: SecretBook, principal: Principal, params: Params) -> dict[str, Any]:
    entry = await book.store.rollback(params["name"], params["version"], _scope(params))
    await _note(book, principal, SecretAct.ROLLED_BACK, entry)
    return {"secret": await _shown(book, entry)}


async def delete_secret(book: SecretBook, principal: Principal, params: Params) -> dict[str, Any]:
    name, scope = params["name"], _scope(params)
    deleted = await book.store.delete(name, scope)
    if deleted:
        await book.audit.record(
            [SecretEvent(book.clock.now(), SecretAct.DELETED, name, principal.name, scope=str(scope))]
        )
    return {"deleted": deleted}


async def list_secrets(book: SecretBook, _principal: Principal, params: Params) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    entries = list(await book.store.list())
    if cursor is not None:
        entries = [entry for entry in entries if entry.key > _key(cursor)]
    used = await book.audit.used_at()
    page = entries[:limit]
    return {
        "secrets": [view(entry, used.get((entry.name, str(entry.scope)))) for entry in page],
        "next_cursor": "/".join(page[-1].key) if len(entries) > limit else None,
    }


async def audit_secrets(book: SecretBook, _principal: Principal, params: Params) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise InvalidInput("cursor", "must be the next_cursor of another page")
    before = None if cursor is None else int(cursor)
    found = await book.audit.list(limit=limit, before=before, name=params["name"])
    return {
        "events": [event.as_dict() for _, event in found],
        "next_cursor": str(found[-1][0]) if len(found) == limit else None,
    }


def view(entry: SecretEntry, used_at: float | None) -> dict[str, Any]:
    """Returns all that is told of a secret.

    No digest is told, since a principal that may set values could try guesses against one.
    """
    current = entry.version(entry.current)
    assert current is not None
    return {
        "name": entry.name,
        "project": entry.scope.project or None,
        "skills": entry.scope.skills or None,
        "delivery": entry.delivery.value,
        "hosts": list(entry.hosts),
        "version": entry.current,
        "created_at": current.created_at,
        "created_by": current.created_by,
        "used_at": used_at,
        "versions": [
            {"version": version.number, "created_at": version.created_at, "created_by": version.created_by}
            for version in entry.versions
        ],
    }


async def _shown(book: SecretBook, entry: SecretEntry) -> dict[str, Any]:
    return view(entry, (await book.audit.used_at()).get((entry.name, str(entry.scope))))


async def _note(book: SecretBook, principal: Principal, act: SecretAct, entry: SecretEntry) -> None:
    event = SecretEvent(
        at=book.clock.now(),
        act=act,
        name=entry.name,
        principal=principal.name,
        scope=str(entry.scope),
        version=f"{book.store.label}:{entry.current}",
        delivery=entry.delivery.value,
        reason=" ".join(entry.hosts),
    )
    await book.audit.record([event])


def _scope(params: Params) -> SecretScope:
    skills = params["skills"]
    return SecretScope(params["project"] or "", "" if skills in (None, "*") else skills).check()


def _key(cursor: str) -> tuple[str, ...]:
    parts = tuple(cursor.split("/"))
    if len(parts) != 3:
        raise InvalidInput("cursor", "must be the next_cursor of another page")
    return parts


_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 128}
_WHOSE: Mapping[str, Schema] = {
    "project": {
        "type": ["string", "null"],
        "maxLength": 64,
        "description": "for this project only; for every one when null",
        "default": None,
    },
    "skills": {
        "type": ["string", "null"],
        "maxLength": 257,
        "description": "for this skill only, or for those that begin so: 'sales.*'; for every one when null",
        "default": None,
    },
}
_DELIVERIES = [delivery.value for delivery in Delivery]
_HOST: Schema = {"type": "string", "maxLength": 512}
_SECRET = answer({"secret": SECRET})
_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}

_HANDLERS: dict[str, BookHandler] = {
    "secrets.list": list_secrets,
    "secrets.set": set_secret,
    "secrets.bind": bind_secret,
    "secrets.rollback": rollback_secret,
    "secrets.delete": delete_secret,
    "secrets.audit": audit_secrets,
}


def _method(name: str, doc: str, params: Schema, result: Schema, example: Params, *errors: type[Any]) -> Method[Any]:
    return Method(
        name=name,
        doc=doc,
        params=params,
        result=result,
        example=example,
        errors=(*errors, StoreFault),
        handler=_HANDLERS[name],
        service=SecretBook,
        scope=Scope.ADMIN,
        repeatable=name in ("secrets.list", "secrets.audit"),
    )


TABLE = (
    _method(
        "secrets.list",
        "What secrets there are, for whom and how they are delivered. Values are never told.",
        obj({"limit": _LIMIT, "cursor": CURSOR}),
        answer({"secrets": list_of(SECRET, "by name"), "next_cursor": NEXT_CURSOR}),
        {"limit": 20},
    ),
    _method(
        "secrets.set",
        "Store a value under a name and a scope, as a new version that is current at once.",
        obj(
            {
                "name": _NAME,
                "value": described(STRING, "the value: not empty, without NUL, at most 64 KiB", maxLength=65536),
                **_WHOSE,
                "delivery": {
                    "type": "string",
                    "enum": _DELIVERIES,
                    "description": "'env' gives skills the value, 'gate' gives it to the bound hosts alone; as before"
                    " when omitted, 'env' at first",
                },
                "hosts": list_of(
                    _HOST,
                    "names that it is bound to, with ports or else 443; as before when omitted",
                    maxItems=MAX_HOSTS,
                ),
            },
            "name",
            "value",
        ),
        _SECRET,
        {"name": "CRM_TOKEN", "value": "tok-1234567890abcdef"},
        QuotaExceeded,
    ),
    _method(
        "secrets.bind",
        "Change how a secret is delivered and to which hosts it is bound; its value stays.",
        obj(
            {
                "name": _NAME,
                **_WHOSE,
                "delivery": {"type": "string", "enum": _DELIVERIES},
                "hosts": list_of(_HOST, "names that it is bound to", maxItems=MAX_HOSTS, default=[]),
            },
            "name",
            "delivery",
        ),
        _SECRET,
        {"name": "CRM_TOKEN", "delivery": "gate", "hosts": ["crm.example.com"]},
        SecretNotFound,
    ),
    _method(
        "secrets.rollback",
        "Make a version that is still kept the current one.",
        obj(
            {"name": _NAME, "version": {"type": "integer", "minimum": 1, "maximum": 2**53}, **_WHOSE}, "name", "version"
        ),
        _SECRET,
        {"name": "CRM_TOKEN", "version": 1},
        SecretNotFound,
    ),
    _method(
        "secrets.delete",
        "Remove a secret with all its versions.",
        obj({"name": _NAME, **_WHOSE}, "name"),
        answer({"deleted": BOOLEAN}),
        {"name": "CRM_TOKEN"},
    ),
    _method(
        "secrets.audit",
        "Who used, was denied or changed which secret, newest first.",
        obj({"limit": _LIMIT, "cursor": CURSOR, "name": {**_NAME, "type": ["string", "null"], "default": None}}),
        answer({"events": list_of(SECRET_EVENT, "newest first"), "next_cursor": NEXT_CURSOR}),
        {"name": "CRM_TOKEN", "limit": 20},
    ),
)
