"""``[secrets]`` of the operator's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from skillyard.domain.errors import InvalidInput
from skillyard.domain.secret.entry import SecretScope, check_project
from skillyard.domain.secret.secret import Delivery, bound_hosts, check_secret_name

ReaderName = Literal["environment", "files", "vault"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _ReaderSettings(_Section):
    projects: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()


class EnvironmentReaderSettings(_ReaderSettings):
    """Variables of the server: ``prefix`` and the secret's name. Every reader can be kept to ``projects`` and to
    ``skills`` (names, or starts of names with ``*``); empty is all."""

    prefix: str = Field(default="SKILLYARD_SECRET_", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")


class FilesReaderSettings(_ReaderSettings):
    """One file for each secret, called as it is, below ``directory``; the line break at its end is no part of it."""

    directory: Path = Path("/run/secrets")


class VaultReaderSettings(_ReaderSettings):
    """HashiCorp Vault or OpenBao, engine KV. ``path`` below ``mount`` and ``field`` in what stands there may hold
    ``{project}``, ``{skill}`` and ``{name}``. The token is in ``token_file``, which is read anew when it changes, or in
    the variable ``token_env``. ``cache_s`` is how long an answer is good; ``timeout_s`` bounds each request."""

    address: str = ""
    mount: str = "secret"
    kv: Literal[1, 2] = 2
    path: str = "skillyard/{project}/{name}"
    field: str = "value"
    token_file: Path | None = None
    token_env: str = "VAULT_TOKEN"  # noqa: S105 - a variable's name
    namespace: str = ""
    ca_file: Path | None = None
    timeout_s: float = Field(default=5.0, gt=0, le=60)
    cache_s: float = Field(default=30.0, ge=0, le=3600)


class DeliverySettings(_Section):
    """For one secret that a reader has: as ``skillyard secret set`` says it of those in the store."""

    delivery: Delivery = Delivery.ENV
    hosts: tuple[str, ...] = ()


class SecretSettings(_Section):
    """The key that seals the store: the variable SKILLYARD_SECRETS_KEY, or ``key_file``, or the kernel's ``keyring``
    (the key's name in it); else a file in the data directory. ``versions`` of each secret are kept. ``readers`` are
    asked in their order for what the store does not have; ``deliveries`` are by secret's name, for what they have.
    ``audit_ttl_s`` is how long uses and changes are kept, 0 for ever."""

    key_file: Path | None = None
    keyring: str = Field(default="", pattern=r"^[A-Za-z0-9:._-]{0,64}$")
    versions: int = Field(default=5, ge=1, le=100)
    audit_ttl_s: float = Field(default=365 * 86400.0, ge=0)
    readers: tuple[ReaderName, ...] = ()
    environment: EnvironmentReaderSettings = EnvironmentReaderSettings()
    files: FilesReaderSettings = FilesReaderSettings()
    vault: VaultReaderSettings = VaultReaderSettings()
    deliveries: dict[str, DeliverySettings] = Field(default_factory=dict)

    def check(self) -> None:
        """Raises InvalidInput naming the setting."""
        if self.key_file is not None and self.keyring:
            raise InvalidInput("secrets.key_file", "must not be given beside secrets.keyring: one place holds the key")
        if len(set(self.readers)) != len(self.readers):
            raise InvalidInput("secrets.readers", "must not name one twice")
        for name, delivery in self.deliveries.items():
            check_secret_name("secrets.deliveries", name)
            bound_hosts(delivery.hosts, f"secrets.deliveries.{name}.hosts")
        for reader in ("environment", "files", "vault"):
            _check_whose(f"secrets.{reader}", getattr(self, reader))


def _check_whose(section: str, settings: _ReaderSettings) -> None:
    for index, project in enumerate(settings.projects):
        check_project(f"{section}.projects[{index}]", project)
    for index, skills in enumerate(settings.skills):
        try:
            SecretScope("", skills).check()
        except InvalidInput as error:
            raise InvalidInput(f"{section}.skills[{index}]", error.rule) from None
