"""A keeper one of whose callbacks raises, once, when a file says so; and the list of all places that register one.

``python faulty_keeper.py CONFIG``: as the real one, with ``fault`` (a place, or empty) and ``when`` (``before`` or
``after`` the callback did its work) beside. Places that were called are in ``called`` in its directory.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from skillyard.sandbox.native.grounds.namespaces import ground
from skillyard.sandbox.native.keeper import loop as loops

ARMED, CALLED = "armed", "called"
KINDS = frozenset({"watch", "after", "when_idle"})


class Boom(Exception):
    """What the callback raises."""


def places() -> list[str]:
    """Of the native keeper's code: ``Class.method:kind`` for each call that registers a callback."""
    found: set[str] = set()
    grounds = Path(loops.__file__).parents[1] / "grounds"
    for path in (
        *Path(loops.__file__).parent.rglob("*.py"),
        *(grounds / "namespaces").glob("*.py"),
        grounds / "host.py",
    ):
        if path.name != "loop.py":
            _visit(ast.parse(path.read_text()), "", found)
    return sorted(found)


def _visit(node: ast.AST, name: str, found: set[str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            inside = isinstance(node, ast.FunctionDef)
            _visit(child, f"{name}.<locals>.{child.name}" if inside else f"{name}.{child.name}".lstrip("."), found)
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in KINDS:
            found.add(f"{name}:{child.func.attr}")
        _visit(child, name, found)


class FaultyLoop(loops.Loop):
    def __init__(self, directory: str, fault: str, when: str) -> None:
        super().__init__()
        self._directory = directory
        self._target = fault
        self._when = when
        self._called: set[str] = set()

    def watch(self, fd: int, events: int, callback: Any, fault: Any = loops._told_already) -> None:
        super().watch(fd, events, self._wrapped(_place("watch"), callback), fault)

    def after(self, seconds: float, call: Any, fault: Any = loops._told_already) -> loops.Timer:
        return super().after(seconds, self._wrapped(_place("after"), call), fault)

    def when_idle(self, call: Any, fault: Any = loops._told_already) -> None:
        super().when_idle(self._wrapped(_place("when_idle"), call), fault)

    def _wrapped(self, place: str, call: Callable[..., None]) -> Callable[..., None]:
        def called(*args: Any) -> None:
            if place not in self._called:
                self._called.add(place)
                with open(f"{self._directory}/{CALLED}", "a") as file:
                    file.write(place + "\n")
            boom = place == self._target and os.path.exists(f"{self._directory}/{ARMED}")
            if boom:
                os.unlink(f"{self._directory}/{ARMED}")
            if not boom or self._when == "after":
                call(*args)
            if boom:
                raise Boom(place)

        return called


def _place(kind: str) -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == loops.__file__:
        frame = frame.f_back
    assert frame is not None
    return f"{frame.f_code.co_qualname}:{kind}"


if __name__ == "__main__":
    config = json.loads(sys.argv[1])
    ground.main(config, lambda: FaultyLoop(config["run_dir"], config["fault"], config["when"]))
