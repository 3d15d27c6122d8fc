"""Dataclasses with late methods behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import pytest

from skillyard.values import dataclass as late

Decorator = Callable[..., Any]
STANDARD, OURS = dataclasses.dataclass, late


def point(decorator: Decorator, **parameters: Any) -> Any:
    @decorator(**parameters)
    class Point:
        """A point."""

        x: int
        y: int = 2
        names: list[str] = field(default_factory=list, compare=False)
        hidden: str = field(default="h", repr=False)

        def total(self) -> int:
            return self.x + self.y

    return Point


def base_and_child(decorator: Decorator, **parameters: Any) -> Any:
    @decorator(**parameters)
    class Base:
        a: int
        b: str = "b"

    @decorator(**parameters)
    class Child(Base):
        c: float = 0.5
        b: str = "other"

    return Child


def checked(decorator: Decorator, **parameters: Any) -> Any:
    @decorator(**parameters)
    class Checked:
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    return Checked


def own(decorator: Decorator, **parameters: Any) -> Any:
    @decorator(**parameters)
    class Own:
        a: int
        b: int = 3

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and other.a == self.a

        def __repr__(self) -> str:
            return f"<{self.a}>"

    return Own


def hashed(decorator: Decorator, **parameters: Any) -> Any:
    @decorator(**parameters)
    class Hashed:
        a: int
        b: int = 3

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 7

    return Hashed


PARAMETERS = [
    {"frozen": True, "slots": True},
    {"slots": True},
    {"frozen": True},
    {},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
]

MAKERS = [point, base_and_child, checked, own, hashed]


def told(call: Callable[[], Any]) -> tuple[str, str]:
    """What a call gives, or what it raises, as text; a class is named by its own name alone."""
    try:
        return "value", str(call()).replace(" object at 0x", " at ").split(" at ")[0]
    except Exception as error:  # noqa: BLE001 - compared with what the other raises
        return type(error).__name__, str(error)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("maker", MAKERS)
def test_all_that_can_be_done_with_one_is_the_same(maker: Callable[..., Any], parameters: dict[str, Any]) -> None:
    def tour(decorator: Decorator) -> list[object]:
        kind = maker(decorator, **parameters)
        first = fields(kind)[0].name
        second = fields(kind)[1].name

        def made(one: int, two: int = 9) -> Any:
            return kind(**{first: one, second: two})

        def assigned(name: str) -> Any:
            value = made(1)
            setattr(value, name, 5)
            return getattr(value, name)

        def deleted() -> Any:
            value = made(1)
            delattr(value, first)
            return hasattr(value, first)

        return [
            told(lambda: made(1)),
            told(lambda: kind(1)),
            told(lambda: kind(1, 2)),
            told(lambda: kind()),
            told(lambda: kind(1, wrong=2)),
            told(lambda: made(10, 9)),
            told(lambda: made(1) == made(1)),
            told(lambda: made(1) != made(2)),
            told(lambda: made(1) == 1),
            told(lambda: hash(made(1)) == hash(made(1))),
            told(lambda: kind.__hash__ is None),
            told(lambda: assigned(first)),
            {"frozen", "slots"} <= parameters.keys() or told(lambda: assigned("further")),  # see below
            told(deleted),
            told(lambda: replace(made(1), **{first: 4})),
            told(lambda: asdict(made(1))),
            told(lambda: copy.copy(made(1)) == made(1)),
            told(lambda: copy.deepcopy(made(1))),
            told(lambda: [(f.name, f.type, f.default, f.init) for f in fields(kind)]),
            told(lambda: kind.__match_args__),
            told(lambda: getattr(kind, "__slots__", None)),
            told(lambda: kind.__init__.__qualname__),
            told(lambda: (kind.__module__, kind.__qualname__)),
        ]

    assert tour(OURS) == tour(STANDARD)


def test_a_frozen_one_with_slots_refuses_further_attributes() -> None:
    """The standard one does so by a TypeError about super() up to Python 3.13."""
    kind = point(OURS, frozen=True, slots=True)
    with pytest.raises(FrozenInstanceError):
        kind(1).further = 1


def test_each_has_its_own_default_of_a_factory() -> None:
    kind = point(OURS, frozen=True, slots=True)
    one, other = kind(1), kind(1)
    one.names.append("a")
    assert (one.names, other.names, one == other) == (["a"], [], True)


@late(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[str, ...] = ()


def test_a_frozen_one_with_slots_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, ("x",)))) == Kept(1, ("x",))


def test_a_class_below_without_the_decorator_is_made_first() -> None:
    class Below(point(OURS, frozen=True)):  # type: ignore[misc]
        extra = 1

    below = Below(4)
    assert (below.total(), repr(below).split(".")[-1]) == (6, "Below(x=4, y=2, names=[])")
    below.further = 3
    with pytest.raises(FrozenInstanceError):
        below.x = 3


def test_nothing_is_written_before_it_is_called() -> None:
    """Of this module the first call compiles one method of one class."""
    code = (
        "import dataclasses\n"
        "calls = []\n"
        "decorate = dataclasses._process_class\n"
        "def counted(cls, init, repr, eq, *rest, **more):\n"
        "    calls.extend(n for n, on in (('init', init), ('repr', repr), ('eq', eq)) if on)\n"
        "    return decorate(cls, init, repr, eq, *rest, **more)\n"
        "dataclasses._process_class = counted\n"
        "from skillyard.values import dataclass\n"
        "Point = dataclass(frozen=True, slots=True)(type('Point', (), {'__annotations__': {'x': 'int'}}))\n"
        "print(calls); Point(1); Point(2); print(calls); Point(1) == Point(2); print(calls)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "['init']", "['init', 'eq']"]
