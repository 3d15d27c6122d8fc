"""Loading the code of a run and calling its entrypoint."""

from __future__ import annotations

import linecache
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

from .errors import EntrypointNotFound
from .imports import ROOT, import_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

RUN_MODULE = "__run__"
"""The name under which the code of ``run_code`` is imported; its functions can be pickled for a forked child."""
ENTRYPOINT = "main"


class SourceLoader(SourceFileLoader):
    """Gives the source of a module whose file was never written, for ``inspect`` and ``linecache``."""

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
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[RUN_MODULE] = sys.modules["__main__"] = module
    sys.path.insert(0, workspace)
    sys.argv = [filename]
    exec(code, module.__dict__)  # noqa: S102 - our purpose
    return module


def forget_code() -> None:
    """Undo :func:`load_code`."""
    module = sys.modules.pop(RUN_MODULE)
    linecache.cache.pop(str(module.__file__))
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
