"""``[mcp]``: the methods and skills that agents get as tools over MCP."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator

from skillyard.config.gateway.servers import McpServers
from skillyard.config.section import MIB, Section
from skillyard.domain.errors import InvalidInput, shown

PROTOCOL_TOOLS = (
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "load_skills_protocol_guide",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
)
"""The methods of the Skills Protocol."""
NONE: Literal["none"] = "none"
APPROVED: Literal["approved"] = "approved"
Exposed = Literal["none", "approved"] | tuple[str, ...]
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")
_TOOL = re.compile(r"[a-z_.*]{1,64}")


def _exposed(value: Any) -> Exposed:
    if value in (NONE, APPROVED):
        return NONE if value == NONE else APPROVED
    if isinstance(value, list | tuple) and all(isinstance(each, str) and _PATTERN.fullmatch(each) for each in value):
        return tuple(value)
    rule = f"must be '{NONE}', '{APPROVED}' or a list of patterns of skill names such as 'sales.*'"
    raise InvalidInput("mcp.expose_skills", rule, shown(value))


def _tools(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(each, str) and _TOOL.fullmatch(each) for each in value):
        return tuple(value)
    rule = "must be a list of names or patterns of methods, such as 'run_code' or 'skills.*'"
    raise InvalidInput("mcp.tools", rule, shown(value))


def _code_tools(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(each, str) and _PATTERN.fullmatch(each) for each in value):
        return tuple(value)
    raise InvalidInput("mcp.code_tools", "must be a list of names or patterns of tools, such as 'git__*'", shown(value))


class McpSettings(Section):
    """The tools of `/mcp` and of `skillyard mcp`."""

    model_config = ConfigDict(title="mcp")

    enabled: bool = Field(default=True, description="Whether the server answers at `/mcp`.")
    tools: Annotated[tuple[str, ...], PlainValidator(_tools)] = Field(
        default=PROTOCOL_TOOLS,
        description="Methods that are offered as tools to tokens without a profile: names, or patterns such as"
        " `skills.*`. A token with a profile is offered those of the protocol and of `skills.*` that it allows.",
        json_schema_extra={"kind": "list of text"},
    )
    tool_names: Literal["underscores", "dots"] = Field(
        default="underscores",
        description="How tools with a dot in their name are listed: `skills_load` for models that refuse dots, or"
        " `skills.load`. A call may use either.",
    )
    expose_skills: Annotated[Exposed, PlainValidator(_exposed), PlainSerializer(lambda value: value)] = Field(
        default=NONE,
        description="Skills that are also tools of their own: `none`, `approved` for those that an operator approved,"
        " or patterns of names.",
        json_schema_extra={"kind": "`none` or `approved` or list of text"},
    )
    most_skill_tools: int = Field(
        default=64,
        ge=1,
        le=1000,
        description="Most skills that are tools of their own, by name; models choose badly among many.",
    )
    approvals: Literal["ask", "never"] = Field(
        default="ask",
        description="Whether the user of a client is asked to approve the needs of an unapproved skill, where the token"
        " has the scope `admin` and the client can ask. Use `never` with clients that answer for their user.",
    )
    sessions: int = Field(
        default=1000,
        ge=1,
        description="Most sessions of clients that speak a revision before 2026-07-28, and most subscriptions of later"
        " ones.",
    )
    sessions_each: int = Field(
        default=250, ge=1, description="Such sessions, and such subscriptions, of one principal."
    )
    session_idle_s: float = Field(
        default=1800.0, gt=0, description="Time without a request after which such a session ends."
    )
    processes: int = Field(default=16, ge=1, description="Most connections to MCP servers at once, of all principals.")
    processes_each: int = Field(default=8, ge=1, description="Connections to MCP servers of one principal at once.")
    code_tools: Annotated[tuple[str, ...], PlainValidator(_code_tools)] = Field(
        default=(),
        description="Tools of servers that code may call when it asks for them (`run_code` with `tools`): full names or"
        " patterns such as `git__*`. Each must be approved, and allowed to the caller.",
        json_schema_extra={"kind": "list of text"},
    )
    code_calls: int = Field(default=1000, ge=1, description="Calls of tools that the code of one run may make.")
    code_bytes: int = Field(
        default=64 * MIB, ge=1024, description="Bytes of all calls of tools by one run, and of their answers."
    )
    servers: McpServers = Field(default_factory=dict)
