"""Dataclasses whose methods are written when they are first called.

The standard decorator compiles up to six methods of each class when its module is imported, which took a third of a
server's start; a process makes few of the classes that it imports.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")


def _dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """Returns a decorator that does as that of the standard library.

    A class with it and one with the standard one cannot inherit from each other where they are frozen.
    """

    def decorate(cls: type[T]) -> type[T]:
        wanted = ["__init__", "__repr__"]
        if eq:
            wanted.append("__eq__")
        own = {name for name in (*wanted, "__hash__") if name in vars(cls)}
        if "__hash__" in own and "__eq__" in own and vars(cls)["__hash__"] is None:
            own.discard("__hash__")  # the interpreter put None there, because of the class's own __eq__
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard decorator writes a signature there
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        if eq and "__hash__" not in own:
            if frozen:
                wanted.append("__hash__")
            else:
                made.__hash__ = None  # type: ignore[assignment]
        for name in wanted:
            if name not in own:
                setattr(made, name, _late(made, name, frozen))
        if frozen:
            _freeze(made, slots)
        return made

    return decorate


def _late(cls: type[Any], name: str, frozen: bool) -> Any:
    """Returns a method that puts the written one in its own place."""

    def first(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = _written(cls, name, frozen)
        setattr(cls, name, method)
        return method(self, *args, **kwargs)

    first.__name__, first.__qualname__, first.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return first


def _written(cls: type[Any], name: str, frozen: bool) -> Any:
    """Returns the method that the standard decorator writes for a class with the same fields."""
    fields = dataclasses.fields(cls)
    same: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__annotations__": {field.name: field.type for field in fields},
        **{field.name: field for field in fields},
    }
    if hasattr(cls, "__post_init__"):
        same["__post_init__"] = cls.__post_init__
    decorate = dataclasses.dataclass(
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name in ("__eq__", "__hash__"),
        frozen=frozen and name != "__repr__",
        match_args=False,
    )
    return vars(decorate(type(cls.__name__, (), same)))[name]


def _freeze(cls: type[Any], slots: bool) -> None:
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def refuse(self: Any, name: str, doing: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {doing} field {name!r}")

    def set_attribute(self: Any, name: str, value: Any) -> None:
        refuse(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        refuse(self, name, "delete")
        super(cls, self).__delattr__(name)

    methods: dict[str, Callable[..., Any]] = {"__setattr__": set_attribute, "__delattr__": delete_attribute}
    if slots and "__getstate__" not in vars(cls):
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        setattr(cls, name, method)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
