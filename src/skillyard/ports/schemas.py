"""Who holds values against skills' schemas: never the server's own process, which others wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from skillyard.domain.schema_verdict import SchemaVerdict


class SchemaChecker(Protocol):
    """Whatever a schema and a value hold, an answer comes within a bound, and nobody else waits for it."""

    async def check(
        self, principal: str, key: str, schema: Mapping[str, Any], value: bytes, *, patient: bool = False
    ) -> SchemaVerdict:
        """What JSON Schema 2020-12 says of ``value``, which is JSON. ``key`` tells schemas apart for good.

        Checks of one principal happen one after another. Raises Busy when too many wait, unless ``patient``, and
        ValidatorFault when no checker can be started.
        """
        ...

    async def close(self) -> None:
        """End every process. Idempotent."""
        ...
