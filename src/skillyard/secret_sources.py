"""The secret store and the readers that the settings ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from skillyard.config.secrets import SecretSettings
from skillyard.ports.secrets import SecretReader
from skillyard.stores.seal.keys import KEY_VARIABLE, key_source
from skillyard.stores.seal.readers.environment import EnvironmentSecrets
from skillyard.stores.seal.readers.files import FileSecrets
from skillyard.stores.seal.readers.narrowed import Binding, Narrowed
from skillyard.stores.seal.secrets import SealedSecrets


def make_secret_store(settings: SecretSettings, home: Path) -> SealedSecrets:
    """Raises InvalidInput for a key in several places, StoreFault for a variable that holds none."""
    variable = os.environ.get(KEY_VARIABLE)
    keys = key_source(home, variable=variable, file=settings.key_file, keyring=settings.keyring)
    return SealedSecrets(home, keys, keep=settings.versions)


def make_secret_readers(settings: SecretSettings) -> tuple[SecretReader, ...]:
    """In their order. Raises InvalidInput for a reader that lacks a setting."""
    bindings = {name: Binding(given.delivery, given.hosts) for name, given in settings.deliveries.items()}
    found: list[SecretReader] = []
    for name in settings.readers:
        section = getattr(settings, name)
        found.append(Narrowed(_MAKERS[name](settings), section.projects, section.skills, bindings))
    return tuple(found)


def _environment(settings: SecretSettings) -> SecretReader:
    return EnvironmentSecrets(settings.environment.prefix)


def _files(settings: SecretSettings) -> SecretReader:
    return FileSecrets(settings.files.directory)


def _vault(settings: SecretSettings) -> SecretReader:
    from skillyard.stores.seal.readers.vault import VaultPlace, VaultSecrets

    given = settings.vault.model_dump(exclude={"projects", "skills"})
    return VaultSecrets(VaultPlace(**given))


_MAKERS: dict[str, Callable[[SecretSettings], SecretReader]] = {
    "environment": _environment,
    "files": _files,
    "vault": _vault,
}
