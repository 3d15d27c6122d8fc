"""Which of the environment's packages a run imports: told to the host, so that a later zygote imports them ahead.

A name counts that was asked for while no import of another package was at work: what follows from it follows again.
Of packages that a warm interpreter brought, only that they are used can be noticed: an import statement looks at the
``__spec__`` of what is there already (import_ensure_initialized in CPython's import.c).
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 64
_LONGEST = 200


class _Imports:
    """Of this process. ``tops`` are the top-level names that the environment has."""

    def __init__(self) -> None:
        self.tops: frozenset[str] = frozenset()
        self.asked: list[str] = []
        self.used: set[str] = set()


_now = _Imports()


def prepare(packages: str) -> None:
    """Called once by a warm interpreter after its imports; ``packages`` is the environment's directory, or empty."""
    if not packages:
        return
    try:
        _now.tops = frozenset(_importable(os.listdir(packages)))
    except OSError:
        return
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name.partition(".")[0] in _now.tops and type(spec) is ModuleSpec:
            spec.__class__ = _Watched


def note(fullname: str) -> None:
    """The import system looks for this name."""
    if fullname.partition(".")[0] not in _now.tops:
        return
    asked = _now.asked
    if asked and _is_at_work(asked[-1]):
        return
    if len(asked) < MOST and len(fullname) <= _LONGEST:
        asked.append(fullname)


def report() -> bytes:
    """What was noticed, as JSON; empty when there is nothing to tell. Whatever foreign code did, it does not raise."""
    try:
        imported = [name for name in dict.fromkeys(_now.asked) if name in sys.modules]
        used = sorted({name.partition(".")[0] for name in _now.used})[:MOST]
        return json.dumps({"imported": imported, "used": used}).encode() if imported or used else b""
    except Exception:  # noqa: BLE001 - it is only a hint
        return b""


def _is_at_work(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _importable(entries: Iterable[str]) -> Iterable[str]:
    for entry in entries:
        stem, dot, kind = entry.partition(".")
        if stem.isidentifier() and (not dot or kind.endswith(("py", "so"))):
            yield stem


class _Watched(ModuleSpec):
    """The spec of a module that was imported ahead. It is looked at when the module is imported again."""

    @property
    def _initializing(self) -> bool:
        _now.used.add(self.name)
        return False

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        """It was initialized long ago."""


_Watched.__name__ = _Watched.__qualname__ = ModuleSpec.__name__
