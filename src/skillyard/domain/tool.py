"""Tools of MCP servers: their definitions, their names and their results. All of it is written by others."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.values import dataclass

SEPARATOR = "__"
"""Between the names of a server and of its tool. No server's name holds it or ends with its half, so that two servers
never have one name for their tools; no method of ours holds it."""
MOST_TOOLS = 256
"""Tools of one server."""
MOST_DEFINITION = 32 * 1024
"""Bytes of one definition as JSON."""
_SERVER = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_TOOL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\U000e0000-\U000e007f\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]"
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3}"
)
"""Characters that nobody sees and models read, that change the order of a text, or that steer a terminal."""


def check_server_name(where: str, name: str) -> str:
    """Returns the name of a server, which can be imported. Raises InvalidInput."""
    if len(name) > 32 or not _SERVER.fullmatch(name):
        rule = "must be a letter, then letters, digits and single underscores between them, all small, at most 32"
        raise InvalidInput(where, rule, shown(name))
    return name


def offered_name(server: str, tool: str) -> str:
    """Returns the one name of a tool among all that skillyard offers."""
    return f"{server}{SEPARATOR}{tool}"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server describes it. ``definition`` has the members that models read, with their names in MCP."""

    name: str
    definition: Mapping[str, Any] = field(repr=False)
    text: str = field(repr=False)
    """The definition as canonical JSON."""

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that a model is told of the tool."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def description(self) -> str:
        return str(self.definition.get("description", ""))

    @property
    def hidden(self) -> str:
        """Returns the first invisible character in the definition, as ``U+200B``; empty without one."""
        found = _HIDDEN.search(_spelt(self.definition))
        return f"U+{ord(found[0]):04X}" if found else ""


_TOLD = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


def tool_of(told: Any) -> Tool:
    """Returns the tool of a definition in MCP's form. Raises InvalidInput for one that cannot be offered."""
    if not isinstance(told, Mapping) or not isinstance(name := told.get("name"), str) or not _TOOL.fullmatch(name):
        rule = "must have a name of letters, digits, _ . and -, at most 64"
        raise InvalidInput("tool", rule, shape(told.get("name") if isinstance(told, Mapping) else told))
    definition = {key: told[key] for key in _TOLD if told.get(key) is not None}
    for key, kind in (("title", str), ("description", str), ("inputSchema", dict), ("outputSchema", dict)):
        if key in definition and not isinstance(definition[key], kind):
            raise InvalidInput(f"tool.{key}", "is not of its type", shape(definition[key]))
    if "inputSchema" not in definition:
        raise InvalidInput("tool.inputSchema", "is missing")
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if len(text.encode("utf-8", "replace")) > MOST_DEFINITION:
        raise InvalidInput("tool", f"must have a definition of at most {MOST_DEFINITION} bytes", shown(name))
    return Tool(name, definition, text)


def tool_of_text(text: str) -> Tool:
    """Returns the tool of a stored definition."""
    return tool_of(json.loads(text))


def _spelt(value: Any) -> str:
    """Returns every text in a value that was parsed within bounds."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}\n{_spelt(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "\n".join(map(_spelt, value))
    return ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer of a tool: ``content`` has text, images and audio; ``structured`` is any JSON, or None."""

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Any = None
    is_error: bool = False

    @property
    def text(self) -> str:
        """Returns the text of the answer."""
        return "\n".join(str(part["text"]) for part in self.content if part.get("type") == "text")


class ToolState(StrEnum):
    """APPROVED tools are offered. NEW and CHANGED ones are held back until they are approved (again), GONE ones are
    approved and their server has them no more."""

    NEW = "new"
    APPROVED = "approved"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ToolRow:
    """A tool with its approval. ``seen`` is its server's latest definition, None for one that is gone; ``approved`` is
    the definition that an operator approved, None for one that was not."""

    server: str
    name: str
    seen: Tool | None
    approved: Tool | None
    seen_at: float
    approved_at: float | None = None
    approved_by: str = ""

    @property
    def state(self) -> ToolState:
        if self.approved is None:
            return ToolState.NEW
        if self.seen is None:
            return ToolState.GONE
        return ToolState.APPROVED if self.seen.digest == self.approved.digest else ToolState.CHANGED
