"""Conversion of the entrypoint's value to JSON for the host (skills-protocol §4, row 6).

Values with one obvious form in JSON are converted, within other values and as the key of an object, too: ``datetime``,
``date`` and ``time`` (ISO 8601), ``UUID`` and paths (text), members of an ``Enum`` (their value), dataclasses, named
tuples and models with ``model_dump`` (objects), numbers and texts of numpy, and its arrays up to MAX_ARRAY values. All
others are refused with their place and a remedy: the code must say whether a set is sorted, or bytes are text.
"""

from __future__ import annotations

import sys
from math import isfinite

from .errors import OutputNotSerializable, OutputTooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

    encode_basestring: Callable[[str], str]
    encode_basestring_ascii: Callable[[str], str]
    make_encoder: Callable[..., Callable[[object, int], tuple[str, ...]]]
    make_scanner: Callable[[object], Callable[[str, int], tuple[Any, int]]]
else:  # of the package json, which brings regular expressions along: their import takes longer than most runs
    from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

MAX_ARRAY = 10_000


class _Rules:
    """The rules of :class:`json.JSONDecoder`."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"-Infinity": float("-inf"), "Infinity": float("inf"), "NaN": float("nan")}.__getitem__


scan = make_scanner(_Rules)
"""Returns the value at a place of a text, and its end. Raises StopIteration, or SystemError where json is not there."""


def encoder(*, ascii: bool = True, nan: bool = True) -> Callable[[object], str]:
    """Returns a function that gives compact JSON, as :class:`json.JSONEncoder` does.

    ``ascii`` has it escape all other characters, without ``nan`` it raises ValueError for such numbers.
    """
    text = encode_basestring_ascii if ascii else encode_basestring

    def encode(value: object) -> str:
        return "".join(make_encoder({}, _refuse, text, None, ":", ",", False, False, nan)(value, 0))

    return encode


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


_encode = encoder(ascii=False, nan=False)
_ATOMS = (int, bool, type(None))
_KEYS = (str, int, float, bool, type(None))
_SHORTEST = 2
"""Bytes of JSON that one more value takes at least: a digit and a comma."""
_LEAVE_OUT = "which JSON does not have; return None instead, or leave it out"

_MENDS = {
    "set": "return sorted(x) or list(x)",
    "frozenset": "return sorted(x) or list(x)",
    "bytes": "return x.decode() when it is text, else the id that runtime.blobs.write_bytes(x) gives",
    "bytearray": "return x.decode() when it is text, else the id that runtime.blobs.write_bytes(x) gives",
    "memoryview": "return the id that runtime.blobs.write_bytes(x) gives",
    "decimal.Decimal": "return str(x), which is exact, or float(x)",
    "fractions.Fraction": "return str(x), which is exact, or float(x)",
    "complex": "return [x.real, x.imag]",
    "datetime.timedelta": "return x.total_seconds()",
    "range": "return list(x)",
    "generator": "return list(x)",
    "dict_keys": "return list(x)",
    "dict_values": "return list(x)",
    "dict_items": "return dict(x)",
    "map": "return list(x)",
    "filter": "return list(x)",
    "zip": "return list(x)",
    "enumerate": "return list(x)",
    "reversed": "return list(x)",
    "collections.deque": "return list(x)",
    "array.array": "return x.tolist()",
    "mappingproxy": "return dict(x)",
    "collections.UserDict": "return dict(x)",
    "coroutine": "await it",
    "async_generator": "return [item async for item in x]",
    "function": "call it and return what it gives",
    "method": "call it and return what it gives",
    "builtin_function_or_method": "call it and return what it gives",
    "module": "return what you want of it",
    "type": "return what you want of it",
    "re.Match": "return x.group() or x.groupdict()",
    "sqlite3.Row": "return dict(x)",
    "_io.StringIO": "return x.getvalue()",
    "_io.BytesIO": "return the id that runtime.blobs.write_bytes(x.getvalue()) gives",
    "_io.TextIOWrapper": "return x.read()",
    "numpy.ndarray": f"arrays up to {MAX_ARRAY} values are returned as lists; return a summary, and the whole with"
    " numpy.save('/workspace/out/array.npy', x)",
    "numpy.timedelta64": "return x / numpy.timedelta64(1, 's')",
    "pandas.DataFrame": 'return df.to_dict("records"), or df.to_csv("/workspace/out/table.csv") for a large one',
    "pandas.Series": "return x.to_dict() or x.tolist()",
    "pandas.Timedelta": "return x.total_seconds()",
    "polars.DataFrame": "return df.to_dicts()",
    "polars.Series": "return x.to_list()",
    "torch.Tensor": "return x.tolist()",
    "matplotlib.Figure": 'write it with fig.savefig("/workspace/out/figure.png")',
    "matplotlib.Axes": 'write it with x.figure.savefig("/workspace/out/figure.png")',
    "plotly.Figure": 'write it with fig.write_html("/workspace/out/figure.html")',
    "PIL.Image": 'write it with x.save("/workspace/out/image.png")',
    "requests.Response": "return x.json() or x.text",
    "httpx.Response": "return x.json() or x.text",
}
"""By the full name of a type or of one that it derives from; of packages by the package and the type's own name."""


