"""Loading the code of a run, and calling its entrypoint with ``args``: whole, or by name.

A function's only parameter, when it is required and positional, gets the whole object whatever its name. So does a
first parameter named ``args`` that no key is meant for, when the others have defaults, and ``*rest`` without named
parameters before it. To everything else the values of the object go by name, and each must find its place.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType

from .errors import EntrypointNotFound
from .imports import ROOT, import_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from importlib import import_module
    from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
    from typing import Any
else:  # where importlib finds them
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib import _gcd_import as import_module
    from _frozen_importlib_external import PathFinder, SourceFileLoader

POSITIONAL, EITHER, REST, NAMED, OTHERS = range(5)
"""Kinds of parameters, as :mod:`inspect` numbers them."""
_VAR_POSITIONAL, _VAR_NAMED = 0x04, 0x08
_WHOLE = "args"
_LONGEST = 64
_SHOWN = 10
RUN_MODULE = "__run__"
"""The name under which the code of ``run_code`` is imported; its functions can be pickled for a forked child."""
ENTRYPOINT = "main"


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


class SourceLoader(SourceFileLoader):
    """Gives ``inspect`` and ``linecache`` the source of a module that has no file."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        return self._source.encode() if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Nothing of it is on a disk, a bytecode cache least of all."""
        raise OSError(f"{path} is not on a disk")


def load_code(source: str, workspace: str, *, script: bool = False) -> ModuleType:
    """The module that ``source`` makes, executed. Raises what the code raises.

    It is ``__main__`` too, for what looks there, but not by its name: ``if __name__ == "__main__"`` is not for it,
    unless it may run as a ``script`` and speaks of no ``main``.
    """
    filename = f"{workspace}/{RUN_MODULE}.py"
    code = compile(source, filename, "exec", dont_inherit=True)
    name = "__main__" if script and ENTRYPOINT not in code.co_names else RUN_MODULE
    loader = SourceLoader(RUN_MODULE, filename, source)
    spec = ModuleSpec(RUN_MODULE, loader, origin=filename)
    module = ModuleType(name)
    module.__dict__.update(__file__=filename, __spec__=spec, __loader__=loader, __package__="")
    _tell_lines(filename, source)
    sys.modules[RUN_MODULE] = sys.modules["__main__"] = module
    sys.path.insert(0, workspace)
    sys.argv = [filename]
    exec(code, module.__dict__)  # noqa: S102 - our purpose
    return module


def _tell_lines(filename: str, source: str) -> None:
    """Has linecache know the source, now or as soon as something imports it."""
    lines = len(source), None, source.splitlines(keepends=True), filename
    if (there := sys.modules.get("linecache")) is not None:
        there.cache[filename] = lines
    else:
        sys.meta_path.insert(0, _LinesFinder(filename, lines))


class _LinesFinder:
    """Finds linecache, whose import takes longer than most runs, and tells it a file."""

    def __init__(self, filename: str, lines: tuple[object, ...]) -> None:
        self._filename, self._lines = filename, lines

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "linecache":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _LinesLoader(fullname, spec.loader.path, self._filename, self._lines)
        return spec


class _LinesLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, filename: str, lines: tuple[object, ...]) -> None:
        super().__init__(fullname, path)
        self._filename, self._lines = filename, lines

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if isinstance(cache := getattr(module, "cache", None), dict):
            cache[self._filename] = self._lines


def forget_code() -> None:
    """Undo :func:`load_code`."""
    module = sys.modules.pop(RUN_MODULE)
    sys.modules["linecache"].cache.pop(str(module.__file__))
    sys.path.pop(0)


def load_skill(name: str) -> ModuleType:
    """The entrypoint's module of a mounted skill, executed. Raises what the code raises."""
    sys.modules["__main__"] = ModuleType("__main__")
    module = import_module(f"{ROOT}.{import_name(name)}")
    sys.modules["__main__"] = module
    sys.argv = [str(module.__file__)]
    return module


def find(module: ModuleType, name: str | None) -> Callable[..., Any] | None:
    """Returns the function that the request names, else ``main``; None for a script. A script is code that defines no
    ``main`` when no name is asked for. Raises EntrypointNotFound, which names the functions that exist."""
    function: object = module.__dict__.get(name or ENTRYPOINT)
    if callable(function):
        return function
    if name is None:
        return None
    if function is not None:
        raise EntrypointNotFound(f"{name!r} is not a function: it is of type {type(function).__name__}")
    there = [key for key, value in module.__dict__.items() if _is_own_function(module, key, value)]
    raise EntrypointNotFound(
        f"the code defines no function {name!r} (it defines: {', '.join(there[:20]) or 'none'});"
        " name one that it defines, or leave entrypoint out to run the code as a script"
    )


def _is_own_function(module: ModuleType, name: str, value: object) -> bool:
    return callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__


def finished(value: object) -> object:
    """Runs an awaitable to completion (skills-protocol §4, row 13)."""
    if not hasattr(type(value), "__await__"):
        return value
    import asyncio

    return asyncio.run(_finished(value))  # type: ignore[arg-type] # it has __await__


async def _finished(value: Awaitable[object]) -> object:
    return await value
