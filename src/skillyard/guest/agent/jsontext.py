"""JSON for the agent, by the parts of the standard library's that are written in C.

The package json takes longer to import than the rest of the agent, since it brings regular expressions along.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    def encode_basestring_ascii(text: str, /) -> str: ...
    def make_scanner(context: object, /) -> Any: ...
else:
    from _json import encode_basestring_ascii, make_scanner

_SPACE = " \t\n\r"


class _Rules:
    """The rules of :class:`json.JSONDecoder`, without the numbers that JSON does not have."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    @staticmethod
    def parse_constant(name: str) -> object:
        raise ValueError(f"{name} is not a JSON number")


_scan = make_scanner(_Rules)


def decode(data: bytes | bytearray) -> Any:
    """Returns the value of a text in UTF-8. Raises ValueError, RecursionError."""
    text = data.decode().strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError):  # the latter before Python 3.13, where json was not imported
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def encode(value: object) -> bytes:
    """Returns the text of a value of plain types."""
    return _text(value).encode("ascii")


def _text(value: object) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{encode_basestring_ascii(name)}:{_text(part)}' for name, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    raise TypeError(f"{type(value).__name__} is not a type of JSON")
