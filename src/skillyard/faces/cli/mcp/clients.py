"""The configuration files of MCP clients: where each lies, and how a server stands in it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from skillyard.values import dataclass

Scope = Literal["user", "project", "local"]
Place = Callable[[Path, Path], Path]
"""Makes the path of a file from the home and the working directory."""
Entry = dict[str, Any]


class Unfit(Exception):
    """The file cannot be changed without losing something of it. The message says why."""


@dataclass(frozen=True, slots=True)
class ClientKind:
    """A client. The first scope is its default. ``key`` names the table of servers; ``typed`` entries say ``stdio``."""

    name: str
    places: Mapping[Scope, Place]
    key: str = "mcpServers"
    typed: bool = False
    toml: bool = False

    def file(self, scope: Scope, home: Path, here: Path) -> Path:
        return self.places[scope](home, here)

    def path(self, scope: Scope, here: Path) -> tuple[str, ...]:
        """Returns the keys of the table of servers. Claude Code keeps local servers by directory in the user's file."""
        return ("projects", str(here), self.key) if scope == "local" else (self.key,)

    def entry(self, command: str, args: list[str], env: Mapping[str, str]) -> Entry:
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": command, "args": args, **({"env": dict(env)} if env else {})}


def _in_home(*parts: str) -> Place:
    return lambda home, _here: home.joinpath(*parts)


def _here(*parts: str) -> Place:
    return lambda _home, here: here.joinpath(*parts)


_MAC = sys.platform == "darwin"
_CONFIG = ("Library", "Application Support") if _MAC else (".config",)
CLIENTS = {
    kind.name: kind
    for kind in (
        ClientKind(
            "claude-code",
            {"local": _in_home(".claude.json"), "user": _in_home(".claude.json"), "project": _here(".mcp.json")},
            typed=True,
        ),
        ClientKind("claude-desktop", {"user": _in_home(*_CONFIG, "Claude", "claude_desktop_config.json")}),
        ClientKind("cursor", {"user": _in_home(".cursor", "mcp.json"), "project": _here(".cursor", "mcp.json")}),
        ClientKind(
            "vscode",
            {"user": _in_home(*_CONFIG, "Code", "User", "mcp.json"), "project": _here(".vscode", "mcp.json")},
            key="servers",
            typed=True,
        ),
        ClientKind(
            "codex",
            {"user": _in_home(".codex", "config.toml"), "project": _here(".codex", "config.toml")},
            key="mcp_servers",
            toml=True,
        ),
        ClientKind(
            "gemini", {"user": _in_home(".gemini", "settings.json"), "project": _here(".gemini", "settings.json")}
        ),
    )
}


def changed(kind: ClientKind, text: str, path: tuple[str, ...], name: str, entry: Entry | None) -> str:
    """Returns the text of a file with an entry, or without it where that is None. All else stays.

    Raises Unfit.
    """
    return (_toml if kind.toml else _json)(text, path, name, entry)


def found(kind: ClientKind, text: str, path: tuple[str, ...], name: str) -> Any:
    """Returns the entry of this name; None without one. Raises Unfit for a file that cannot be read."""
    table: Any = read_toml(text) if kind.toml else read_json(text)
    for key in (*path, name):
        table = table.get(key) if isinstance(table, dict) else None
    return table


def is_ours(entry: Any) -> bool:
    """Returns whether an entry starts skillyard. Entries of others are never replaced."""
    if not isinstance(entry, dict) or not isinstance(entry.get("args"), list):
        return False
    words = [Path(str(entry.get("command"))).name, *map(str, entry["args"])]
    return "skillyard" in words and "mcp" in words


def _with_entry(table: dict[str, Any], path: tuple[str, ...], name: str, entry: Entry | None) -> dict[str, Any]:
    """Returns a copy of nested tables with the entry, in the place that it had."""
    key, *rest = path
    inner = table.get(key, {})
    if not isinstance(inner, dict):
        raise Unfit(f"'{key}' is not a table")
    if rest:
        return {**table, key: _with_entry(inner, tuple(rest), name, entry)}
    if entry is not None:
        return {**table, key: {**inner, name: entry}}
    return {**table, key: {each: value for each, value in inner.items() if each != name}}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unfit("it has the same name twice in one object")
    return members


def read_json(text: str) -> dict[str, Any]:
    """Returns the table of a file. Raises Unfit."""
    try:
        table = json.loads(text, object_pairs_hook=_unique) if text.strip() else {}
    except RecursionError:
        raise Unfit("it is nested too deep") from None
    except ValueError as error:
        raise Unfit(f"it is not plain JSON ({error}); comments would be lost") from None
    if not isinstance(table, dict):
        raise Unfit("it is not a JSON object")
    return table


def _json(text: str, path: tuple[str, ...], name: str, entry: Entry | None) -> str:
    table = _with_entry(read_json(text), path, name, entry)
    indent = re.search(r"\n([ \t]+)\"", text)
    step: str | int = indent[1] if indent else 2
    return json.dumps(table, indent=step, ensure_ascii=False) + "\n"


HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")


def read_toml(text: str) -> dict[str, Any]:
    """Returns the table of a file. Raises Unfit."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Unfit("it is nested too deep") from None
    except ValueError as error:
        raise Unfit(f"it is not TOML ({error})") from None


def _toml(text: str, path: tuple[str, ...], name: str, entry: Entry | None) -> str:
    """Takes the entry's own lines out and appends its new ones. Every other line stays."""
    wanted = _with_entry(read_toml(text), path, name, entry)
    head = f"{path[0]}.{name}"
    quoted = f'{path[0]}."{name}"'
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        if header := HEADER.fullmatch(line.rstrip("\r\n")):
            inside = any(header[1] == own or header[1].startswith(f"{own}.") for own in (head, quoted))
        if not inside:
            kept.append(line)
    made = "".join(kept)
    if entry is not None:
        made = f"{made.rstrip()}\n\n" if made.strip() else ""
        made += f"[{head if re.fullmatch('[A-Za-z0-9_-]+', name) else quoted}]\n"
        made += "".join(f"{key} = {_value(value)}\n" for key, value in entry.items())
    try:
        read = tomllib.loads(made)
    except ValueError:
        read = {}
    if entry is None:
        read.setdefault(path[0], {})
    if read != wanted:
        raise Unfit(f"'{head}' is not a table of its own there")
    return made


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
