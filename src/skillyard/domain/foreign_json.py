"""Parses JSON from foreign code; refuses texts that other parsers refuse or die of."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 256
"""Most arrays and objects inside each other: far below what any JSON library takes."""

MAX_CONTAINERS = 200_000
"""Most arrays and objects altogether: each takes fifty times its two bytes, and the garbage collector walks all."""

_STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_BRACKETS = re.compile(r"[\[{]+|[\]}]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class BadJson(ValueError):
    """It is not JSON that can be passed on; the message says why and repeats nothing of it."""


def parse_json(data: bytes) -> Any:
    """Returns the value of UTF-8 JSON. Every number is finite, lone surrogates have become U+FFFD, of equal keys the
    last counts. Raises BadJson, nothing else."""
    try:
        text = data.decode()
        if _too_many(text):
            raise ValueError(f"it has more than {MAX_CONTAINERS} arrays and objects")
        value = _decoder.decode(text)
    except UnicodeDecodeError:
        raise BadJson("it is not UTF-8") from None
    except RecursionError:
        raise BadJson("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"it is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # ours below, and sys.set_int_max_str_digits
        raise BadJson(str(error)) from None
    if _too_deep(text):
        raise BadJson(f"it is nested deeper than {MAX_DEPTH} levels")
    return _clean(value) if _ESCAPED_SURROGATE.search(text) else value


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def _too_many(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_CONTAINERS:
        return False
    bare = _STRINGS.sub("", text)
    return bare.count("[") + bare.count("{") > MAX_CONTAINERS


def _too_deep(text: str) -> bool:
    """Returns whether a text that is JSON is nested too deep."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for brackets in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += len(brackets) if brackets[0] in "[{" else -len(brackets)
        if depth > MAX_DEPTH:
            return True
    return False


def _clean(value: Any) -> Any:
    """Returns a value without lone surrogates; its depth was checked."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
