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


def listed(texts: Sequence[str] | None) -> Sequence[str] | None:
    """Returns a list of the texts. A text alone is left whole, for the server to refuse: its letters are not a list."""
    return texts if texts is None or isinstance(texts, str) else list(texts)


def given(**params: Any) -> Json:
    """Returns the parameters that were given: None in a signature means left out."""
    return {name: value for name, value in params.items() if value is not None}
