"""The returned value, made to fit: an object of at most 4,096 bytes of compact JSON (skills-protocol §4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.work.outcome import Outcome
from skillyard.engine.runs.collect import BlobTarget
from skillyard.engine.runs.failure import SUMMARY_CHARACTERS, Failure
from skillyard.engine.runs.text import clean, first
from skillyard.engine.secrets.redact import Redaction

MAX_OUTPUT = 4096
AT_ONCE = 64 * 1024
"""Bytes of JSON that may be read or written on the event loop."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Unfit(Exception):
    """The returned value is the run's failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Output:
    """``value`` fits; ``blob`` holds the whole value of ``size`` bytes when it did not."""

    value: dict[str, Any]
    size: int
    blob: str | None = None


async def fit_output(
    value: dict[str, Any], redaction: Redaction, target: BlobTarget, *, spill: bool, raw_size: int
) -> Output:
    """The value without secrets, or what stands for it when it is too large. Raises Unfit.

    ``raw_size`` is how long its JSON was when it came: what is long is worked on beside the event loop.
    """
    if raw_size <= AT_ONCE:
        value, data = _encoded(value, redaction)
    else:
        value, data = await asyncio.to_thread(_encoded, value, redaction)
    if len(data) <= MAX_OUTPUT:
        return Output(value, len(data))
    if not spill:
        raise Unfit(_too_large(f"the output has {len(data)} bytes of JSON, more than {MAX_OUTPUT}"))
    try:
        info = await target.create(None, "application/json", data)
    except SkillyardError as error:
        message = f"the output of {len(data)} bytes could not be kept as a blob: {error.message}"
        raise Unfit(_too_large(message)) from error
    stand_in = {"truncated": True, "blob_id": info.blob_id, "size_bytes": len(data)}
    return Output(stand_in, len(data), info.blob_id)


def _encoded(value: dict[str, Any], redaction: Redaction) -> tuple[dict[str, Any], bytes]:
    try:
        value = redaction.value(value)
        return value, _encode(value).encode()
    except RecursionError:
        raise not_serializable("nested too deep") from None
    except UnicodeEncodeError:
        raise not_serializable("a string holds lone surrogates") from None
    except ValueError as error:
        raise not_serializable(str(error)) from None


def _too_large(message: str) -> Failure:
    return Failure("OutputTooLarge", message, Outcome.OUTPUT)


def not_serializable(reason: str) -> Unfit:
    message = f"the returned value is not JSON-serializable: {reason}"
    return Unfit(Failure("OutputNotSerializable", message, Outcome.EXIT))


def completed_summary(
    value: dict[str, Any], output: Output, wall_ms: float, redaction: Redaction, notes: Iterable[str]
) -> str:
    """The function's own ``summary`` when it returned one, else a generated one (row 7)."""
    own = value.get("summary")
    if isinstance(own, str) and own.strip():
        return redaction.cut(clean(own), first(SUMMARY_CHARACTERS))
    summary = f"Completed in {wall_ms:.0f} ms"
    if output.blob is not None:
        summary += f"; the output of {output.size} bytes was stored as {output.blob}"
    return "; ".join((summary, *notes))[:SUMMARY_CHARACTERS]
