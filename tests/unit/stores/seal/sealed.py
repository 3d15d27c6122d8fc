"""Sealed stores with keys that are given, and what they hold."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from skillyard.domain.secret import SecretScope
from skillyard.stores.seal.keys import GivenKeys, OwnKeyFile
from skillyard.stores.seal.secrets import SealedSecrets

CRM = SecretScope("crm", "sales.*")


def fresh_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


def given(directory: Path, *keys: str) -> SealedSecrets:
    return SealedSecrets(directory, GivenKeys(",".join(keys)))


def own_keys(directory: Path) -> OwnKeyFile:
    return OwnKeyFile(directory / "secrets.key", directory / "secrets.sealed")


async def value(store: SealedSecrets, name: str = "A", scope: SecretScope = CRM) -> str | None:
    found = await store.find(name, scope.project or "p", scope.skills.replace("*", "x") or "s")
    return None if found is None else found.value
