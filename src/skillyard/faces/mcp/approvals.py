"""Asks the client's user to approve the network and the secrets of a skill.

Only a principal that may approve is asked, by a client that can ask. In every other case nothing is approved, and the
run gets the least policy as over any other face.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp_types import (
    ElicitRequest,
    ElicitRequestedSchema,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillyard.domain.errors import Forbidden
from skillyard.domain.principal import Scope
from skillyard.faces.mcp.caller import Callers, Context
from skillyard.faces.mcp.following import clean
from skillyard.values import dataclass

KEY = "approval"
ANSWER_S = 600.0
_SKILL = {"execute_skill": "name", "skills.run_cmd": "skill_name", "skills.run_cmd_async": "skill_name"}
"""Methods that are asked for, with the parameter that names the skill."""
_FORM: ElicitRequestedSchema = {
    "type": "object",
    "properties": {
        "approve": {
            "type": "boolean",
            "title": "Approve",
            "description": "Let these bytes of the skill have what it asks for, in this run and in later ones.",
            "default": False,
        }
    },
    "required": ["approve"],
}


def boundary(callers: Callers) -> RequestStateBoundary:
    """Returns what seals the state that a client carries between a question and its answer."""
    security = RequestStateSecurity.ephemeral()
    security.bind_principal = lambda context: callers.principal_of(context).name
    return RequestStateBoundary(security, default_audience="skillyard")


@dataclass(frozen=True, slots=True)
class Approvals:
    callers: Callers
    ask: bool

    async def settle(
        self, context: Context, method: str, params: Mapping[str, Any], given: Mapping[str, Any], state: str | None
    ) -> InputRequiredResult | None:
        """Returns the question that is to be answered first; None when there is none, or no more.

        ``given`` and ``state`` are what the client sent back. Raises Forbidden when its user declined.
        """
        if not self._can_ask(context, method):
            return None
        needs = await self._needs(context, method, params)
        if needs is None:
            return None
        seen = json.dumps([needs["name"], needs["version"], needs["digest"], needs["needs"]], sort_keys=True)
        request = ElicitRequest(params=ElicitRequestFormParams(message=_question(needs), requested_schema=_FORM))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            answer = given.get(KEY)
            if state != seen or not isinstance(answer, ElicitResult):  # nobody saw the needs as they are now
                return InputRequiredResult(input_requests={KEY: request}, request_state=seen)
        else:
            with anyio.fail_after(ANSWER_S):
                answer = await context.session.elicit_form(request.params.message, _FORM, context.request_id)
        if answer.action != "accept" or (answer.content or {}).get("approve") is not True:
            raise Forbidden(f"the user declined what the skill '{needs['name']}' asks for", skill=needs["name"])
        approved = {key: needs[key] for key in ("name", "version", "digest")}
        await self.callers.call(
            context, "catalogue.approve", {**approved, "note": "approved by the user of an MCP client"}
        )
        return None

    def _can_ask(self, context: Context, method: str) -> bool:
        principal, capabilities = self.callers.principal_of(context), context.session.client_capabilities
        elicits = capabilities.elicitation if capabilities else None
        form = elicits is not None and (elicits.form is not None or elicits.url is None)
        may = Scope.ADMIN in principal.scopes and principal.may_call("catalogue.approve")
        return self.ask and method in _SKILL and form and may and principal.may_call("catalogue.needs")

    async def _needs(self, context: Context, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the needs of a skill that nobody approved; None for one that asks for nothing."""
        named = {"name": params.get(_SKILL[method]), "version": params.get("version")}
        if not isinstance(named["name"], str):
            return None
        needs = await self.callers.call(context, "catalogue.needs", {k: v for k, v in named.items() if v is not None})
        return None if needs["approved"] or not needs["needs"] else needs


def _question(needs: Mapping[str, Any]) -> str:
    rows = [f"- {row['need']}: {row['asked']}" for row in needs["needs"]]
    head = f"The skill {needs['name']} {needs['version']} ({needs['digest'][:12]}), which nobody approved, asks for:"
    return clean("\n".join([head, *rows, "Approve it only if you know where it is from."]))
