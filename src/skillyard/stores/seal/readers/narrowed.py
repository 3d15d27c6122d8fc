"""A reader kept to some projects and skills, with the operator's choice of how its secrets are delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.domain.secret import Delivery, Secret, check_secret_name, check_secret_value, covers
from skillyard.ports.secrets import SecretReader


class Binding(NamedTuple):
    delivery: Delivery
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """``projects`` and ``skills`` (patterns as of a :class:`skillyard.domain.secret.SecretScope`): none for all.
    What comes out is fit for an environment variable, or it is a fault."""

    reader: SecretReader
    projects: Sequence[str] = ()
    skills: Sequence[str] = ()
    bindings: Mapping[str, Binding] | None = None

    @property
    def label(self) -> str:
        return self.reader.label

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        if self.projects and project not in self.projects:
            return None
        if self.skills and not any(covers(pattern, skill) for pattern in self.skills):
            return None
        check_secret_name("name", name)
        found = await self.reader.find(name, project, skill)
        if found is None:
            return None
        _check_value(found, self.label)
        binding = (self.bindings or {}).get(name)
        return found if binding is None else replace(found, delivery=binding.delivery, hosts=binding.hosts)

    async def close(self) -> None:
        await self.reader.close()


def _check_value(found: Secret, label: str) -> None:
    try:
        check_secret_value("value", found.value)
    except InvalidInput as error:
        raise StoreFault(f"what {label} has as '{found.name}' cannot be a secret: it {error.rule}") from None
