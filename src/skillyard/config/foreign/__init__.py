"""Settings of other programs, under the names that they have there.

A name means one of our settings, which has it as a default: ours win. All others are told of, each with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from skillyard.config.network import AS_RULES
from skillyard.domain.errors import shown
from skillyard.values import dataclass

_CHOSEN = "policy.isolation"


@dataclass(frozen=True, slots=True)
class Alias:
    """A value that ``theirs`` gives to ``ours``, the path of a setting such as ``limits.cpus``."""

    theirs: str
    ours: str
    value: Any


@dataclass(frozen=True, slots=True)
class Foreign:
    """Settings of one other program. ``remarks`` tell of the names that have no effect."""

    aliases: tuple[Alias, ...] = ()
    remarks: tuple[str, ...] = ()

    def tree(self) -> dict[str, Any]:
        """Returns the values as tables of ours."""
        top: dict[str, Any] = {}
        for alias in self.aliases:
            *above, name = alias.ours.split(".")
            table = top
            for part in above:
                table = table.setdefault(part, {})
            table[name] = alias.value
        return top

    def chosen(self, settings: BaseModel) -> Iterator[str]:
        """Yields a remark where a variable chooses the isolation: nobody would look for that in one."""
        for alias in self.aliases:
            if alias.ours == _CHOSEN and alias.theirs.isupper() and _at(settings.model_dump(), _CHOSEN) == alias.value:
                yield f"{_CHOSEN} = '{alias.value}', since the variable {alias.theirs} is set"

    def in_force(self, settings: BaseModel) -> Iterator[str]:
        """Yields a remark on the variables that settings have their values from. Secrets are not shown."""
        values = settings.model_dump()
        told = [
            f"{alias.ours} = {'…' if isinstance(alias.value, SecretStr) else _shown(_at(values, alias.ours))}"
            f" by {alias.theirs}"
            for alias in self.aliases
            if alias.theirs.isupper()
            and alias.ours != _CHOSEN
            and _plain(_at(values, alias.ours)) == _plain(_meant(values, alias))
        ]
        if told:
            yield f"variables in force: {'; '.join(told)}"

    def overridden(self, settings: BaseModel) -> Iterator[str]:
        """Yields a remark on each value that a setting of ours stands above."""
        values = settings.model_dump()
        for alias in self.aliases:
            if _plain(value := _at(values, alias.ours)) != _plain(_meant(values, alias)):
                yield f"{alias.ours} = {_shown(value)} stands above {alias.theirs} = {shown(alias.value)}"


def origin(path: str, sources: Iterable[Foreign]) -> str:
    """Returns the foreign names that give the setting ``path`` a value; empty where none does."""
    return ", ".join(alias.theirs for one in sources for alias in one.aliases if alias.ours == path)


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def _meant(values: Any, alias: Alias) -> Any:
    return _at(values, "network.rules") if alias.value == AS_RULES else alias.value


def _shown(value: Any) -> str:
    return shown(str(value) if isinstance(value, Path) else value)


def _plain(value: Any) -> Any:
    if value in ((), [], "none"):
        return None
    if isinstance(value, Path):
        return str(value)
    return sorted(value) if isinstance(value, list | tuple | set | frozenset) else value
