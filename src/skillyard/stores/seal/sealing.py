"""The sealed file as a value, and back.

AES-256-GCM (NIST SP 800-38D) seals the index, and each value by itself. A value is opened only when a run gets it;
between uses nothing but ciphertext is in memory. It is bound to its name, scope, number and a random id that the index
holds, and the index is sealed as a whole. So without the key nobody can read a name, alter, swap, leave out or put back
a single entry or version. The whole file can be put back as it was once: ``generation``, which counts changes, tells
only a process that has seen a later one.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from skillyard.domain.errors import StoreFault
from skillyard.domain.secret import EVERYBODY, Delivery, SecretEntry, SecretScope, SecretVersion
from skillyard.stores.seal.keys import Key
from skillyard.values import dataclass

FORMAT = 2
OLD_FORMAT = 1
NONCE_BYTES = 12


class Cipher:
    """One key at work."""

    def __init__(self, key: Key) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to import, seldom needed

        self.key_id = key.id
        self._cipher = AESGCM(key.material)

    def seal(self, plain: bytes, bound: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, bound)

    def open(self, sealed: bytes, bound: bytes, name: str) -> bytes:
        """Raises StoreFault for anything that this key did not seal together with ``bound``."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise StoreFault(f"{name} was changed without its key; restore it from a backup") from None


@dataclass(frozen=True, slots=True)
class SealedFile:
    """``values`` are sealed, by the ids of versions. ``mark`` tells two files of one generation apart."""

    cipher: Cipher | None = None
    generation: int = 0
    mark: str = ""
    entries: Mapping[tuple[str, str, str], SecretEntry] = field(default_factory=dict)
    values: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    by_name: dict[str, list[SecretEntry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _, entry in sorted(self.entries.items()):
            self.by_name.setdefault(entry.name, []).append(entry)

    def value(self, entry: SecretEntry, version: SecretVersion, name: str) -> str:
        """The value of one version; ``name`` is the file's, for errors."""
        assert self.cipher is not None
        return self.cipher.open(
            self.values[version.id], _bound_value(self.cipher.key_id, entry, version), name
        ).decode()


def seal_value(cipher: Cipher, entry: SecretEntry, version: SecretVersion, value: str) -> bytes:
    return cipher.seal(value.encode(), _bound_value(cipher.key_id, entry, version))


def dump(
    cipher: Cipher, generation: int, entries: Sequence[SecretEntry], values: Mapping[str, bytes]
) -> tuple[bytes, str]:
    """The file, and its mark."""
    index = {"generation": generation, "secrets": [_row(entry) for entry in entries]}
    sealed = cipher.seal(json.dumps(index, separators=(",", ":")).encode(), _bound_index(cipher.key_id))
    kept = {version.id for entry in entries for version in entry.versions}
    envelope = {
        "v": FORMAT,
        "key": cipher.key_id,
        "index": base64.b64encode(sealed).decode(),
        "values": {id_: base64.b64encode(values[id_]).decode() for id_ in sorted(kept)},
    }
    return json.dumps(envelope, indent=1).encode() + b"\n", sealed[:NONCE_BYTES].hex()


def load(data: bytes, keys: Sequence[Key], name: str, changed_at: float) -> SealedFile:
    """Raises StoreFault for another format, an unknown key, and any change made without the key. ``changed_at`` stands
    for what the first format did not keep."""
    envelope = _envelope(data, name)
    key_id = str(envelope["key"])
    key = next((key for key in keys if key.id == key_id), None)
    if key is None:
        raise StoreFault(f"{name} was sealed with a key that is not at hand (key id {key_id[:16]})")
    if envelope["v"] == OLD_FORMAT:
        return _from_old(Cipher(key), envelope, name, changed_at)
    cipher = Cipher(key)
    try:
        sealed = _unbase64(envelope["index"])
        values = {str(id_): _unbase64(text) for id_, text in envelope["values"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(name) from None
    index = json.loads(cipher.open(sealed, _bound_index(key_id), name))
    entries = [_entry(row) for row in index["secrets"]]
    if values.keys() != {version.id for entry in entries for version in entry.versions}:
        raise StoreFault(f"{name} was changed without its key; restore it from a backup")
    return SealedFile(cipher, index["generation"], sealed[:NONCE_BYTES].hex(), {e.key: e for e in entries}, values)


def key_id(data: bytes, name: str) -> str:
    """Returns the id of the key that sealed a file. Raises StoreFault for another format."""
    return str(_envelope(data, name)["key"])


def _envelope(data: bytes, name: str) -> dict[str, Any]:
    try:
        envelope = json.loads(data)
        version, _ = envelope["v"], envelope["key"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(name) from None
    if version not in (OLD_FORMAT, FORMAT):
        raise StoreFault(f"{name} was written by another version of skillyard; upgrade skillyard")
    assert isinstance(envelope, dict)
    return envelope


def _from_old(cipher: Cipher, envelope: Mapping[str, Any], name: str, changed_at: float) -> SealedFile:
    """Returns the secrets of the first format, which sealed all names and values as one.

    Each becomes the first version of a secret for everybody."""
    try:
        sealed = _unbase64(envelope["nonce"]) + _unbase64(envelope["sealed"])
    except (ValueError, KeyError, TypeError):
        raise _damaged(name) from None
    plain = json.loads(cipher.open(sealed, f"skillyard secrets {OLD_FORMAT} {cipher.key_id}".encode(), name))
    entries, values = {}, {}
    for secret, value in plain.items():
        version = SecretVersion(1, changed_at, "", os.urandom(16).hex())
        entry = SecretEntry(secret, EVERYBODY, Delivery.ENV, (), 1, (version,))
        entries[entry.key] = entry
        values[version.id] = seal_value(cipher, entry, version, value)
    return SealedFile(cipher, 0, sealed[:NONCE_BYTES].hex(), entries, values)


def _row(entry: SecretEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "project": entry.scope.project,
        "skills": entry.scope.skills,
        "delivery": entry.delivery.value,
        "hosts": list(entry.hosts),
        "current": entry.current,
        "versions": [[v.number, v.created_at, v.created_by, v.id] for v in entry.versions],
    }


def _entry(row: Mapping[str, Any]) -> SecretEntry:
    return SecretEntry(
        name=row["name"],
        scope=SecretScope(row["project"], row["skills"]),
        delivery=Delivery(row["delivery"]),
        hosts=tuple(row["hosts"]),
        current=row["current"],
        versions=tuple(SecretVersion(*version) for version in row["versions"]),
    )


def _bound_value(key_id: str, entry: SecretEntry, version: SecretVersion) -> bytes:
    """Returns the text that is authenticated beside a value. No part can hold a line break."""
    parts = ("skillyard secret value", str(FORMAT), key_id, *entry.key, str(version.number), version.id)
    return "\n".join(parts).encode()


def _bound_index(key_id: str) -> bytes:
    return f"skillyard secret index\n{FORMAT}\n{key_id}".encode()


def _unbase64(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError("not text")
    return base64.b64decode(text, validate=True)


def _damaged(name: str) -> StoreFault:
    return StoreFault(f"{name} is damaged; restore it from a backup")
