"""A skill's own input and output schemas: JSON Schema 2020-12 (skills-protocol §8).

The validator is imported when the first skill with a schema runs. References to other documents are not
followed. Large values are checked on a thread, so that they hold nobody else up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

THREAD_ABOVE = 65_536
_SHOWN = 5


class SchemaChecks:
    """Compiled validators by the digest of the skill they belong to."""

    def __init__(self) -> None:
        self._validators: dict[tuple[str, str], Validator] = {}

    async def complaint(
        self, key: tuple[str, str], schema: Mapping[str, Any], value: Any, where: str, size: int
    ) -> str | None:
        """What is wrong with ``value`` (``size`` bytes of JSON), None when nothing is."""
        validator = self._validators.get(key)
        if validator is None:
            if len(self._validators) >= 256:
                self._validators.clear()
            validator = self._validators[key] = _validator_class()(schema, registry=_registry())
        if size > THREAD_ABOVE:
            return await asyncio.to_thread(_complaint, validator, value, where)
        return _complaint(validator, value, where)


def _complaint(validator: Validator, value: Any, where: str) -> str | None:
    errors = []
    try:
        for error in validator.iter_errors(value):
            errors.append(f"{where}{error.json_path[1:]}: {_short(error.message)}")
            if len(errors) == _SHOWN:
                break
    except Exception as error:  # noqa: BLE001 - a schema that cannot be applied is the skill's fault
        return f"{where}: the skill's schema cannot be applied: {_short(str(error))}"
    return "; ".join(errors) or None


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:160]} … {message[-30:]}"


@lru_cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


@lru_cache
def _registry() -> Any:
    """Without retrieval: a ``$ref`` to somewhere else is an error, never a request."""
    from referencing import Registry

    return Registry()
