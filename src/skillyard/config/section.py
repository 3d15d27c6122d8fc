"""The base of every section, and the types that several sections share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationInfo

from skillyard.domain.network.policy import parse_rules
from skillyard.domain.network.rule import Rule

MIB = 1024 * 1024


Lifetime = Annotated[
    float | None, Field(ge=0), AfterValidator(lambda value: value or None), PlainSerializer(lambda value: value or 0.0)
]
"""Seconds; 0 in the settings is for ever, which is None here."""
Bound = Annotated[
    int | None, Field(ge=0), AfterValidator(lambda value: value or None), PlainSerializer(lambda value: value or 0)
]
"""A number that may not be passed; 0 in the settings means without a bound, which is None here."""


class Section(BaseModel):
    """A section of the settings: frozen, and strict about names.

    A field holds the very value that a service uses. Its description says what the setting does and when to change
    it; docs/settings.md is written from that. ``title`` is the section's path, for messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def changed(self, **changes: Any) -> Self:
        """Returns a copy with other values, checked as those of the operator are. Raises InvalidInput."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**own, **changes})


def rules_of(path: str, value: Any) -> tuple[Rule, ...]:
    """Returns the rules that ``value`` means: a word, or a list of rules and their texts. Raises InvalidInput."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = [item.text if isinstance(item, Rule) else item for item in value]
    return parse_rules(value, path)


def texts_of(rules: Sequence[Rule]) -> list[str]:
    """Returns the rules as an operator writes them."""
    return [rule.text for rule in rules]


def place(info: ValidationInfo) -> str:
    """Returns the path of the field that is validated, such as ``network.rules``."""
    assert info.config is not None, "a section has a configuration"
    return f"{info.config.get('title')}.{info.field_name}"


def host_memory_mb() -> int:
    """Returns the memory of this host in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
