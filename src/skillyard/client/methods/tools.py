"""Methods as tools of a model: their descriptions for its API, and the answers to its calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from skillyard.client.errors import BadArgument, BadReply, RpcError
from skillyard.client.method_table import RUNS
from skillyard.client.methods.calling import Calls, Json, Waits, blocking
from skillyard.values import dataclass

EVERYDAY = (
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
)
"""Methods of the Skills Protocol that a model calls in its work; the eighth is the guide, which is its instructions."""
_PLAIN = {"execute_skill", "run_code"} & RUNS
"""Methods that leave of their answer what a model needs when ``detail`` is ``brief``."""
_FOR_PROGRAMS = {"detail", "idempotency_key", "labels", "detach"}
"""Parameters of programs, left out of what a model is told."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A method in the form that models take.

    ``name`` has underscores in the place of dots, which some models refuse; ``method`` is the true name. ``parameters``
    is a JSON Schema of the type object.
    """

    name: str
    method: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to a model's call as JSON text. ``failed`` tells a refusal or a failed run."""

    text: str
    failed: bool


class ToolMethods(Calls):
    """Offers methods to a model, and answers its calls."""

    async def tools(self, methods: Sequence[str] = EVERYDAY) -> list[Tool]:
        """Returns those of ``methods`` that the token may call, in the order that was asked for.

        Raises BadReply for a server whose description cannot be read.
        """
        described = (await self.call("rpc.discover")).get("methods")
        if not isinstance(described, list):
            raise BadReply("the server does not describe its methods")
        found = {tool.method: tool for tool in map(_tool, described)}
        return [found[name] for name in methods if name in found]

    async def call_tool(self, tool: Tool, arguments: Mapping[str, Any] | str) -> ToolAnswer:
        """Calls a tool with what a model wrote, as an object or as JSON text.

        A call that is refused gives an answer that names the remedy, so that the model can send a better one. Raises
        ConnectionFailed's subclasses: a model cannot help there.
        """
        try:
            asked = _object(arguments)
        except (ValueError, RecursionError) as error:
            return _refusal("InvalidParams", f"arguments: not a JSON object: {error}; send an object")
        if tool.method in _PLAIN:
            asked = {"detail": "brief", **asked}
        try:
            result = await self.call(tool.method, asked)
        except RpcError as error:
            return _refusal(error.type, str(error), error.details)
        except BadArgument as error:
            return _refusal("InvalidParams", str(error))
        return ToolAnswer(_text(result), result.get("status") == "failed")


class SyncToolMethods(Waits):
    """:class:`ToolMethods` without ``await``."""

    tools = blocking(ToolMethods.tools)
    call_tool = blocking(ToolMethods.call_tool)


def _tool(described: Any) -> Tool:
    try:
        method, params = str(described["name"]), described["params"]
        schema = {
            "type": "object",
            "properties": {each["name"]: each["schema"] for each in params if each["name"] not in _FOR_PROGRAMS},
            "required": [each["name"] for each in params if each.get("required")],
            "additionalProperties": False,
        }
        return Tool(method.replace(".", "_"), method, str(described["summary"]), schema)
    except (KeyError, TypeError, AttributeError):
        raise BadReply("the server describes a method in a form that is not known") from None


def _object(arguments: Mapping[str, Any] | str) -> Json:
    read = json.loads(arguments or "{}", parse_constant=_no_number) if isinstance(arguments, str) else arguments
    if not isinstance(read, Mapping):
        raise ValueError(f"it is {json.dumps(read)[:80]}")
    return dict(read)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refusal(kind: str, message: str, data: Mapping[str, Any] | None = None) -> ToolAnswer:
    return ToolAnswer(_text({"error": {"type": kind, "message": message, **({"data": data} if data else {})}}), True)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
