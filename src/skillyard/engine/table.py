"""THE table: every method of every face, the way to call it, and its OpenRPC document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, Protocol

from skillyard._version import __version__
from skillyard.domain.errors import MethodNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.engine import quotas
from skillyard.engine.blobs import methods as blobs
from skillyard.engine.commands import artifacts, task_methods
from skillyard.engine.commands import methods as command_methods
from skillyard.engine.gateway import methods as tool_methods
from skillyard.engine.jobs import methods as job_methods
from skillyard.engine.method import OBJECT, STRING, Method, NoService, answer, list_of, obj
from skillyard.engine.network import methods as policy_methods
from skillyard.engine.packages import methods as environment_methods
from skillyard.engine.runs import active
from skillyard.engine.runs import methods as execution
from skillyard.engine.secrets import methods as secret_methods
from skillyard.engine.services import methods as service_methods
from skillyard.engine.sessions import methods as session_methods
from skillyard.engine.skills import approval_methods, discovery, inspection
from skillyard.engine.skills import methods as catalogue_methods
from skillyard.engine.skills import tools as skill_tools

METHODS: dict[str, Method[Any]] = {
    method.name: method
    for module in (
        approval_methods,
        discovery,
        execution,
        command_methods,
        task_methods,
        artifacts,
        job_methods,
        session_methods,
        service_methods,
        blobs,
        policy_methods,
        secret_methods,
        catalogue_methods,
        skill_tools,
        inspection,
        environment_methods,
        tool_methods,
        active,
    )
    for method in module.TABLE
}


async def _discover(_service: object, principal: Principal, _params: Mapping[str, Any]) -> dict[str, Any]:
    if principal.profile is None:
        return openrpc()
    return _openrpc_of(tuple(name for name in METHODS if principal.may_call(name)))


DISCOVER: Method[Any] = Method(
    name="rpc.discover",
    doc="This table as an OpenRPC 1.3 document. A token gets the whole of it, one with a profile the"
    " methods that it may call.",
    params=obj({}),
    result=answer({"openrpc": STRING, "info": OBJECT, "methods": list_of(OBJECT, "by name"), "components": OBJECT}),
    scope=Scope.DISCOVER,
    also=frozenset(Scope),
    repeatable=True,
    handler=_discover,
    service=NoService,
)
METHODS[DISCOVER.name] = DISCOVER


@cache
def openrpc() -> dict[str, Any]:
    """Returns the OpenRPC document of the table. It is shared: nobody changes it."""
    return document(METHODS.values())


@lru_cache(maxsize=64)
def _openrpc_of(names: tuple[str, ...]) -> dict[str, Any]:
    return document(METHODS[name] for name in names)


class Services(Protocol):
    """The services that handlers get, by their classes. ``strict_params`` refuses parameters of unknown names."""

    strict_params: bool
    drain: active.Drain
    calls: quotas.CallQuotas
    by_class: Mapping[type[Any], Any]


async def invoke(services: Services, principal: Principal, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Authorises the caller, checks the parameters and calls the method.

    Raises MethodNotFound, Forbidden, InvalidInput, the errors that the method's row lists, and Busy for new work while
    the server drains, and for more calls than the profile allows.
    """
    method = METHODS.get(name)
    if method is None:
        raise MethodNotFound(f"there is no method '{name[:64]}'")
    if principal.profile is not None:
        principal.require_tool(name)
        services.calls.count(principal)
    principal.require(method.scope, method.also)
    service, strict = services.by_class[method.service], services.strict_params
    if not method.runs and not method.builds:
        return await method.call(service, principal, params, strict=strict)
    draining = services.drain
    if draining.on:
        raise draining.refusal()
    draining.calls += 1
    try:
        return await method.call(service, principal, params, strict=strict)
    finally:
        draining.calls -= 1
        if not draining.calls:
            draining.idle.set()


_COMMON_ERRORS = {-32602: "InvalidParams", -32001: "Unauthenticated", -32003: "Forbidden", -32603: "InternalError"}


def document(methods: Iterable[Method[Any]]) -> dict[str, Any]:
    """Returns the document as JSON. Values that several results hold stand in ``components`` by their titles."""
    shapes: dict[str, Any] = {}
    described = [_method(method, shapes) for method in methods]
    return {
        "openrpc": "1.3.2",
        "info": {"title": "skillyard", "version": __version__, "license": {"name": "Apache-2.0"}},
        "methods": described,
        "components": {
            "schemas": dict(sorted(shapes.items())),
            "errors": {name: {"code": code, "message": name} for code, name in _COMMON_ERRORS.items()},
        },
    }


def _method(method: Method[Any], shapes: dict[str, Any]) -> dict[str, Any]:
    required = method.params["required"]
    params = [
        {"name": name, "required": name in required, "schema": schema}
        for name, schema in method.params["properties"].items()
    ]
    params.sort(key=lambda param: not param["required"])  # OpenRPC wants the required ones first
    return {
        "name": method.name,
        "summary": method.doc,
        "paramStructure": "by-name",
        "params": params,
        "result": {"name": "result", "schema": _told_once(method.result, shapes)},
        "errors": [
            *({"$ref": f"#/components/errors/{name}"} for name in _COMMON_ERRORS.values()),
            *({"code": error.code, "message": error.type} for error in method.errors),
        ],
        "examples": [
            {
                "name": "example",
                "params": [{"name": name, "value": value} for name, value in method.example.items()],
            }
        ],
        "x-scopes": sorted({method.scope, *method.also}),
        "x-repeatable": method.repeatable,
    }


def _told_once(schema: Any, shapes: dict[str, Any]) -> Any:
    """Returns the schema with references in the place of titled ones, which go into ``shapes``."""
    if isinstance(schema, (list, tuple)):
        return [_told_once(item, shapes) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    told = {name: _told_once(value, shapes) for name, value in schema.items()}
    title = told.get("title")
    if not isinstance(title, str):
        return told
    if "null" in told["type"]:
        bare = {**told, "type": "object"}
        shapes.setdefault(title, bare)
        return {"anyOf": [{"$ref": f"#/components/schemas/{title}"}, {"type": "null"}]}
    shapes.setdefault(title, told)
    return {"$ref": f"#/components/schemas/{title}"}
