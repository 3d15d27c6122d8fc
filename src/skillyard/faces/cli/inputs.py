"""``--args`` and ``--blob``: what goes into a run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import shape
from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.progress import transfer
from skillyard.faces.cli.streams import decoded, read_stdin

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target

_KEYED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{blob:([^{}]+)\}")

_DEEPEST = 97
"""The deepest nesting of arguments; with the request around them it makes the server's 100."""
_TOO_DEEP = f"args: must be at most {_DEEPEST} arrays and objects deep"
_FLATTEN = "flatten it, or pass it as a file with --blob"
ARGS_HELP = "The function's argument: a JSON object, @FILE holding one, or - for standard input."
BLOB_HELP = (
    "Upload FILE and let the run read it. KEY=FILE passes the blob's id as args[KEY]. A plain FILE replaces "
    "{blob:NAME} in --args (NAME: the file's name); where nothing names it, its id joins the list "
    'args["blobs"]. Instead of FILE: - for standard input, or the id of a stored blob. May repeat.'
)


@dataclass(frozen=True, slots=True)
class BlobInput:
    """One ``--blob``: ``key`` of KEY=FILE, ``name`` for placeholders, ``source`` a path, ``-`` or an id."""

    source: str
    key: str | None = None

    @classmethod
    def parse(cls, text: str) -> BlobInput:
        if found := _KEYED.fullmatch(text):
            return cls(found[2], found[1])
        return cls(text)

    @property
    def name(self) -> str:
        return self.key or (self.source if is_blob_id(self.source) else Path(self.source).name)


def parse_args(text: str | None) -> dict[str, Any]:
    """Returns the object of ``--args``. Raises Failure naming what is wrong."""
    if text is None:
        return {}
    if text == "-":
        text = read_stdin("args")
    elif text.startswith("@"):
        text = read_text(Path(text[1:]))
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Failure(f"args: not JSON: {error}", 'write it like \'{"key": "value"}\'') from None
    except RecursionError:
        raise Failure(_TOO_DEEP, _FLATTEN) from None
    if _depth(value) > _DEEPEST:
        raise Failure(_TOO_DEEP, _FLATTEN)
    if not isinstance(value, dict):
        raise Failure(f"args: must be a JSON object (got {shape(value)})")
    return value


def parse_limits(texts: Iterable[str]) -> dict[str, int | float]:
    """Returns the limits of ``NAME=NUMBER`` pairs. Raises Failure."""
    limits: dict[str, int | float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            limits[name] = int(number) if number.isdecimal() else float(number)
        except ValueError:
            raise Failure(f"limit: must be NAME=NUMBER, like memory_mb=1024 (got {text!r})") from None
    return limits


def parse_network(rules: Sequence[str]) -> list[str]:
    """Returns the rules of ``--network``; ``none`` alone means no network. Raises Failure."""
    if "none" not in rules:
        return list(rules)
    if len(rules) > 1:
        raise Failure("network: 'none' goes with no other rule")
    return []


def read_text(path: Path) -> str:
    """Returns a file's text. Raises Failure for text that is not UTF-8."""
    return decoded(str(path), path.read_bytes())


def place_blobs(args: dict[str, Any], inputs: Sequence[BlobInput], ids: Sequence[str]) -> dict[str, Any]:
    """Returns ``args`` with the blobs' ids where the inputs ask for them. Raises Failure for a name given twice or
    a placeholder that no input has."""
    by_name = dict(zip((blob.name for blob in inputs), ids, strict=True))
    if len(by_name) < len(inputs):
        raise Failure("blob: two inputs have the same name", "give each a key: --blob KEY=FILE")
    used: set[str] = set()
    placed: dict[str, Any] = _substituted(args, by_name, used)
    for blob, blob_id in zip(inputs, ids, strict=True):
        if blob.key is None:
            continue
        if blob.key in args:
            raise Failure(f"blob: args has a key {blob.key!r} already")
        placed[blob.key] = blob_id
    rest = [by_name[b.name] for b in inputs if b.key is None and b.name not in used]
    return {"blobs": rest, **placed} if rest else placed


def upload(target: Target, blob: BlobInput, *, quiet: bool) -> str:
    """Returns the id of the blob that an input means, stored now unless it is one already."""
    if is_blob_id(blob.source):
        return blob.source
    with transfer(blob.name, quiet=quiet) as progress:
        stored = target.put_blob(_source(blob.source), guess_kind(blob.source), progress=progress)
    return stored.blob_id


def guess_kind(name: str) -> str:
    """Returns a MIME type by the file's name."""
    from mimetypes import guess_type

    return guess_type(name)[0] or "application/octet-stream"


def _source(name: str) -> str | IO[bytes]:
    return sys.stdin.buffer if name == "-" else name


def _substituted(value: Any, by_name: dict[str, str], used: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _substituted(item, by_name, used) for key, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, by_name, used) for item in value]
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: _named(found[1], by_name, used), value)
    return value


def _named(name: str, by_name: dict[str, str], used: set[str]) -> str:
    if name not in by_name:
        known = ", ".join(by_name) or "none"
        raise Failure(f"args: no --blob is named {name!r} (there are: {known})")
    used.add(name)
    return by_name[name]


def _depth(value: Any) -> int:
    """Returns the depth of arrays and objects inside each other."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