def encode(value: object, max_bytes: int) -> bytes:
    """Returns compact UTF-8 JSON of an object. None is ``{}``, other values are ``{"result": value}``.

    Raises OutputNotSerializable (also for NaN, infinities, cycles and what is nested too deep), OutputTooLarge.
    """
    data = as_json(value, max_bytes, "output", wrap=True)
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def as_json(value: object, max_bytes: int, name: str, *, wrap: bool = False) -> bytes:
    """Returns compact UTF-8 JSON of ``value``, which messages call ``name``. Raises OutputNotSerializable and, for a
    value far larger than ``max_bytes``, OutputTooLarge."""
    try:
        plain = _Plain(max_bytes).of(value)
        if wrap and not isinstance(plain, dict):
            plain = {} if plain is None else {"result": plain}
        return _utf8(_encode(plain))
    except _Refused as refused:
        raise OutputNotSerializable(f"{name}{''.join(reversed(refused.where))} {refused.why}") from None
    except RecursionError:
        raise OutputNotSerializable(f"{name} is nested too deep for JSON, or contains itself") from None
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, OutputTooLarge):
            raise
        raise OutputNotSerializable(f"{name}: {error}") from None


def _too_large(max_bytes: int) -> OutputTooLarge:
    return OutputTooLarge(
        f"the value is larger than {max_bytes} bytes of JSON;"
        " write it to a file in /workspace/out, or with runtime.blobs and return the blob id"
    )


def _utf8(text: str) -> bytes:
    """Lone surrogates, as file names may hold them, have no UTF-8 form and become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= sign <= "\udfff" else sign for sign in text).encode()


class _Refused(Exception):
    """A value that is refused; ``where`` names the place, innermost part first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.where: list[str] = []


