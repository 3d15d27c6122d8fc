"""Work on hostile input that no library bounds: never in the server's own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from skillyard.domain.review.python_facts import Facts
from skillyard.domain.skill.schema import SchemaVerdict


class SchemaChecker(Protocol):
    """Checks values against schemas, each within a bound and without delaying other principals."""

    async def check(
        self, principal: str, key: str, schema: Mapping[str, Any], value: bytes, *, patient: bool = False
    ) -> SchemaVerdict:
        """Checks ``value``, which is JSON, by JSON Schema 2020-12. ``key`` tells schemas apart for good.

        Checks of one principal happen one after another. Raises Busy when too many wait, unless ``patient``, and
        ValidatorFault when no checker can be started.
        """
        ...


class PythonReader(Protocol):
    """Reads Python files within a bound of time and memory."""

    async def read_python(self, source: str) -> Facts:
        """Returns the facts of a source; those of one that cannot be read say why. Raises ValidatorFault when no reader
        can be started."""
        ...


class Jailed(SchemaChecker, PythonReader, Protocol):
    """Does both."""

    async def close(self) -> None:
        """Ends every process. Idempotent."""
        ...
