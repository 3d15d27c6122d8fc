"""The keys that seal the secrets, and their sources.

A key in the Linux kernel's keyring (keyrings(7)) is in no file and no environment, and gone when the host restarts. It
is looked up in the user's keyring, where ``skillyard secret key load`` or ``keyctl padd user NAME @u`` puts it at boot.
Sandboxes cannot reach it: their filter has no keyring calls, and their users are others.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import errno
import hashlib
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.seal.readers import read_small
from skillyard.values import dataclass

MOST_TEXT = 4096
"""Bytes of a key's text."""
_NUMBERS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""add_key and keyctl (syscalls(2))."""
_THREAD, _USER = -1, -4
_LINK, _UNLINK, _SEARCH, _READ = 8, 9, 10, 11


def read_key(name: str) -> bytes:
    """Returns the text of a key. Raises StoreFault."""
    _keyctl(name, _LINK, _USER, _THREAD)  # whose key one may read, one has to possess: keyrings(7)
    try:
        found = _keyctl(name, _SEARCH, _USER, b"user", name.encode(), 0)
        buffer = ctypes.create_string_buffer(MOST_TEXT)
        size = _keyctl(name, _READ, found, buffer, MOST_TEXT)
    finally:
        _keyctl(name, _UNLINK, _USER, _THREAD)
    if size > MOST_TEXT:
        raise StoreFault(f"the kernel keyring's key '{name}' is larger than {MOST_TEXT} bytes")
    return buffer.raw[:size]


def load_key(name: str, text: bytes) -> None:
    """Puts a key there, or replaces it. Raises StoreFault."""
    _call(name, _numbers(name)[0], b"user", name.encode(), text, len(text), _USER)


def forget_key(name: str) -> None:
    """Takes a key away. Raises StoreFault when there is none."""
    _keyctl(name, _UNLINK, _keyctl(name, _SEARCH, _USER, b"user", name.encode(), 0), _USER)


def _keyctl(name: str, *words: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    return _call(name, _numbers(name)[1], *words)


def _call(name: str, number: int, *words: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    arguments = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    result: int = syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise StoreFault(_why(name, ctypes.get_errno()))
    return result


def _numbers(name: str) -> tuple[int, int]:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise StoreFault(f"the key '{name}' cannot be had: there is no kernel keyring for {platform.machine()} here")
    return numbers


def _why(name: str, number: int) -> str:
    if number in (errno.ENOKEY, errno.EKEYEXPIRED, errno.EKEYREVOKED):
        return f"the kernel keyring of this user holds no key '{name}'; load it: skillyard secret key load {name}"
    if number in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        return (
            f"the kernel keyring cannot be used here for the key '{name}' ({os.strerror(number)}): containers close it"
        )
    return f"the kernel keyring refuses the key '{name}': {os.strerror(number)}"


KEY_BYTES = 32
KEY_VARIABLE = "SKILLYARD_SECRETS_KEY"


@dataclass(frozen=True, slots=True)
class Key:
    """256 bits. ``id`` names the key that sealed a file, and says nothing about its bits."""

    material: bytes = field(repr=False)

    @property
    def id(self) -> str:
        return hashlib.sha256(b"skillyard key id" + self.material).hexdigest()[:16]

    def text(self) -> str:
        return base64.urlsafe_b64encode(self.material).decode()


def new_key() -> Key:
    return Key(os.urandom(KEY_BYTES))


def parse_keys(text: str, source: str) -> list[Key]:
    """Returns keys from base64 (either alphabet) that commas or white space separate.

    The first seals, all open. Raises StoreFault naming ``source``, never the text.
    """
    keys = [_parse(word, source) for word in text.replace(",", " ").split()]
    if not keys:
        raise StoreFault(f"{source} holds no key; give {KEY_BYTES} random bytes in base64")
    return keys


class KeySource(ABC):
    """A source of keys. The operator changes them: a new one in front, ``rotate``, then the old one goes.

    Its methods block for a moment."""

    @abstractmethod
    def read(self) -> list[Key]:
        """Returns the keys: the first seals, all open. Raises StoreFault when there are none."""

    def sealing(self) -> Key:
        """Returns the current key, which may be made now. Raises StoreFault."""
        return self.read()[0]

    def begin_rotation(self) -> None:
        """Puts a new key in front of the others, unless the operator does that."""
        return

    def end_rotation(self) -> None:
        """Drops all keys but the current one, which seals everything now, unless the operator does."""
        return


class OwnKeyFile(KeySource):
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


class GivenKeys(KeySource):
    """Keys in a text that came with the process, such as a variable's. Raises StoreFault naming ``source``."""

    def __init__(self, text: str, source: str = KEY_VARIABLE) -> None:
        self._keys = parse_keys(text, source)

    def read(self) -> list[Key]:
        return self._keys


class GivenKeyFile(KeySource):
    """Keys in a file that systemd, Docker or Kubernetes provides."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Key]:
        data = read_small(self._path, MOST_TEXT)
        if data is None:
            raise StoreFault(f"the key file {self._path} is missing")
        return parse_keys(data.decode("ascii", "replace"), str(self._path))


class KeyringKeys(KeySource):
    """Keys in the kernel's keyring; ``name`` is the description of the key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self) -> list[Key]:
        return parse_keys(read_key(self._name).decode("ascii", "replace"), f"the kernel keyring's key '{self._name}'")


def key_source(home: Path, *, variable: str | None, file: Path | None, keyring: str) -> KeySource:
    """Returns the source that is configured, else the data directory's own file. Raises InvalidInput for several
    sources, StoreFault for a variable without a key."""
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
        raise StoreFault(f"{source} holds something that is not a key; a key is {KEY_BYTES} bytes in base64")
    return Key(material)
