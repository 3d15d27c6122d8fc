"""THE table: every method that every face offers, and the one way to call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal
from skillyard.engine import (
    approvals,
    blobs,
    discovery,
    execution,
    live_network,
    operator,
    policy_methods,
    secret_methods,
)
from skillyard.engine.catalogue import diff as catalogue_diff
from skillyard.engine.catalogue import methods as catalogue_methods
from skillyard.engine.catalogue import problems as catalogue_problems
from skillyard.engine.catalogue import review as catalogue_review
from skillyard.engine.environments import methods as environment_methods
from skillyard.engine.method import Method, telling_no_secret

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

METHODS: dict[str, Method] = {
    method.name: method
    for module in (
        approvals,
        discovery,
        execution,
        blobs,
        operator,
        live_network,
        policy_methods,
        secret_methods,
        catalogue_methods,
        catalogue_diff,
        catalogue_problems,
        catalogue_review,
        environment_methods,
    )
    for method in module.TABLE
}


class UnknownMethod(SkillyardError):
    """No row of the table has this name (JSON-RPC 2.0 §5.1)."""

    type = "MethodNotFound"
    code = -32601


async def invoke(engine: Engine, principal: Principal, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Authorise, check the parameters and call.

    Raises UnknownMethod, Forbidden, InvalidInput and what the method's row lists.
    """
    method = METHODS.get(name)
    if method is None:
        raise UnknownMethod(f"there is no method '{name[:64]}'")
    method.authorise(principal)
    with telling_no_secret(name):
        return await method.handler(engine, principal, method.bind(params, strict=engine.config.strict_params))
