"""Names and directories of a sandbox: ``filesystem.Filesystem`` of E2B's daemon, but for watches.

A program inside looks and changes; its words are hostile.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone, shape
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.sandbox.spec import Guest
from skillyard.engine.services.programs import python
from skillyard.faces.e2b import connect
from skillyard.faces.e2b.access import sandbox_id
from skillyard.faces.e2b.call import Call, number_of, text_of
from skillyard.faces.e2b.daemon import E2B_HOME, WORKSPACE, Answer, Place, by_path
from skillyard.faces.e2b.errors import (
    ALREADY_EXISTS,
    DENIED,
    EXHAUSTED,
    INTERNAL,
    INVALID,
    NOT_FOUND,
    UNIMPLEMENTED,
    NotRunning,
    RpcRefusal,
)

SERVICE = "/filesystem.Filesystem/"
MOST_DEPTH = 64
TIME_MS = 60_000
_CODES = (NOT_FOUND, ALREADY_EXISTS, INVALID, DENIED, EXHAUSTED, UNIMPLEMENTED, INTERNAL)
_TYPES = ("FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_UNSPECIFIED")
_TEXTS = ("name", "path", "size", "permissions", "owner", "group", "modifiedTime", "symlinkTarget")
_MOST_TEXT = 8192
_MODE = 0o7777


@cache
def _code() -> str:
    return files("skillyard.faces.e2b").joinpath("inside.py").read_text(encoding="utf-8")


def program(operation: str, path: str, **more: Any) -> Guest:
    """Returns the program inside for one operation."""
    return python(_code(), {"op": operation, "path": path, **more})


async def ask(place: Place, operation: str, path: str, **more: Any) -> dict[str, Any]:
    """Returns what the program inside tells of a path. Raises RpcRefusal, NotRunning, SandboxFault."""
    try:
        told = await place.programs.call(_code(), {"op": operation, "path": path, **more}, TIME_MS)
    except SandboxGone:
        raise NotRunning(sandbox_id(place.record)) from None
    return of_answer(told)


def said_object(line: bytes) -> dict[str, Any] | None:
    """Returns the object that a program inside said; None for anything else."""
    try:
        told = parse_json(line)
    except BadJson:
        return None
    return told if isinstance(told, dict) else None


def of_answer(told: dict[str, Any]) -> dict[str, Any]:
    """Returns the good answer of a program inside. Raises RpcRefusal for its refusal, SandboxFault for neither."""
    if isinstance(told.get("ok"), dict):
        return dict(told["ok"])
    code, message = told.get("error"), told.get("message")
    if code not in _CODES or not isinstance(message, str):
        raise SandboxFault("the program for files gave no answer that can be used")
    raise RpcRefusal(code, message[:1000])


def entry_of(value: object, asked: str) -> dict[str, Any]:
    """Returns an entry as clients get it, with its path below ``asked`` as they wrote it. Raises SandboxFault."""
    if not isinstance(value, dict) or value.get("type") not in _TYPES:
        raise SandboxFault("the program for files told no entry")
    told: dict[str, Any] = {"type": value["type"], "metadata": {}}
    for name in _TEXTS:
        text = value.get(name)
        if isinstance(text, str) and len(text) <= _MOST_TEXT:
            told[name] = text
    mode = value.get("mode")
    told["mode"] = mode & _MODE if isinstance(mode, int) else 0
    told["size"] = told["size"] if str(told.get("size", "")).isdigit() else "0"
    if value.get("isSymlink") is True:
        told["isSymlink"] = True
    for name in ("path", "symlinkTarget"):
        if name in told:
            told[name] = _shown(told[name], asked)
    return told


def _shown(path: str, asked: str) -> str:
    """Returns a path inside as its client knows it."""
    below = path == WORKSPACE or path.startswith(f"{WORKSPACE}/")
    if below and (asked == E2B_HOME or asked.startswith(f"{E2B_HOME}/")):
        return E2B_HOME + path[len(WORKSPACE) :]
    return path


class Names:
    """Looks at names, lists, makes, moves and removes them."""

    def calls(self) -> dict[str, Answer]:
        """Returns the calls by their paths."""
        return by_path(
            SERVICE, Stat=self.look, ListDir=self.list, MakeDir=self.make, Move=self.move, Remove=self.remove
        )

    async def look(self, call: Call, place: Place) -> None:
        await self._one(call, place, "look")

    async def make(self, call: Call, place: Place) -> None:
        await self._one(call, place, "make")

    async def list(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        path, depth = place.path(text_of(message, "path")), number_of(message, "depth", 1) or 1
        if not 1 <= depth <= MOST_DEPTH or depth != int(depth):
            raise RpcRefusal(INVALID, f"depth: must be a number from 1 to {MOST_DEPTH}, not {shape(depth)}")
        told = await ask(place, "entries", place.inside(path), depth=int(depth))
        found = told.get("entries")
        entries = [entry_of(each, path) for each in found] if isinstance(found, list) else []
        await connect.answer(call, {"entries": entries})

    async def move(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        source, to = place.path(text_of(message, "source")), place.path(text_of(message, "destination"))
        told = await ask(place, "move", place.inside(source), to=place.inside(to))
        await connect.answer(call, {"entry": entry_of(told.get("entry"), to)})

    async def remove(self, call: Call, place: Place) -> None:
        message = await connect.unary(call, place.owner)
        path = place.path(text_of(message, "path"))
        await ask(place, "remove", place.inside(path))
        await connect.answer(call, {})

    async def _one(self, call: Call, place: Place, operation: str) -> None:
        message = await connect.unary(call, place.owner)
        path = place.path(text_of(message, "path"))
        told = await ask(place, operation, place.inside(path))
        await connect.answer(call, {"entry": entry_of(told.get("entry"), path)})
