"""Secrets in one sealed file, the key kept apart.

The command line may change the file while a server runs: a change is seen at the next read. Each change writes the
whole file anew and leaves every version sealed under the current key (:mod:`skillyard.stores.seal.sealing`).
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from skillyard.domain.errors import QuotaExceeded, SecretNotFound, StoreFault
from skillyard.domain.secret import (
    EVERYBODY,
    MAX_SECRETS,
    Delivery,
    Secret,
    SecretEntry,
    SecretScope,
    bound_hosts,
    check_secret_name,
    check_secret_value,
    choose,
)
from skillyard.ports.clock import Clock
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.state_file import Stamp, StateFile
from skillyard.stores.seal.keys import KeySource, OwnKeyFile
from skillyard.stores.seal.sealing import Cipher, SealedFile, dump, load, seal_value
from skillyard.stores.seal.sessions import SealedSessions, SealedStates

T = TypeVar("T")
Entries = dict[tuple[str, str, str], SecretEntry]
Fresh = dict[str, str]
"""Values to be sealed, by the ids of their versions."""

MAX_FILE_BYTES = 64 * 1024 * 1024
KEPT_VERSIONS = 5
_NOTHING = SealedFile()


class SealedSecrets:
    """A :class:`skillyard.ports.secrets.SecretStore` in ``directory``: ``secrets.sealed``, and ``secrets.key`` unless
    ``keys`` come from elsewhere. ``keep`` versions of each secret stay. The values of detached runs
    (``run/secrets``) and ``sessions`` are sealed with the same key."""

    label = "store"

    def __init__(
        self,
        directory: Path,
        keys: KeySource | None = None,
        *,
        clock: Clock | None = None,
        keep: int = KEPT_VERSIONS,
        sessions: SealedSessions | None = None,
    ) -> None:
        self._file = StateFile(directory / "secrets.sealed")
        self._keys = keys or OwnKeyFile(directory / "secrets.key", self._file.path)
        self._clock = clock or SystemClock()
        self._keep = keep
        self._sessions = sessions
        self._given = SealedStates(directory / "run" / "secrets", self._keys, "run's values")
        self._seen: tuple[Stamp, SealedFile] = (None, _NOTHING)
        self._reading = threading.Lock()
        self._newest = _NOTHING

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        """As the port says. Raises StoreFault when the file was tampered with or its key is missing."""
        found = await self._current()
        entry = choose(found.by_name.get(name, ()), project, skill)
        if entry is None:
            return None
        version = entry.version(entry.current)
        assert version is not None
        value = found.value(entry, version, str(self._file.path))
        return Secret(name, value, f"{self.label}:{version.number}", entry.delivery, entry.hosts, entry.scope)

    async def list(self) -> Sequence[SecretEntry]:
        found = await self._current()
        return [entry for _, entry in sorted(found.entries.items())]

    async def set(
        self,
        name: str,
        value: str,
        scope: SecretScope = EVERYBODY,
        *,
        delivery: Delivery | None = None,
        hosts: Sequence[str] | None = None,
        by: str = "",
    ) -> SecretEntry:
        check_secret_name("name", name)
        check_secret_value("value", value)
        scope.check()
        bound_hosts(hosts or ())

        def change(entries: Entries, fresh: Fresh) -> SecretEntry:
            entry = entries.get((name, scope.project, scope.skills))
            if entry is None:
                _check_room(entries)
                entry = SecretEntry(name, scope, Delivery.ENV, (), 0, ())
            id_ = os.urandom(16).hex()
            fresh[id_] = value
            entry = entry.with_version(id_, self._clock.now(), by, self._keep)
            entry = replace(
                entry,
                delivery=entry.delivery if delivery is None else delivery,
                hosts=entry.hosts if hosts is None else tuple(hosts),
            )
            entries[entry.key] = entry
            return entry

        return await asyncio.to_thread(self._change, change)

    async def bind(
        self, name: str, scope: SecretScope = EVERYBODY, *, delivery: Delivery, hosts: Sequence[str]
    ) -> SecretEntry:
        bound_hosts(hosts)
        return await self._replace(name, scope, lambda e: replace(e, delivery=delivery, hosts=tuple(hosts)))

    async def rollback(self, name: str, version: int, scope: SecretScope = EVERYBODY) -> SecretEntry:
        return await self._replace(name, scope, lambda entry: entry.rolled_back(version))

    async def delete(self, name: str, scope: SecretScope = EVERYBODY) -> bool:
        key = (name, scope.project, scope.skills)
        if key not in (await self._current()).entries:
            return False
        return await asyncio.to_thread(self._change, lambda entries, _: entries.pop(key, None) is not None)

    async def rotate(self) -> int:
        """As the port says. Keys that the operator gives are the operator's to change: put the new one in front,
        rotate, then drop the old one."""
        return await asyncio.to_thread(self._rotate)

    async def keep(self, run_id: str, values: Sequence[str]) -> None:
        await self._given.put(run_id, json.dumps(list(values)).encode())

    async def kept(self, run_id: str) -> Sequence[str] | None:
        state = await self._given.get(run_id)
        return None if state is None else tuple(json.loads(state))

    async def forget(self, run_id: str) -> None:
        await self._given.erase(run_id)

    async def keeping(self) -> Collection[str]:
        return await self._given.keys()

    async def close(self) -> None:
        return None

    async def _replace(
        self, name: str, scope: SecretScope, change: Callable[[SecretEntry], SecretEntry]
    ) -> SecretEntry:
        check_secret_name("name", name)

        def changed(entries: Entries, _: Fresh) -> SecretEntry:
            entry = entries.get((name, scope.project, scope.skills))
            if entry is None:
                raise SecretNotFound("name", f"no secret '{name}' for {scope}")
            entries[entry.key] = result = change(entry)
            return result

        return await asyncio.to_thread(self._change, changed)

    async def _current(self) -> SealedFile:
        stamp = self._file.stamp()
        if stamp != self._seen[0]:
            self._seen = (stamp, await asyncio.to_thread(self._read))
        return self._seen[1]

    def _read(self) -> SealedFile:
        with self._reading:
            stamp = self._file.stamp()
            data = self._file.read()
            changed_at = stamp[1] / 1e9 if stamp else 0.0
            name = str(self._file.path)
            found = _NOTHING if data is None else load(data, self._keys.read(), name, changed_at)
            _check_forward(self._newest, found, name)
            self._newest = found
            return found

    def _change(self, change: Callable[[Entries, Fresh], T]) -> T:
        with self._file.locked():
            found = self._read()
            entries, fresh = dict(found.entries), Fresh()
            result = change(entries, fresh)
            self._write(found, entries, fresh)
            return result

    def _rotate(self) -> int:
        with self._file.locked():
            found = self._read()
            self._keys.begin_rotation()
            self._write(found, found.entries, {})
            for states in (self._given, *([self._sessions] if self._sessions else [])):
                states.reseal()
            self._keys.end_rotation()
            return len(found.values)

    def _write(self, found: SealedFile, entries: Mapping[tuple[str, str, str], SecretEntry], fresh: Fresh) -> None:
        """Everything under the current key: what another key sealed is sealed anew."""
        key = self._keys.sealing()
        cipher = found.cipher if found.cipher is not None and found.cipher.key_id == key.id else Cipher(key)
        values: dict[str, bytes] = {}
        for entry in entries.values():
            for version in entry.versions:
                if version.id in fresh:
                    values[version.id] = seal_value(cipher, entry, version, fresh[version.id])
                elif cipher is found.cipher:
                    values[version.id] = found.values[version.id]
                else:
                    plain = found.value(entry, version, str(self._file.path))
                    values[version.id] = seal_value(cipher, entry, version, plain)
        data, mark = dump(cipher, found.generation + 1, [entry for _, entry in sorted(entries.items())], values)
        if len(data) > MAX_FILE_BYTES:
            raise QuotaExceeded("value", f"all secrets together may take {MAX_FILE_BYTES} bytes; delete some")
        with self._reading:
            self._file.replace(data)
            self._newest = SealedFile(generation=found.generation + 1, mark=mark)


def _check_forward(seen: SealedFile, found: SealedFile, name: str) -> None:
    """Raises StoreFault unless ``found`` is newer than ``seen``, or the same."""
    if found.generation > seen.generation or not seen.generation:
        return
    if found.generation == seen.generation and found.mark == seen.mark:
        return
    raise StoreFault(f"{name} was put back to an older state while it was in use; restart if that was meant")


def _check_room(entries: Entries) -> None:
    if len(entries) >= MAX_SECRETS:
        raise QuotaExceeded("name", f"at most {MAX_SECRETS} secrets can be stored; delete some")
