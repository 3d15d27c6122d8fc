"""THE table: every method that every face offers, and the one way to call it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Protocol

from skillyard.domain.errors import MethodNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.blobs import methods as blobs
from skillyard.engine.commands import artifacts, task_methods
from skillyard.engine.commands import methods as command_methods
from skillyard.engine.jobs import methods as job_methods
from skillyard.engine.method import OBJECT, STRING, Method, NoService, answer, list_of, obj
from skillyard.engine.network import methods as policy_methods
from skillyard.engine.packages import methods as environment_methods
from skillyard.engine.runs import drain
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
        drain,
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
    errors=(),
    surface="operator",
    repeatable=True,
    handler=_discover,
    service=NoService,
)
METHODS[DISCOVER.name] = DISCOVER


@cache
def openrpc() -> dict[str, Any]:
    """Returns the OpenRPC document of the table. It is shared: nobody changes it."""
    from skillyard.engine.openrpc import document

    return document(METHODS.values())


@lru_cache(maxsize=64)
def _openrpc_of(names: tuple[str, ...]) -> dict[str, Any]:
    from skillyard.engine.openrpc import document

    return document(METHODS[name] for name in names)


class Services(Protocol):
    """The services that handlers get, by their classes. ``strict_params`` refuses parameters of unknown names."""

    strict_params: bool
    drain: drain.Drain
    by_class: Mapping[type[Any], Any]


async def invoke(services: Services, principal: Principal, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Authorises the caller, checks the parameters and calls the method.

    Raises MethodNotFound, Forbidden, InvalidInput, the errors that the method's row lists, and Busy for new work while
    the server drains.
    """
    method = METHODS.get(name)
    if method is None:
        raise MethodNotFound(f"there is no method '{name[:64]}'")
    if principal.profile is not None:
        principal.require_tool(name)
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
