"""Passing ``args`` to a function: whole, or by name.

A function's only parameter, when it is required and positional, gets the whole object whatever its name. So does a
first parameter named ``args`` that no key is meant for, when the others have defaults, and ``*rest`` without named
parameters before it. To everything else the values of the object go by name, and each must find its place.
"""

from __future__ import annotations

from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

POSITIONAL, EITHER, REST, NAMED, OTHERS = range(5)
"""Kinds of parameters, as :mod:`inspect` numbers them."""
_VAR_POSITIONAL, _VAR_NAMED = 0x04, 0x08
_WHOLE = "args"
_LONGEST = 64
_SHOWN = 10


class Parameter:
    def __init__(self, name: str, kind: int, required: bool, default: object = None) -> None:
        self.name = name
        self.kind = kind
        self.required = required
        self.default = default


class Call:
    """A call that is ready. ``hint`` is added to the message when it fails. Raises TypeError, which lists missing and
    unknown names."""

    def __init__(self, function: Callable[..., Any], args: dict[str, Any]) -> None:
        self.hint = ""
        self._function = function
        self._positional: tuple[Any, ...] = (args,)
        self._named: dict[str, Any] = {}
        parameters = _parameters(function)
        if parameters is not None:
            self._bind(parameters, args)

    def make(self) -> object:
        return self._function(*self._positional, **self._named)

    def _bind(self, parameters: list[Parameter], args: dict[str, Any]) -> None:
        own = [p for p in parameters if p.kind not in (REST, OTHERS)]
        whole = _whole(parameters, own, args)
        if whole is None:
            self._positional, self._named = _by_name(self._function, parameters, own, args)
        elif whole in args:
            name = _name(self._function)
            self.hint = f"{name}({whole}) got the whole args object, since it has one parameter: use {whole}[{whole!r}]"


def _whole(parameters: list[Parameter], own: list[Parameter], args: dict[str, Any]) -> str | None:
    """Returns the parameter that takes the whole object; None when the values go by name."""
    if not own:
        return "*" if any(p.kind == REST for p in parameters) else None
    first = own[0]
    if first.kind == NAMED:
        return None
    if len(parameters) == 1 and first.required:
        return first.name
    alone = first.name == _WHOLE and _WHOLE not in args and not any(p.required for p in own[1:])
    return first.name if alone else None


def _by_name(
    function: Callable[..., Any], parameters: list[Parameter], own: list[Parameter], args: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = {p.name for p in own}
    missing = [p.name for p in own if p.required and p.name not in args]
    open_ended = any(p.kind == OTHERS for p in parameters)
    unknown = [] if open_ended else [name for name in args if name not in names]
    if missing or unknown:
        raise TypeError(_complaint(function, own, missing, unknown))
    positional = tuple(args.get(p.name, p.default) for p in own if p.kind == POSITIONAL)
    taken = {p.name for p in own if p.kind == POSITIONAL}
    return positional, {name: value for name, value in args.items() if name not in taken}


def _complaint(function: Callable[..., Any], own: list[Parameter], missing: list[str], unknown: list[str]) -> str:
    name = _name(function)
    if not own:
        return f"{name}() takes no arguments, and args has {_list(unknown)}; define {name}(args) to get them"
    wrong = [f"{what} {_list(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
    shown = ", ".join(p.name + ("" if p.required else "=…") for p in own[:_SHOWN])
    return (
        f"args do not fit {name}({shown}): {', '.join(wrong)}; the values of args go by name to several parameters,"
        f" and whole to {name}(args)"
    )


def _list(names: list[str]) -> str:
    """Lists names. A long one is never shown in part: the host could not find a part of a secret."""
    told = [repr(name) if len(name) <= _LONGEST else f"one of {len(name)} characters" for name in names[:_SHOWN]]
    return ", ".join(told) + (", …" if len(names) > _SHOWN else "")


def _name(function: object) -> str:
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _parameters(function: Callable[..., Any]) -> list[Parameter] | None:
    """Returns the parameters; None where they cannot be known, as of some functions in C."""
    if type(function) is FunctionType and not function.__dict__:
        return list(_of_function(function))
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    empty = inspect.Parameter.empty
    return [Parameter(p.name, int(p.kind), _needed(p, empty), p.default) for p in signature.parameters.values()]


def _needed(parameter: Any, empty: object) -> bool:
    return parameter.default is empty and parameter.kind not in (REST, OTHERS)


def _of_function(function: FunctionType) -> Iterator[Parameter]:
    """Returns the parameters as inspect would, whose import takes longer than most runs."""
    code = function.__code__
    count, named = code.co_argcount, code.co_kwonlyargcount
    defaults = function.__defaults__ or ()
    for index, name in enumerate(code.co_varnames[:count]):
        place = index - (count - len(defaults))
        kind = POSITIONAL if index < code.co_posonlyargcount else EITHER
        yield Parameter(name, kind, place < 0, defaults[place] if place >= 0 else None)
    for name in code.co_varnames[count : count + named]:
        given = function.__kwdefaults__ or {}
        yield Parameter(name, NAMED, name not in given, given.get(name))
    if code.co_flags & _VAR_POSITIONAL:
        yield Parameter("", REST, required=False)
    if code.co_flags & _VAR_NAMED:
        yield Parameter("", OTHERS, required=False)
