"""Environments: named sets of packages, installed into the data directory on first use.

A definition that changes gets another digest and so another directory; what is installed never changes.
The data directory has one owner (see :mod:`skillyard.assembly`), so one process installs, and within it
everybody who needs an environment waits for the same installation.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skillyard.domain.errors import InvalidInput, SkillyardError, shape
from skillyard.domain.sandbox import EnvironmentRef
from skillyard.engine.config import EnvironmentDefinition
from skillyard.engine.observer import (
    EnvironmentFailed,
    EnvironmentInstalled,
    EnvironmentInstalling,
    Observer,
    ignore,
)
from skillyard.engine.tasks import Tasks


class Installer(Protocol):
    async def __call__(self, packages: tuple[str, ...], target: Path) -> None:
        """Install wheels into the empty directory ``target``. Raises InstallFailed."""
        ...


class InstallFailed(SkillyardError):
    """The packages of an environment could not be had; the message says which and why."""

    type = "SandboxError"


@dataclass(frozen=True, slots=True)
class Environment:
    """A ready environment; ``distributions`` are normalized names with their installed versions."""

    ref: EnvironmentRef
    distributions: Mapping[str, str] = field(default_factory=dict)


class Environments:
    """Gives environments by name. ``directory`` holds one directory for each installed one."""

    def __init__(
        self,
        definitions: Mapping[str, EnvironmentDefinition],
        directory: Path,
        install: Installer,
        emit: Observer = ignore,
    ) -> None:
        self._definitions = definitions
        self._directory = directory
        self._install = install
        self._tasks = Tasks()
        self._emit = emit
        self._ready: dict[str, Environment] = {}
        self._installing: dict[str, asyncio.Task[Environment]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._definitions))

    async def get(self, name: str) -> Environment:
        """The environment, installed first when it has to be. Raises InvalidInput, InstallFailed."""
        ready = self._ready.get(name)
        if ready is not None:
            return ready
        if name not in self._definitions:
            known = ", ".join(self.names)
            raise InvalidInput("environment", f"unknown environment; known are {known}", shape(name))
        task = self._installing.get(name)
        if task is None:
            task = self._tasks.spawn(self._prepare(name), f"environment {name}")
            self._installing[name] = task
        return await asyncio.shield(task)

    def clean(self) -> None:
        """Remove what an interrupted installation left. Call before the first :meth:`get`."""
        for leftover in self._directory.glob(".tmp-*"):
            remove_tree(leftover)

    async def close(self) -> None:
        """Stop installations; nothing half-installed is left."""
        await self._tasks.close()

    async def _prepare(self, name: str) -> Environment:
        try:
            self._ready[name] = environment = await self._made(name, self._definitions[name])
            return environment
        finally:
            del self._installing[name]

    async def _made(self, name: str, definition: EnvironmentDefinition) -> Environment:
        digest = digest_of(definition)
        if not definition.packages:
            return Environment(EnvironmentRef(name, None, definition.preload, digest))
        home = self._directory / f"{name}-{digest}"
        if not home.is_dir():
            await self._install_into(home, name, digest, definition.packages)
        found = await asyncio.to_thread(distributions_in, home)
        return Environment(EnvironmentRef(name, home, definition.preload, digest), found)

    async def _install_into(self, home: Path, name: str, digest: str, packages: tuple[str, ...]) -> None:
        started = time.monotonic()
        self._emit(EnvironmentInstalling(name, digest, packages))
        temporary = home.parent / f".tmp-{home.name}"
        try:
            await asyncio.to_thread(_fresh, temporary)
            await self._install(packages, temporary)
            await asyncio.to_thread(_seal, temporary)
            temporary.rename(home)
        except SkillyardError as error:
            self._emit(EnvironmentFailed(name, digest, error.message))
            raise InstallFailed(f"environment '{name}' could not be installed: {error.message}") from error
        finally:
            await asyncio.to_thread(remove_tree, temporary)
        self._emit(EnvironmentInstalled(name, digest, time.monotonic() - started))


def digest_of(definition: EnvironmentDefinition) -> str:
    """Over what decides the installed bytes' kind: the requirements, the interpreter, the platform."""
    parts = [sorted(definition.packages), list(sys.version_info[:2]), sysconfig.get_platform()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def distributions_in(home: Path) -> dict[str, str]:
    """Installed distributions by normalized name (PEP 503), from their ``.dist-info`` directories."""
    stems = (path.name.removesuffix(".dist-info") for path in home.glob("*.dist-info"))
    pairs = (stem.partition("-") for stem in stems)
    return {normalized(name): version for name, _, version in pairs}


def normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def remove_tree(path: Path) -> None:
    """Delete a tree, sealed or not; nothing happens when it is not there."""
    if not path.is_dir():
        return
    for directory in (path, *(p for p in path.rglob("*") if p.is_dir() and not p.is_symlink())):
        directory.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _fresh(path: Path) -> None:
    remove_tree(path)
    path.mkdir(parents=True)


def _seal(home: Path) -> None:
    """World-readable and immutable: sandboxes read it under uids of their own."""
    for path in home.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444)
    home.chmod(0o555)
