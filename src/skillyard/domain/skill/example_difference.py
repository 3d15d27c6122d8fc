"""What an example expected beside what its run gave."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skillyard.domain.skill.example import Expectation, ExpectedBlob

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """``path`` says where, as ``output.rows[2].name``; the others are short texts."""

    path: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class GivenBlob:
    """``data`` is its beginning."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Given:
    """How a run ended; ``error`` and ``message`` are empty for one that completed. For a script ``output`` holds
    ``exit``, ``stdout`` and ``stderr``."""

    output: Any = None
    error: str = ""
    message: str = ""
    log: str = ""
    blobs: Sequence[GivenBlob] = ()


def differences(expect: Expectation, given: Given) -> Iterator[Difference]:
    """Nothing when the run gave what was expected; a schema is for who has a validator."""
    if expect.error is not None and given.error != expect.error:
        yield Difference("error", expect.error, _ended(given))
        return
    if expect.error is None and given.error:
        yield Difference("error", "none", _ended(given))
        return
    if expect.message is not None and expect.message not in given.message:
        yield Difference("message", f"a text with {_show(expect.message)}", _show(given.message))
    if expect.output is not None:
        yield from _part("output", expect.output, given.output)
    yield from _process(expect, given)
    yield from (_missing("log", text, given.log) for text in expect.log if text not in given.log)
    if expect.blobs is not None:
        yield from _blobs(expect.blobs, given.blobs)


def _ended(given: Given) -> str:
    return f"{given.error}: {given.message}"[:_SHOWN] if given.error else "the run completed"


def _process(expect: Expectation, given: Given) -> Iterator[Difference]:
    ended = given.output if isinstance(given.output, Mapping) else {}
    if expect.exit is not None and ended.get("exit") != expect.exit:
        yield Difference("exit", str(expect.exit), _show(ended.get("exit")))
    for name, texts in (("stdout", expect.stdout), ("stderr", expect.stderr)):
        said = str(ended.get(name, ""))
        yield from (_missing(name, text, said) for text in texts if text not in said)


def _part(path: str, expected: Any, got: Any) -> Iterator[Difference]:
    """Objects may hold more than expected, lists may not; numbers are compared as numbers."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key, value in expected.items():
            if key in got:
                yield from _part(f"{path}.{key}", value, got[key])
            else:
                yield Difference(f"{path}.{key}", _show(value), "nothing")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (wanted, found) in enumerate(zip(expected, got, strict=True)):
            yield from _part(f"{path}[{index}]", wanted, found)
    elif not _equal(expected, got):
        yield Difference(path, _show(expected), _show(got))


def _equal(expected: Any, got: Any) -> bool:
    numbers = isinstance(expected, (int, float)) and isinstance(got, (int, float))
    if numbers and not isinstance(expected, bool) and not isinstance(got, bool):
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-12)
    return type(expected) is type(got) and bool(expected == got)


def _blobs(expected: Sequence[ExpectedBlob], given: Sequence[GivenBlob]) -> Iterator[Difference]:
    if len(expected) != len(given):
        kinds = ", ".join(blob.kind for blob in given)
        yield Difference("blobs", str(len(expected)), f"{len(given)} ({kinds})" if given else "0")
        return
    for index, (wanted, blob) in enumerate(zip(expected, given, strict=True)):
        yield from _blob(f"blobs[{index}]", wanted, blob)


def _blob(path: str, wanted: ExpectedBlob, blob: GivenBlob) -> Iterator[Difference]:
    if wanted.kind is not None and wanted.kind != blob.kind:
        yield Difference(f"{path}.kind", wanted.kind, blob.kind)
    if wanted.contains is not None and wanted.contains.encode() not in blob.data:
        yield _missing(f"{path}.contains", wanted.contains, blob.data.decode("utf-8", "replace"))
    if wanted.bytes is not None and not blob.data.startswith(bytes.fromhex(wanted.bytes)):
        yield Difference(f"{path}.bytes", wanted.bytes, blob.data[: len(wanted.bytes) // 2].hex())
    if wanted.json is not None:
        try:
            value = json.loads(blob.data)
        except (ValueError, RecursionError):
            yield Difference(f"{path}.json", _show(wanted.json), "no JSON")
        else:
            yield from _part(f"{path}.json", wanted.json, value)


def _missing(path: str, text: str, said: str) -> Difference:
    return Difference(path, f"a text with {_show(text)}", _show(said))


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 40]} … {text[-30:]}"
