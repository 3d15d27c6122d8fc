"""YAML read as plain values, without its surprises.

The parser is PyYAML's; the values are built here from its events, so that nothing is constructed that JSON does not
have: anchors, aliases, merge keys, tags, duplicate keys and further documents are refused; ``yes``, ``no``, dates,
octal and sexagesimal numbers stay the strings that they look like (YAML 1.2's core rules, decimal numbers only).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_NODES = 5000

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,15})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}


class YamlRefused(ValueError):
    """The text is not YAML, or uses what is refused; ``line`` counts from 1 within the text."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class Document:
    """A document's ``value``, and by path the ``source`` of scalars and the ``lines`` of nodes."""

    def __init__(self, text: str) -> None:
        """Raises YamlRefused."""
        self.source: dict[Path, str] = {}
        self.lines: dict[Path, int] = {}
        self._nodes = 0
        self._breaks = _stand_ins(text)
        if len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise YamlRefused(f"must have at most {MAX_BYTES} bytes", 1)
        try:
            replaced = text.translate({ord(mark): ord(stand_in) for stand_in, mark in self._breaks.items()})
            self.value = self._document(yaml.parse(replaced, Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            line = next((m.line + 1 for m in (error.problem_mark, error.context_mark) if m), 1)
            raise YamlRefused(f"is not valid YAML: {error.problem or error.context}", line) from None
        except yaml.YAMLError as error:
            raise YamlRefused(f"is not valid YAML: {_reason(error)}", _line_of(text, error)) from None

    def _document(self, events: Iterator[yaml.Event]) -> Any:
        value: Any = None
        seen = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                seen += 1
                if seen > 1 or event.version or event.tags:
                    raise YamlRefused("must be one document without directives", _line(event))
            elif isinstance(event, yaml.NodeEvent):
                value = self._node(event, events, ())
        return value

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], path: Path) -> Any:
        self._check(event, path)
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            self.source[path] = event.value = self._restored(event.value)
            return _scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, path)
        return self._mapping(events, path)

    def _check(self, event: yaml.Event, path: Path) -> None:
        self._nodes += 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise YamlRefused("must not use anchors or aliases", _line(event))
        if getattr(event, "tag", None) is not None:
            raise YamlRefused("must not use tags", _line(event))
        if len(path) > MAX_DEPTH or self._nodes > MAX_NODES:
            raise YamlRefused(f"must not have more than {MAX_DEPTH} levels or {MAX_NODES} values", _line(event))

        if not _is_unicode(getattr(event, "value", "")):
            raise YamlRefused("must not escape surrogates, which are not characters", _line(event))

    def _sequence(self, events: Iterator[yaml.Event], path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, (*path, len(items))))
        return items

    def _mapping(self, events: Iterator[yaml.Event], path: Path) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._key(event, path)
            if key in items:
                raise YamlRefused(f"names the key '{key[:64]}' twice", _line(event))
            self.lines[(*path, key)] = _line(event)
            items[key] = self._node(next(events), events, (*path, key))
        return items

    def _key(self, event: yaml.Event, path: Path) -> str:
        self._check(event, path)
        if not isinstance(event, yaml.ScalarEvent):
            raise YamlRefused("must have keys that are plain strings", _line(event))
        if event.value == "<<" and event.style is None:
            raise YamlRefused("must not use merge keys", _line(event))
        return self._restored(str(event.value))

    def _restored(self, text: str) -> str:
        return "".join(self._breaks.get(c, c) for c in text) if self._breaks else text


def _stand_ins(text: str) -> dict[str, str]:
    """Returns unused characters that stand for those that break lines in YAML 1.1 only.

    PyYAML reads YAML 1.1; values keep these characters, and lines count as in editors (YAML 1.2 §5.4).
    """
    free = (chr(point) for point in range(0xF0000, 0x100000) if chr(point) not in text)
    return {next(free): mark for mark in "\x85\u2028\u2029" if mark in text}


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if event.style is not None:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "reason", "") or error).splitlines()[0]


def _line_of(text: str, error: yaml.YAMLError) -> int:
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
