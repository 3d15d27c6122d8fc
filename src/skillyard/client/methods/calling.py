"""The base of the methods of clients and runtimes: one ``call``, awaited or blocking."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

Json = dict[str, Any]


class Calls:
    """Calls methods by their names."""

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """The result of any method by its name."""
        raise NotImplementedError


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Returns the blocking form of a method, for a class with ``_inner`` and ``_wait``."""

    @wraps(method)
    def wait(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._wait(getattr(self._inner, method.__name__)(*args, **kwargs))
        return result

    return cast("Callable[Concatenate[Any, P], T]", wait)


class Waits:
    """The same without ``await``. A subclass gives ``_inner`` and ``_wait``."""

    _inner: Calls

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    call = blocking(Calls.call)


def given(**params: Any) -> Json:
    """Returns the parameters that were given, sequences as lists: None in a signature means left out.

    A text stays whole where a list is wanted, for the server to refuse: its letters are not a list.
    A method whose parameters are those that it sends says ``given(**locals())`` before all else.
    """
    return {name: _sent(value) for name, value in params.items() if value is not None and name != "self"}


def _sent(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else value


_PLAIN = frozenset({str, bytes, int, float, bool, dict})
"""Known at once: what :class:`Sequence` is asked about costs more than the rest."""
