"""Readers of secrets of this host: files in a directory, and environment variables.

Docker, Kubernetes or systemd fill the directory. Each reader is a :class:`skillyard.ports.secrets.SecretReader`, and so
is :class:`Narrowed`, which keeps another to some projects and skills.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.domain.secret import MAX_VALUE_BYTES, Delivery, Secret, check_secret_name, check_secret_value, covers
from skillyard.ports.secrets import SecretReader
from skillyard.values import dataclass


class Binding(NamedTuple):
    delivery: Delivery
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A reader for some projects and skills, with the operator's ``bindings`` for delivery.

    ``skills`` are patterns as of a :class:`skillyard.domain.secret.SecretScope`; no ``projects`` or ``skills`` stand
    for all. A value that cannot be an environment variable is a fault."""

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


class FileSecrets:
    """Secrets in files of their names. One line break at the end is left out. Links may lead to files below the
    directory only. A missing directory is a fault: a mount that failed must not make another reader answer."""

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
    """Secrets in variables, each named by ``prefix`` and its own name. An empty variable counts as none."""

    label = "environment"

    def __init__(self, prefix: str, environ: Mapping[str, str] = os.environ) -> None:
        self._prefix = prefix
        self._environ = environ

    async def find(self, name: str, project: str, skill: str) -> Secret | None:  # noqa: ARG002 - the port's
        value = self._environ.get(self._prefix + name)
        return Secret(name, value, self.label) if value else None

    async def close(self) -> None:
        return None


def read_small(path: Path, most: int, beneath: Path | None = None) -> bytes | None:
    """Returns a file of somebody else with at most ``most`` bytes; None when there is not one.

    With ``beneath``, links may lead only to files below that directory (Kubernetes links a secret's file to a dated
    directory beside it). The checks look at the opened file, so that nobody can swap it in between; devices, pipes and
    sockets are never opened. Raises StoreFault naming the path.
    """
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreFault(f"{path} cannot be read: {error.strerror}") from None
    try:
        _check(found, path, most, beneath)
        return _read(found, path, most)
    finally:
        os.close(found)


def _check(found: int, path: Path, most: int, beneath: Path | None) -> None:
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode):
        raise StoreFault(f"{path} is not a regular file")
    if status.st_size > most:
        raise StoreFault(f"{path} is larger than {most} bytes")
    if beneath is not None:
        real = Path(os.readlink(f"/proc/self/fd/{found}"))  # noqa: PTH115 - where the kernel says it is
        if not real.is_relative_to(beneath.resolve()):
            raise StoreFault(f"{path} leads out of {beneath}")


def _read(found: int, path: Path, most: int) -> bytes:
    try:
        with Path(f"/proc/self/fd/{found}").open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise StoreFault(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise StoreFault(f"{path} is larger than {most} bytes")
    return data
