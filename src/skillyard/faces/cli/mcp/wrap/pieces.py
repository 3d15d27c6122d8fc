"""The servers in a configuration file, and the places of their commands in its text.

A command is replaced where it stands: every other byte of the file stays, so that the way back is exact.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skillyard.faces.cli.mcp.clients import HEADER, Unfit, read_json, read_toml
from skillyard.values import dataclass

Keys = tuple[str, ...]
"""The names of the tables that an entry lies in, and its own."""
Raw = Mapping[str, "str | None"]
"""The source of ``command`` and of ``args``; None where an entry has none."""
_TABLES: tuple[Keys, ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))
"""Claude, Cursor, Gemini and most others; Visual Studio Code; its settings."""
_CODEX = "mcp_servers"
_MOST_VALUE = 64 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Form:
    """A configuration file by its syntax."""

    toml: bool

    @classmethod
    def of(cls, file: Path) -> Form:
        return cls(file.suffix == ".toml")

    def read(self, text: str) -> dict[str, Any]:
        """Raises Unfit."""
        return read_toml(text) if self.toml else read_json(text)

    def servers(self, text: str) -> dict[Keys, Any]:
        """Returns the entries of all servers, whatever they are. Raises Unfit."""
        return dict(_entries(self.read(text), toml=self.toml))

    def raw(self, text: str, keys: Keys) -> dict[str, str | None]:
        """Returns the source of an entry's command and arguments. Raises Unfit."""
        found, entry = self._places(text, keys), _within(self.read(text), keys)
        raw = {key: text[place.start : place.end] if (place := found.get(key)) else None for key in _OURS}
        if any((source is None) != (key not in entry) for key, source in raw.items()):
            raise Unfit("its arguments cannot be found in the text; write it as a table of its own")
        if any(source is not None and self.value(source) != entry[key] for key, source in raw.items()):
            raise Unfit("its command cannot be told from another one's in the text")
        return raw

    def replaced(self, text: str, keys: Keys, raw: Raw) -> str:
        """Returns the text with another command and other arguments of one entry. Raises Unfit."""
        wanted = self.read(text)
        entry = _within(wanted, keys)
        for key, source in raw.items():
            entry.pop(key, None)
            if source is not None:
                entry[key] = self.value(source)
        made = self._edited(text, self._places(text, keys), raw)
        try:
            exact = self.read(made) == wanted
        except Unfit:
            exact = False
        if not exact:
            raise Unfit("its command cannot be replaced where it stands")
        return made

    def value(self, source: str) -> Any:
        return tomllib.loads(f"x = {source}")["x"] if self.toml else json.loads(source)

    def _places(self, text: str, keys: Keys) -> dict[str, _Place]:
        found = _toml_places(text, keys) if self.toml else _json_places(text, keys)
        if "command" not in found:
            raise Unfit("its command cannot be found in the text; write it as a table of its own")
        return found

    def _edited(self, text: str, places: Mapping[str, _Place], raw: Raw) -> str:
        changes = []
        for key, source in raw.items():
            place, command = places.get(key), places["command"]
            if source is not None and place is not None:
                changes.append((place.start, place.end, source))
            elif source is not None:
                named = key if self.toml else json.dumps(key)
                said = f"{command.before}{named}{' = ' if self.toml else ': '}{source}"
                changes.append((command.end, command.end, said if self.toml else f",{said}"))
            elif place is not None:
                changes.append((place.previous_end, place.end, ""))
        # The last first, so that earlier places stay; a command goes before arguments that are put behind it.
        for start, end, source in sorted(changes, key=lambda change: change[:2], reverse=True):
            text = text[:start] + source + text[end:]
        return text


_OURS = ("command", "args")


@dataclass(frozen=True, slots=True)
class _Place:
    """A member's value. ``before`` is the space before its name, ``previous_end`` the end of the member before it."""

    start: int
    end: int
    before: str
    previous_end: int


def _entries(table: Mapping[str, Any], *, toml: bool) -> Iterator[tuple[Keys, Any]]:
    if toml:
        yield from _members(table, (_CODEX,))
        return
    for keys in _TABLES:
        yield from _members(table, keys)
    projects = table.get("projects")  # Claude Code keeps servers of a directory there
    for name, project in projects.items() if isinstance(projects, dict) else ():
        if isinstance(project, dict):
            yield from ((("projects", name, *keys), entry) for keys, entry in _members(project, ("mcpServers",)))


def _members(table: Mapping[str, Any], keys: Keys) -> Iterator[tuple[Keys, Any]]:
    inner: Any = table
    for key in keys:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        yield from (((*keys, name), entry) for name, entry in inner.items())


def _within(table: dict[str, Any], keys: Keys) -> dict[str, Any]:
    for key in keys:
        table = table[key]
    return table


def _json_places(text: str, keys: Keys) -> dict[str, _Place]:
    start = _after_space(text, 0)
    for key in keys:
        start = _json_members(text, start)[key].start
    return _json_members(text, start)


def _json_members(text: str, start: int) -> dict[str, _Place]:
    """Returns the members of the object that begins at ``start`` of a text that is JSON."""
    decode = json.JSONDecoder().raw_decode
    found: dict[str, _Place] = {}
    end, at = start + 1, _after_space(text, start + 1)
    while text[at] == '"':
        name, colon = decode(text, at)
        value = _after_space(text, _after_space(text, colon) + 1)
        after = decode(text, value)[1]
        comma = text.rfind(",", end, at)
        found[name] = _Place(value, after, text[comma + 1 if comma >= 0 else end : at], end)
        end, at = after, _after_space(text, after)
        at = _after_space(text, at + 1) if text[at] == "," else at
    return found


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "it matches nothing, too"
    return match.end()


def _toml_places(text: str, keys: Keys) -> dict[str, _Place]:
    """Returns the members of a table that has a header of its own."""
    table, name = keys
    heads = {f"{table}.{name}", f'{table}."{name}"', f"{table}.'{name}'"}
    found: dict[str, _Place] = {}
    inside, at, end = False, 0, 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        if header := HEADER.fullmatch(bare):
            inside = header[1] in heads
        match = re.match(r"([ \t]*)([A-Za-z0-9_-]+)[ \t]*=[ \t]*", line)
        if inside and match and at >= end and match[2] not in found:
            start, broken = at + match.end(), _line_end(text, at)
            end = _toml_end(text, start)
            found[match[2]] = _Place(start, end, broken + match[1], at - len(broken))
        at += len(line)
    return found


def _toml_end(text: str, start: int) -> int:
    """Returns the end of the last line of a value. Raises Unfit for one that has none."""
    end = start
    while end < min(len(text), start + _MOST_VALUE):
        stop = text.find("\n", end)
        end = len(text) if stop < 0 else stop
        try:
            tomllib.loads(f"x = {text[start:end].removesuffix(chr(13))}")
        except ValueError:
            end += 1
            continue
        return end - 1 if text[start:end].endswith("\r") else end
    raise Unfit("a value in it has no end")


def _line_end(text: str, at: int) -> str:
    """Returns the line break before a place."""
    return "\r\n" if text[max(at - 2, 0) : at] == "\r\n" else "\n"
