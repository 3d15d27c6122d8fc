"""Standard streams, variables of a file, and the values of options such as ``--args``."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import shape
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.progress import transfer
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target


def stand_in() -> None:
    """Makes all three usable. A closed one is refused when it is needed, and no other file gets its number."""
    names = ("stdin", "stdout", "stderr")
    closed = [name for number, name in enumerate(names) if not _is_open(number)]
    for _ in closed:  # in ascending order these are the lowest free numbers
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if "stdin" in closed:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()), "utf-8")
    if "stdout" in closed:
        sys.stdout = _text(_ClosedOutput(), "strict")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Unbuffered, all of them: a writer that keeps what it could not write would fail again at the very end. Nobody
    # can be told that standard error fails: what a command did and its exit code stay as they are.
    sys.stderr = _text(_Deaf(2, "w", closefd=False), "backslashreplace")


def take_variables(path: Path) -> None:
    """Adds the variables of a ``.env`` to the environment, which keeps those that it has. Raises Failure.

    It is read as python-dotenv does, whose users wrote it, and no shell: a list in JSON keeps its quotes.
    """
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    text = read_text(path)
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:  # python-dotenv itself leaves out such lines
            raise Failure(f"{path}: line {binding.original.line} is not NAME=VALUE", "put its value into quotes")
    for name, value in dotenv_values(stream=io.StringIO(text)).items():
        if value is None or "=" in name or "\0" in name + value:
            raise Failure(f"{path}: {name!r} is not a variable with a value", "write NAME=VALUE")
        os.environ.setdefault(name, value)


def read_stdin(field: str) -> str:
    """Returns the whole of standard input as text. Raises Failure for text that is not UTF-8 in any locale."""
    return decoded(field, sys.stdin.buffer.read())


def decoded(field: str, data: bytes) -> str:
    """Decodes UTF-8. Raises Failure with ``field`` and the place of the first wrong byte."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        said = f"{field}: must be UTF-8 text (got the byte 0x{data[error.start]:02x} at offset {error.start})"
        raise Failure(said, "`iconv -f latin1 -t utf-8` converts text in Latin-1") from None


class _ClosedInput(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ARG002 - io's signature
        raise Failure("standard input is closed", "give it a file with <, or a pipe")


class _ClosedOutput(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ARG002
        said = "standard output is closed, and there was something to write to it"
        raise Failure(said, "> /dev/null drops it", Exit.FAILED)


class _Deaf(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _text(raw: io.RawIOBase, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(cast("BinaryIO", raw), "utf-8", errors, write_through=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


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
