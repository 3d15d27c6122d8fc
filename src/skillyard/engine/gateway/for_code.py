"""The tools that the code of a run may call, and the answers to its calls.

The gate has judged the form of a call and counted it; here its right is looked at, each time anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from skillyard.config.faces.mcp import McpSettings
from skillyard.domain.errors import SkillyardError
from skillyard.domain.network.session import ToolBudget
from skillyard.domain.principal import Principal
from skillyard.domain.tool import offered_name
from skillyard.domain.work.record import RunStatus
from skillyard.engine.gateway.service import Called, Gateway
from skillyard.engine.network.run_network import Calls
from skillyard.engine.quotas import CallQuotas
from skillyard.engine.runs.failure import Refused
from skillyard.values import dataclass

RUN = "mcp.run"
"""The label of a call that names the run whose code made it."""


@dataclass(frozen=True, slots=True)
class CodeTools:
    """The tools of one run by server, its budget, and the answers to its calls."""

    names: Mapping[str, Mapping[str, str]]
    budget: ToolBudget
    calls: Calls

    @property
    def full_names(self) -> list[str]:
        return [offered_name(server, tool) for server, tools in self.names.items() for tool in tools]


class ToolsForCode:
    """Grants tools to code."""

    def __init__(self, gateway: Gateway, config: McpSettings, quotas: CallQuotas) -> None:
        """``quotas`` count each call as one of the caller's token."""
        self._quotas = quotas
        self._gateway = gateway
        self._config = config

    async def grant(
        self, principal: Principal, run_id: str, asked: Sequence[str], who: str = "the code asks"
    ) -> CodeTools:
        """Returns the tools that a run may call. Raises Refused for a pattern of which it may call none.

        ``who`` asks, for the message."""
        granted: dict[str, dict[str, str]] = {}
        offered = await self._gateway.catalogue.offered(principal)
        may = [each for each in offered if any(fnmatchcase(each.name, one) for one in self._config.code_tools)]
        for pattern in asked:
            found = [each for each in may if fnmatchcase(each.name, pattern)]
            if not found:
                why = "it is not approved, or not allowed to the caller"
                if not any(fnmatchcase(one, pattern) or fnmatchcase(pattern, one) for one in self._config.code_tools):
                    why = "the operator gives code none of it (mcp.code_tools)"
                raise Refused("PolicyRefused", f"tools: {who} for '{pattern}', and {why}")
            for each in found:
                granted.setdefault(each.server, {})[each.tool.name] = each.tool.description
        budget = ToolBudget(self._config.code_calls, self._config.code_bytes)
        return CodeTools(granted, budget, self._calls(principal, run_id, granted))

    def _calls(self, principal: Principal, run_id: str, granted: Mapping[str, Mapping[str, str]]) -> Calls:
        async def answer(request: bytes) -> bytes:
            told = json.loads(request)
            server, tool = told["server"], told["tool"]
            if tool not in granted.get(server, {}):
                return _refused("PolicyRefused", f"the run may not call '{tool}' of '{server}'; ask for it with tools")
            try:
                if principal.profile is not None:
                    self._quotas.count(principal)
                called = await self._gateway.call(principal, server, tool, told["arguments"], labels={RUN: run_id})
            except SkillyardError as error:
                return _refused(error.type, error.message)
            return _answer(called)

        return answer


def _answer(called: Called) -> bytes:
    record, result = called.record, called.result
    told: dict[str, Any] = {"run_id": record.run_id}
    if record.status is not RunStatus.COMPLETED:
        told["error"] = record.error
    elif result is not None:
        told["content"] = [dict(part) for part in result.content]
        told["structured"] = result.structured
    return json.dumps(told, separators=(",", ":")).encode()


def _refused(type_: str, message: str) -> bytes:
    return json.dumps({"error": {"type": type_, "message": message}}).encode()
