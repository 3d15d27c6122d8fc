"""The keys that seal the secrets: from the environment, or from a file made at first use."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from skillyard.domain.errors import StoreFault
from skillyard.stores.state_file import StateFile

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Key:
    """256 bits. ``id`` says which key sealed a file, and nothing about its bits."""

    material: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(b"skillyard key id" + self.material).hexdigest()[:16]

    def text(self) -> str:
        return base64.urlsafe_b64encode(self.material).decode()


def new_key() -> Key:
    return Key(os.urandom(KEY_BYTES))


def parse_keys(text: str, source: str) -> list[Key]:
    """Keys in base64 (either alphabet), separated by commas or white space: the first seals, all open.

    Raises StoreFault naming ``source``, never the text.
    """
    keys = [_parse(word, source) for word in text.replace(",", " ").split()]
    if not keys:
        raise StoreFault(f"{source} holds no key; give {KEY_BYTES} random bytes in base64")
    return keys


class KeyFile:
    """One key a line, the current one first."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def read(self) -> list[Key] | None:
        """None when there is no key yet."""
        data = self._file.read()
        return None if data is None else parse_keys(data.decode("ascii", "replace"), str(self._file.path))

    def write(self, keys: Sequence[Key]) -> None:
        self._file.replace("".join(f"{key.text()}\n" for key in keys).encode())


def _parse(word: str, source: str) -> Key:
    try:
        material = base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        material = b""
    if len(material) != KEY_BYTES:
        raise StoreFault(f"{source} holds something that is no key; a key is {KEY_BYTES} bytes in base64")
    return Key(material)
