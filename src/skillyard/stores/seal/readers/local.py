"""Secrets of this host: files in a directory that Docker, Kubernetes or systemd fills, and environment variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.domain.secret import MAX_VALUE_BYTES, Secret
from skillyard.stores.seal.small_file import read_small


class FileSecrets:
    """A file has the secret's name; one line break at its end is left out. Links may lead to files below the directory
    only. A directory that is not there is a fault: a mount that is missing is no reason to look elsewhere."""

    label = "files"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def find(self, name: str, project: str, skill: str) -> Secret | None:  # noqa: ARG002 - the port's
        data = await asyncio.to_thread(self._read, name)
        if data is None:
            return None
        try:
            value = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise StoreFault(f"{self._directory / name} is not UTF-8 text") from None
        return Secret(name, value, self.label)

    async def close(self) -> None:
        return None

    def _read(self, name: str) -> bytes | None:
        data = read_small(self._directory / name, MAX_VALUE_BYTES + 2, self._directory)
        if data is None and not self._directory.is_dir():
            raise StoreFault(f"there is no directory {self._directory} to read secrets from")
        return data


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
