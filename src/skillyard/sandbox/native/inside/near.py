"""Moves the functions that every run calls close together in memory.

Their memory is in the compiled part (``near.c``). A fork copies each page that it touches, if for one count of
references.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

_OURS = __name__.partition(".")[0]


def gather(library: ctypes.PyDLL, run: Callable[[], object], more: Sequence[Callable[..., object]]) -> None:
    """Moves the functions that ``run`` calls, and ``more``: copies take their places.

    An interpreter without a lock finds its objects by its own allocator alone, so there nothing is moved.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    codes = _executed(run)
    codes.update((id(each.__code__), each.__code__) for each in more if isinstance(each, FunctionType))
    functions = [each for each in gc.get_objects() if type(each) is FunctionType and id(each.__code__) in codes]
    own = [each for each in functions if each.__module__.partition(".")[0] == _OURS]
    api = ctypes.pythonapi
    library.sy_near(api.PyMem_GetAllocator, api.PyMem_SetAllocator)
    library.sy_take_near(1)
    try:
        moved = {id(each.__code__): _copy(each.__code__, codes) for each in functions}
        copies = {id(each): _second(each, moved[id(each.__code__)]) for each in own}
    finally:
        library.sy_take_near(0)
    for each in functions:
        each.__code__ = moved[id(each.__code__)]
    for each in own:
        copy = copies[id(each)]
        copy.__kwdefaults__, copy.__qualname__ = each.__kwdefaults__, each.__qualname__
    for place, name, value in list(_named()):
        if (found := copies.get(id(value))) is not None:
            setattr(place, name, found)


def _executed(run: Callable[[], object]) -> dict[int, CodeType]:
    """Returns the code that ``run`` executes, by its id."""
    codes: dict[int, CodeType] = {}

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return codes


def _copy(code: CodeType, executed: dict[int, CodeType]) -> CodeType:
    """Returns a copy, in which executed code is copied too: of comprehensions."""
    within = tuple(_copy(each, executed) if id(each) in executed else each for each in code.co_consts)
    return code.replace(co_consts=within)


def _second(function: FunctionType, code: CodeType) -> FunctionType:
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def _named() -> Iterator[tuple[Any, str, object]]:
    """Yields each name in our modules and their classes: where it is, the name, its value."""
    for full, module in list(sys.modules.items()):
        if full.partition(".")[0] != _OURS:
            continue
        for name, value in list(vars(module).items()):
            yield module, name, value
            if isinstance(value, type) and value.__module__ == full:
                yield from ((value, inner, found) for inner, found in list(vars(value).items()))
