"""From what the entrypoint returned to the JSON object that the host gets (skills-protocol §4, row 6)."""

from __future__ import annotations

import json
import re
from math import isfinite

from .errors import OutputNotSerializable, OutputTooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEYS = (str, int, float, bool, type(None))
_STEPS = 100_000


def encode(value: object, max_bytes: int) -> bytes:
    """Compact UTF-8 JSON of an object: None is ``{}``, what is no dict is ``{"result": value}``.

    Raises OutputNotSerializable (also for NaN, infinities, cycles and what is nested too deep), OutputTooLarge.
    """
    try:
        data = _utf8(_encode(_as_object(value)))
    except RecursionError:
        raise OutputNotSerializable("what the function returned is nested too deep for JSON") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise OutputNotSerializable(_complaint(value) or str(error)) from None
    if len(data) > max_bytes:
        raise OutputTooLarge(
            f"what the function returned is {len(data)} bytes of JSON, and {max_bytes} is the limit;"
            " write it with runtime.blobs and return the blob id"
        )
    return data


def _as_object(value: object) -> object:
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"result": value}


def _utf8(text: str) -> bytes:
    """Lone surrogates, as file names may hold them, have no UTF-8 form and become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def _complaint(value: object) -> str:
    """What is wrong and where: ``output.rows[3].at is a datetime.datetime``; empty when it cannot be told."""
    for steps, (path, part) in enumerate(_parts(value)):
        if steps > _STEPS:
            break
        if isinstance(part, float) and not isfinite(part):
            return f"{path} is {part}, which JSON does not have"
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, _KEYS):
                    return f"{path} has a key of type {_type_name(key)}, which JSON does not have"
        elif not isinstance(part, (list, tuple, *_KEYS)):
            return f"{path} is of type {_type_name(part)}, which JSON does not have"
    return ""


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """The value and what is in it, depth first in order, each container once."""
    seen: set[int] = set()
    stack: list[Iterator[tuple[str, object]]] = [iter([("output", value)])]
    while stack:
        for path, part in stack[-1]:
            yield path, part
            if isinstance(part, (dict, list, tuple)) and id(part) not in seen:
                seen.add(id(part))
                stack.append(_inside(path, part))
                break
        else:
            stack.pop()


def _inside(path: str, part: dict[object, object] | list[object] | tuple[object, ...]) -> Iterator[tuple[str, object]]:
    if isinstance(part, dict):
        return ((f"{path}.{str(key)[:64]}", item) for key, item in part.items())
    return ((f"{path}[{index}]", item) for index, item in enumerate(part))


def _type_name(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name.removeprefix("builtins.").removeprefix("__run__.")