class _Plain:
    """Converts a value to JSON's types. It counts every mention: a value that many names share is written out each
    time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = max_bytes

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is str:
            self._count(len(value))
            return value
        if kind is list:
            return self._list(value)
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, float) and not _numpy_generic(kind):
            return _finite(value)
        if isinstance(value, tuple) and not _is_named(kind):
            return self._list(value)
        return self._converted(value)

    def _count(self, bytes: int) -> None:
        self._left -= bytes
        if self._left < 0:
            raise _too_large(self._max_bytes)

    def _list(self, items: Iterable[Any]) -> list[Any]:
        made: list[Any] = []
        for item in items:
            self._left -= _SHORTEST
            if type(item) in _ATOMS:
                made.append(item)
                continue
            try:
                made.append(self.of(item))
            except _Refused as refused:
                refused.where.append(f"[{len(made)}]")
                raise
            if self._left < 0:
                self._count(0)
        self._count(0)
        return made

    def _dict(self, items: dict[Any, Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        count = 0
        for key, item in items.items():
            self._count(_SHORTEST)
            count += 1
            name = key if type(key) is str else self._key(key)
            try:
                made[name] = item if type(item) in _ATOMS else self.of(item)
            except _Refused as refused:
                refused.where.append(f".{name}")
                raise
        if len(made) != count:
            raise _Refused("has different keys that become one in JSON; make texts of them that differ")
        return made

    def _key(self, key: Any) -> Any:
        """Returns a key for JSON; keys that JSON makes a text of by itself stay as they are."""
        if isinstance(key, _KEYS) and not _numpy_generic(type(key)) and not _is_enum(key):
            return _finite(key) if isinstance(key, float) else key
        try:
            name = self._converted(key)
        except _Refused:
            name = key
        if not isinstance(name, _KEYS):
            raise _Refused(
                f"has a key of type {type_name(key)}, which JSON does not have; make a text of it,"
                " such as {str(k): v for k, v in x.items()}"
            )
        return name

    def _converted(self, value: Any) -> Any:
        """Converts a value of another type. A module that is not imported has made no value."""
        modules, kind = sys.modules, type(value)
        if _is_enum(value):
            return self.of(value.value)
        if isinstance(value, (str, int)) and not _numpy_generic(kind):
            return value
        times = modules.get("datetime")
        if times is not None and isinstance(value, (times.date, times.time)):
            if value != value:
                raise _Refused(f"is NaT, {_LEAVE_OUT}")
            return value.isoformat()
        if _is_a(value, "uuid", "UUID"):
            return str(value)
        if _is_a(value, "pathlib", "PurePath"):
            return str(value)
        if isinstance(value, tuple) and _is_named(kind):
            return self._dict({name: getattr(value, name) for name in kind._fields})
        if hasattr(kind, "__dataclass_fields__"):
            return self._dict({f.name: getattr(value, f.name) for f in modules["dataclasses"].fields(value)})
        if hasattr(kind, "model_dump") and hasattr(kind, "model_fields"):
            return self.of(value.model_dump(mode="json"))
        if _numpy_generic(kind) or kind.__module__ == "numpy":
            return self._numpy(value, modules["numpy"])
        raise _Refused(_complaint(value))

    def _numpy(self, value: Any, numpy: Any) -> Any:
        if not isinstance(value, (numpy.generic, numpy.ndarray)) or value.dtype.kind in "mcSV":
            raise _Refused(_complaint(value))
        if isinstance(value, numpy.ndarray) and value.size > MAX_ARRAY:
            raise _Refused(_complaint(value, f"of {value.size} values"))
        if value.dtype.kind == "M":
            if numpy.isnat(value).any():
                raise _Refused(f"is NaT, {_LEAVE_OUT}")
            return numpy.datetime_as_string(value).tolist()
        if value.dtype.kind == "f":
            value = value.astype("float64")
        return self.of(value.tolist())


def _finite(value: float) -> float:
    if not isfinite(value):
        raise _Refused(f"is {float(value)}, {_LEAVE_OUT}")
    return value


def _is_named(kind: type) -> bool:
    return isinstance(getattr(kind, "_fields", None), tuple)


def _is_enum(value: object) -> bool:
    return _is_a(value, "enum", "Enum")


def _is_a(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _numpy_generic(kind: type) -> bool:
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    return isinstance(generic, type) and issubclass(kind, generic)


def _complaint(value: object, more: str = "") -> str:
    about = f"is of type {type_name(value)}{' ' + more if more else ''}, which JSON does not have"
    mend = next((mend for name in _names(type(value)) if (mend := _MENDS.get(name))), "")
    if not mend and hasattr(value, "__dict__"):
        mend = "return vars(x), or the fields that you want of it"
    return f"{about}; {mend or 'return a dict, list, text, number, bool or None'}"


def _names(kind: type) -> Iterable[str]:
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}".removeprefix("builtins.")
        yield name
        yield f"{name.partition('.')[0]}.{base.__name__}"


def type_name(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name.removeprefix("builtins.").removeprefix("__run__.").removeprefix("__main__.")
