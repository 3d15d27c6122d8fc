"""Sessions and secret values of detached runs, sealed with the key of the secrets.

Each state is a file of its own, named by its key. It is bound to that name, to its kind and to the key that sealed it:
it cannot be read, changed or given to another run without it. A file can be put back as it was once; it means something
only while the sandbox of its run lives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.seal.keys import Key, KeySource
from skillyard.stores.seal.sealing import Cipher
from skillyard.threads import to_its_end

_SUFFIX = ".sealed"
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ID = 16


class SealedStates:
    """States of one ``kind`` in ``directory``, which is made at need. No two kinds take each other's files."""

    def __init__(self, directory: Path, keys: KeySource, kind: str) -> None:
        self._directory = directory
        self._keys = keys
        self._kind = kind
        self._head = f"skillyard-{kind.split()[-1]}-1 ".encode()
        self._lock = StateFile(directory / directory.name)
        self._cipher: Cipher | None = None

    async def put(self, key: str, state: bytes) -> None:
        await to_its_end(self._put, self._path(key), state)

    async def get(self, key: str) -> bytes | None:
        path = self._path(key)
        # Most have no state, and to look takes less than to ask a thread.
        return None if StateFile(path).stamp() is None else await to_its_end(self._get, path)

    async def erase(self, key: str) -> None:
        path = self._path(key)
        if any(StateFile(one).stamp() is not None for one in (path, _part(path))):
            await to_its_end(self._erase, path)

    async def keys(self) -> Collection[str]:
        return await to_its_end(self._names)

    def reseal(self) -> None:
        """Seals every state with the current key, before earlier keys go. Raises StoreFault."""
        if not self._directory.exists():
            return
        with self._lock.locked():
            for name in self._names():
                path = self._path(name)
                if (state := self._get(path)) is not None:
                    self._write(path, state)

    def _put(self, path: Path, state: bytes) -> None:
        with self._lock.locked():  # a rotation of the key sees this state, or this sees the new key
            self._write(path, state)

    def _write(self, path: Path, state: bytes) -> None:
        """Writes without syncing: a host that goes down takes the sandboxes with it."""
        cipher = self._made(self._keys.sealing())
        sealed = self._head + cipher.key_id.encode("ascii") + cipher.seal(state, self._bound(cipher.key_id, path))
        StateFile(path).replace(sealed, sync=False)

    def _get(self, path: Path) -> bytes | None:
        data = StateFile(path).read()
        if data is None:
            return None
        begin = len(self._head) + _ID
        if not data.startswith(self._head) or len(data) < begin:
            raise StoreFault(f"{path} is damaged, or was written by another version of skillyard")
        key_id = data[len(self._head) : begin].decode("ascii", "replace")
        cipher = self._made(_of(self._keys.read(), key_id, path))
        return cipher.open(data[begin:], self._bound(key_id, path), str(path))

    def _erase(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
            _part(path).unlink(missing_ok=True)
        except OSError as error:
            raise StateFile(path).fault(error) from error

    def _names(self) -> list[str]:
        try:
            found = list(self._directory.glob(f"*{_SUFFIX}"))
        except OSError as error:
            raise self._lock.fault(error) from error
        return [path.name.removesuffix(_SUFFIX) for path in found if not path.name.startswith(".")]

    def _made(self, key: Key) -> Cipher:
        if self._cipher is None or self._cipher.key_id != key.id:
            self._cipher = Cipher(key)
        return self._cipher

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise StoreFault(f"the key of a {self._kind} must be 1 to 128 letters, digits, '_' and '-'")
        return self._directory / f"{key}{_SUFFIX}"

    def _bound(self, key_id: str, path: Path) -> bytes:
        return f"skillyard {self._kind}\n1\n{key_id}\n{path.name}".encode()


class SealedSessions(SealedStates):
    """A :class:`~skillyard.ports.gate.SessionStore`."""

    def __init__(self, directory: Path, keys: KeySource) -> None:
        super().__init__(directory, keys, "network session")


def _part(path: Path) -> Path:
    """Returns what a server that died while it wrote a state may have left."""
    return path.with_name(f".{path.name}.new")


def _of(keys: Sequence[Key], key_id: str, path: Path) -> Key:
    found = next((key for key in keys if key.id == key_id), None)
    if found is None:
        raise StoreFault(f"{path} was sealed with a key that is not at hand (key id {key_id})")
    return found
