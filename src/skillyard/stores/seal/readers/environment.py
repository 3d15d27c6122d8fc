"""Secrets in the server's own environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from skillyard.domain.secret import Secret


class EnvironmentSecrets:
    """``prefix`` and the secret's name make the variable's. An empty variable counts as none."""

    label = "environment"

    def __init__(self, prefix: str, environ: Mapping[str, str] = os.environ) -> None:
        self._prefix = prefix
        self._environ = environ

    async def find(self, name: str, project: str, skill: str) -> Secret | None:  # noqa: ARG002 - the port's
        value = self._environ.get(self._prefix + name)
        return Secret(name, value, self.label) if value else None

    async def close(self) -> None:
        return None
