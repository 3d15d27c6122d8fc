"""Secrets in one sealed file: AES-256-GCM over all names and values, the key kept apart.

The command line may change the file while a server runs: a change is seen at the next read. Whoever alters
the file without the key is found out. The key file protects backups and copies of the sealed file, not
against those who can read both; give the key by environment to keep it off the disk.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from skillyard.domain.errors import StoreFault
from skillyard.domain.secret import check_secret_name, check_secret_value
from skillyard.stores.secret_keys import Key, KeyFile, new_key, parse_keys
from skillyard.stores.state_file import Stamp, StateFile

T = TypeVar("T")

KEY_VARIABLE = "SKILLYARD_SECRETS_KEY"
FORMAT = 1
NONCE_BYTES = 12


class SealedSecrets:
    """A :class:`skillyard.ports.secrets.SecretStore` in ``directory``: ``secrets.sealed``, ``secrets.key``.

    ``key`` (what :data:`KEY_VARIABLE` holds) takes the place of the key file: base64 of 32 bytes, or several
    with commas between, of which the first seals and all open.
    """

    def __init__(self, directory: Path, *, key: str | None = None) -> None:
        self._file = StateFile(directory / "secrets.sealed")
        self._key_file = KeyFile(StateFile(directory / "secrets.key"))
        self._given = None if key is None else parse_keys(key, KEY_VARIABLE)
        self._seen: tuple[Stamp, Mapping[str, str]] = (None, {})

    async def get(self, name: str) -> str | None:
        """Raises StoreFault when the file was tampered with or its key is missing."""
        return (await self._values()).get(name)

    async def set(self, name: str, value: str) -> None:
        check_secret_name("name", name)
        check_secret_value("value", value)
        await asyncio.to_thread(self._change, lambda values: values.update({name: value}))

    async def delete(self, name: str) -> bool:
        if name not in await self._values():
            return False
        return await asyncio.to_thread(self._change, lambda values: values.pop(name, None) is not None)

    async def names(self) -> Sequence[str]:
        return sorted(await self._values())

    async def rotate(self) -> None:
        """Seal everything under a new key and forget the old one. Keys given by environment are the
        operator's to change: put the new one in front, rotate, then drop the old one."""
        await asyncio.to_thread(self._rotate)

    async def _values(self) -> Mapping[str, str]:
        stamp = self._file.stamp()
        if stamp != self._seen[0]:
            self._seen = (stamp, await asyncio.to_thread(self._read))
        return self._seen[1]

    def _read(self) -> dict[str, str]:
        data = self._file.read()
        return {} if data is None else unseal(data, self._keys(), str(self._file.path))

    def _change(self, change: Callable[[dict[str, str]], T]) -> T:
        with self._file.locked():
            values = self._read()
            result = change(values)
            self._file.replace(seal(values, self._sealing_key()))
            return result

    def _rotate(self) -> None:
        with self._file.locked():
            values = self._read()
            if self._given is None:
                self._key_file.write([new_key(), *(self._key_file.read() or [])])
            key = self._sealing_key()
            self._file.replace(seal(values, key))
            if self._given is None:
                self._key_file.write([key])

    def _keys(self) -> list[Key]:
        keys = self._given or self._key_file.read()
        if keys is None:
            rule = f"restore secrets.key beside it or set {KEY_VARIABLE}"
            raise StoreFault(f"the key of {self._file.path} is missing; {rule}")
        return keys

    def _sealing_key(self) -> Key:
        """The current key, made now when there is none: what is sealed has been opened before this."""
        if self._given is None and self._key_file.read() is None:
            self._key_file.write([new_key()])
        return self._keys()[0]


def seal(values: Mapping[str, str], key: Key) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to import, seldom needed

    nonce = os.urandom(NONCE_BYTES)
    plain = json.dumps(values, separators=(",", ":")).encode()
    envelope = {
        "v": FORMAT,
        "key": key.id,
        "nonce": base64.b64encode(nonce).decode(),
        "sealed": base64.b64encode(AESGCM(key.material).encrypt(nonce, plain, _bound(key.id))).decode(),
    }
    return json.dumps(envelope, indent=1).encode() + b"\n"


def unseal(data: bytes, keys: Sequence[Key], name: str) -> dict[str, str]:
    """Raises StoreFault for another format, an unknown key, and any change made without the key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        envelope = json.loads(data)
        version, key_id = envelope["v"], str(envelope["key"])
        nonce, sealed = (base64.b64decode(envelope[part], validate=True) for part in ("nonce", "sealed"))
    except (ValueError, KeyError, TypeError):
        raise StoreFault(f"{name} is damaged; restore it from a backup") from None
    if version != FORMAT:
        raise StoreFault(f"{name} was written by another version of skillyard; upgrade skillyard")
    key = next((key for key in keys if key.id == key_id), None)
    if key is None:
        raise StoreFault(f"{name} was sealed with a key that is not at hand (key id {key_id[:16]})")
    try:
        values: dict[str, str] = json.loads(AESGCM(key.material).decrypt(nonce, sealed, _bound(key_id)))
    except (InvalidTag, ValueError):
        raise StoreFault(f"{name} was changed without its key; restore it from a backup") from None
    return values


def _bound(key_id: str) -> bytes:
    """What is authenticated beside the content."""
    return f"skillyard secrets {FORMAT} {key_id}".encode()
