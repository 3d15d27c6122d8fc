"""The keys that seal the secrets, and where they come from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.seal.keyring import MOST_TEXT, read_key
from skillyard.stores.seal.small_file import read_small

KEY_BYTES = 32
KEY_VARIABLE = "SKILLYARD_SECRETS_KEY"


@dataclass(frozen=True, slots=True)
class Key:
    """256 bits. ``id`` says which key sealed a file, and nothing about its bits."""

    material: bytes = field(repr=False)

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


class KeySource(Protocol):
    """Where keys are. Its methods block for a moment."""

    def read(self) -> list[Key]:
        """The first seals, all open. Raises StoreFault when there is none, or none can be had."""
        ...

    def sealing(self) -> Key:
        """The current key, which may be made now. Raises StoreFault."""
        ...

    def begin_rotation(self) -> None:
        """Put a new key in front of those that are there, where that is ours to do."""
        ...

    def end_rotation(self) -> None:
        """Everything is sealed under the current key: drop the others, where that is ours to do."""
        ...


class OwnKeyFile:
    """``secrets.key`` in the data directory: one key a line, made when first needed. It protects copies and backups of
    the sealed file, not against those who can read both."""

    def __init__(self, path: Path, sealed: Path) -> None:
        self._file = StateFile(path)
        self._sealed = sealed

    def read(self) -> list[Key]:
        keys = self._read()
        if keys is None:
            rule = f"restore {self._file.path.name} beside it, or give the key another way ({KEY_VARIABLE})"
            raise StoreFault(f"the key of {self._sealed} is missing; {rule}")
        return keys

    def sealing(self) -> Key:
        keys = self._read()
        if keys is None and self._sealed.exists():
            return self.read()[0]
        if keys is None:
            keys = [new_key()]
            self._write(keys)
        return keys[0]

    def begin_rotation(self) -> None:
        self._write([new_key(), *(self._read() or [])])

    def end_rotation(self) -> None:
        self._write(self.read()[:1])

    def _read(self) -> list[Key] | None:
        data = self._file.read()
        return None if data is None else parse_keys(data.decode("ascii", "replace"), str(self._file.path))

    def _write(self, keys: Sequence[Key]) -> None:
        self._file.replace("".join(f"{key.text()}\n" for key in keys).encode())


class GivenSource:
    """Keys that are the operator's to change: put the new one in front, rotate, then drop the old one."""

    def read(self) -> list[Key]:
        raise NotImplementedError

    def sealing(self) -> Key:
        return self.read()[0]

    def begin_rotation(self) -> None:
        return None

    def end_rotation(self) -> None:
        return None


class GivenKeys(GivenSource):
    """Keys as text that came with the process, such as a variable's. Raises StoreFault naming ``source``."""

    def __init__(self, text: str, source: str = KEY_VARIABLE) -> None:
        self._keys = parse_keys(text, source)

    def read(self) -> list[Key]:
        return self._keys


class GivenKeyFile(GivenSource):
    """A file that something else provides: a credential of systemd, a secret of Docker or Kubernetes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Key]:
        data = read_small(self._path, MOST_TEXT)
        if data is None:
            raise StoreFault(f"the key file {self._path} is missing")
        return parse_keys(data.decode("ascii", "replace"), str(self._path))


class KeyringKeys(GivenSource):
    """``name`` is the description of the key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self) -> list[Key]:
        return parse_keys(read_key(self._name).decode("ascii", "replace"), f"the kernel keyring's key '{self._name}'")


def key_source(home: Path, *, variable: str | None, file: Path | None, keyring: str) -> KeySource:
    """The one that is configured; the data directory's own file when none is. Raises InvalidInput for several,
    StoreFault for a variable that holds no key."""
    given = {KEY_VARIABLE: variable is not None, "secrets.key_file": file is not None, "secrets.keyring": bool(keyring)}
    named = [name for name, is_given in given.items() if is_given]
    if len(named) > 1:
        raise InvalidInput(named[0], f"must not be given beside {named[1]}: one place holds the key")
    if variable is not None:
        return GivenKeys(variable)
    if file is not None:
        return GivenKeyFile(file)
    if keyring:
        return KeyringKeys(keyring)
    return OwnKeyFile(home / "secrets.key", home / "secrets.sealed")


def _parse(word: str, source: str) -> Key:
    try:
        material = base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        material = b""
    if len(material) != KEY_BYTES:
        raise StoreFault(f"{source} holds something that is no key; a key is {KEY_BYTES} bytes in base64")
    return Key(material)
