"""``[secrets]``: the key of the secret store, and further places of secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from skillyard.config.section import Lifetime, Section
from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import check_project
from skillyard.domain.secret import Delivery, SecretScope, bound_hosts, check_secret_name

ReaderName = Literal["environment", "files", "vault"]
_PROJECTS = "Projects that the reader serves; empty is all."
_SKILLS = "Skills that the reader serves, by name or by the start of a name with `*`; empty is all."


class _ReaderSettings(Section):
    projects: tuple[str, ...] = Field(default=(), description=_PROJECTS)
    skills: tuple[str, ...] = Field(default=(), description=_SKILLS)


class EnvironmentReaderSettings(_ReaderSettings):
    """Variables of the server."""

    model_config = ConfigDict(title="secrets.environment")

    prefix: str = Field(
        default="SKILLYARD_SECRET_",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$",
        description="Start of the variables' names; the secret's name follows.",
    )


class FilesReaderSettings(_ReaderSettings):
    """One file for each secret."""

    model_config = ConfigDict(title="secrets.files")

    directory: Path = Field(
        default=Path("/run/secrets"),
        description="Directory with one file for each secret, called as it is. The line break at a file's end does not "
        "belong to the value.",
    )


class VaultReaderSettings(_ReaderSettings):
    """HashiCorp Vault or OpenBao, engine KV."""

    model_config = ConfigDict(title="secrets.vault")

    address: str = Field(default="", description="URL of the server.")
    mount: str = Field(default="secret", description="Where the KV engine is mounted.")
    kv: Literal[1, 2] = Field(default=2, description="Version of the KV engine.")
    path: str = Field(
        default="skillyard/{project}/{name}",
        description="Path below `mount`; it may hold `{project}`, `{skill}` and `{name}`.",
    )
    field: str = Field(
        default="value",
        description="Field of the entry at that path; it may hold `{project}`, `{skill}` and `{name}`.",
    )
    token_file: Path | None = Field(
        default=None,
        description="File with the token; it is read anew when it changes.",
    )
    token_env: str = Field(
        default="VAULT_TOKEN",
        description="Variable that holds the token where no file does.",
    )
    namespace: str = Field(default="", description="Namespace of Vault Enterprise or OpenBao.")
    ca_file: Path | None = Field(default=None, description="Certificates to trust beside those of the host.")
    timeout_s: float = Field(default=5.0, gt=0, le=60, description="Time that one request may take.")
    cache_s: float = Field(
        default=30.0, ge=0, le=3600, description="Time for which an answer is good; 0 asks each time."
    )


class DeliverySettings(Section):
    """The delivery of one secret of a reader, as ``skillyard secret set`` has it for the store."""

    model_config = ConfigDict(title="secrets.deliveries")

    delivery: Delivery = Field(default=Delivery.ENV, description="How the secret reaches a run.")
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts that a secret delivered at the gate is bound to.",
    )


class SecretSettings(Section):
    """The key that seals the store, and the readers of secrets that lie elsewhere.

    The key is the variable SKILLYARD_SECRETS_KEY, ``key_file`` or the kernel's ``keyring``; else a file in the data
    directory.
    """

    model_config = ConfigDict(title="secrets")

    key_file: Path | None = Field(
        default=None,
        description="File with the key of the store. Set it to keep the key apart from the data directory.",
    )
    keyring: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9:._-]{0,64}$",
        description="Name of the store's key in the kernel's keyring.",
    )
    versions: int = Field(default=5, ge=1, le=100, description="Versions of each secret that are kept.")
    audit_ttl_s: Lifetime = Field(
        default=365 * 86400.0, description="Time for which uses and changes of secrets are kept; 0 is for ever."
    )
    readers: tuple[ReaderName, ...] = Field(
        default=(),
        description="Places that are asked, in this order, for secrets that the store does not have.",
    )
    environment: EnvironmentReaderSettings = EnvironmentReaderSettings()
    files: FilesReaderSettings = FilesReaderSettings()
    vault: VaultReaderSettings = VaultReaderSettings()
    deliveries: dict[str, DeliverySettings] = Field(
        default_factory=dict,
        description="By the name of a secret that a reader has: how it reaches a run, and the hosts that it is bound "
        "to.",
    )

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        """Raises InvalidInput naming the setting."""
        if self.key_file is not None and self.keyring:
            raise InvalidInput("secrets.key_file", "must not be given beside secrets.keyring: one place holds the key")
        if len(set(self.readers)) != len(self.readers):
            raise InvalidInput("secrets.readers", "must not name one twice")
        for name, delivery in self.deliveries.items():
            check_secret_name("secrets.deliveries", name)
            bound_hosts(delivery.hosts, f"secrets.deliveries.{name}.hosts")
        for reader in ("environment", "files", "vault"):
            _check_scope(f"secrets.{reader}", getattr(self, reader))
        return self


def _check_scope(section: str, settings: _ReaderSettings) -> None:
    for index, project in enumerate(settings.projects):
        check_project(f"{section}.projects[{index}]", project)
    for index, skills in enumerate(settings.skills):
        try:
            SecretScope("", skills).check()
        except InvalidInput as error:
            raise InvalidInput(f"{section}.skills[{index}]", error.rule) from None
