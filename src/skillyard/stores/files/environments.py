"""Locks and built environments below one directory that this process owns.

Sandboxes see ``<digest>/``. ``<digest>.json`` has its facts, and its time of change says when the environment was used
last. ``locks/`` has the locks, each in a small JSON file: the same requirements give the same versions later. The
directory is renamed into place last, so that facts without a directory were left by a crash, and so were other files.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.errors import StoreFault
from skillyard.domain.package.environment import BuiltEnvironment, Lock, Wanted
from skillyard.ports.clock import Clock
from skillyard.ports.environments import Arrival, BadEnvironment, Origin, StoredLock, TooLarge
from skillyard.stores.disk import remove_tree
from skillyard.stores.files.installed import Installed, check_installed, wheel_tags
from skillyard.tar_receiver import ReceiverLimits, receive_tar
from skillyard.threads import to_its_end

T = TypeVar("T")

TOUCHED_EVERY_S = 600.0
"""How often the use of an environment is written down."""
MOST_ENTRIES = 500_000


class LocalEnvironments:
    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._locks = Locks(directory / "locks")
        self._known: dict[str, BuiltEnvironment] = {}
        self._written: dict[str, float] = {}
        """The times at which the use of each was last written down."""

    async def lock(self, wanted: Wanted, origin: Origin) -> StoredLock | None:
        return await asyncio.to_thread(self._locks.find, wanted, origin)

    async def keep_lock(self, wanted: Wanted, origin: Origin, lock: Lock) -> None:
        await asyncio.to_thread(self._locks.keep, wanted, origin, lock, self._clock.now())

    async def find(self, digest: str) -> BuiltEnvironment | None:
        known = self._known.get(digest)
        if known is None:
            known = await asyncio.to_thread(self._read, digest)
            if known is not None:  # what was written while it was read is newer
                known = self._known.setdefault(digest, known)
        return known

    def packages(self, digest: str) -> Path:
        return self._directory / digest

    async def list(self) -> Sequence[BuiltEnvironment]:
        names = await asyncio.to_thread(self._names)
        found = [built for name in names if (built := await self.find(name)) is not None]
        return sorted(found, key=lambda built: built.used_at, reverse=True)

    async def add(self, arrival: Arrival, chunks: AsyncIterator[bytes]) -> BuiltEnvironment:
        digest = arrival.lock.digest
        try:
            staging = self._staging(digest)
        except OSError as error:
            raise _fault(error) from error
        try:
            await receive_tar(chunks, staging, ReceiverLimits(arrival.most_bytes, MOST_ENTRIES), sealed=True)
            installed = await to_its_end(check_installed, staging, arrival.lock)
            built = self._built(arrival, installed)
            await to_its_end(self._place, staging, built)
        except ArchiveRefused as refused:
            kind = TooLarge if refused.rule == "archive-bytes" else BadEnvironment
            raise kind(f"the build's result is refused: {refused}") from refused
        except OSError as error:
            raise _fault(error) from error
        finally:
            await to_its_end(remove_tree, staging)
        self._known[digest] = built
        return built

    async def annotate(self, digest: str, *, build_ms: float, log: str) -> None:
        known = await self.find(digest)
        if known is not None:
            self._known[digest] = changed = replace(known, build_ms=build_ms, log=log)
            await asyncio.to_thread(self._write, changed)

    async def wheel_tags(self, digest: str) -> Mapping[str, Sequence[str]]:
        try:
            return await asyncio.to_thread(wheel_tags, self.packages(digest))
        except OSError as error:
            raise _fault(error) from error

    async def touch(self, digest: str) -> None:
        known = self._known.get(digest)
        now = self._clock.now()
        if known is None or known.used_at == now:
            return
        self._known[digest] = replace(known, used_at=now)
        if abs(now - self._written.setdefault(digest, known.used_at)) < TOUCHED_EVERY_S:
            return
        self._written[digest] = now
        with suppress(OSError):  # it may be gone; what it was for is an order only
            await asyncio.to_thread(os.utime, self._facts(digest), (now, now))

    async def remove(self, digest: str) -> bool:
        self._known.pop(digest, None)
        self._written.pop(digest, None)
        return await asyncio.to_thread(self._remove, digest)

    async def forget_lock(self, digest: str) -> int:
        return await asyncio.to_thread(self._forget_lock, digest)

    async def sweep(self) -> int:
        return await asyncio.to_thread(self._sweep)

    def _facts(self, digest: str) -> Path:
        return self._directory / f"{digest}.json"

    def _names(self) -> Sequence[str]:
        if not self._directory.is_dir():
            return []
        return [path.name.removesuffix(".json") for path in self._directory.glob("*.json") if path.name[0] != "."]

    def _staging(self, digest: str) -> Path:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{digest}-", dir=self._directory))

    def _built(self, arrival: Arrival, installed: Installed) -> BuiltEnvironment:
        now = self._clock.now()
        return BuiltEnvironment(
            digest=arrival.lock.digest,
            requirements=arrival.requirements,
            lock=arrival.lock,
            distributions=installed.distributions,
            modules=installed.modules,
            size=installed.size,
            built_at=now,
            used_at=now,
            log=arrival.log,
        )

    def _place(self, staging: Path, built: BuiltEnvironment) -> None:
        for directory, _, _ in os.walk(staging, topdown=False):
            Path(directory).chmod(0o555)
        home = self.packages(built.digest)
        if home.is_dir():
            return
        self._write(built)
        staging.rename(home)

    def _write(self, built: BuiltEnvironment) -> None:
        data = asdict(built)
        used_at = data.pop("used_at")
        write_json(self._facts(built.digest), data, used_at)

    def _read(self, digest: str) -> BuiltEnvironment | None:
        """Facts that cannot be read are those of no environment: it is built again."""
        if "/" in digest or digest.startswith(".") or not self.packages(digest).is_dir():
            return None
        try:
            data = read_json(self._facts(digest))
            return None if data is None else _built_from(data, self._facts(digest).stat().st_mtime)
        except (StoreFault, OSError, KeyError, TypeError, ValueError):
            return None

    def _remove(self, digest: str) -> bool:
        home = self.packages(digest)
        if not home.is_dir():
            return False
        try:
            going = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}gone-", dir=self._directory))
            home.rename(going)
            self._facts(digest).unlink(missing_ok=True)
            remove_tree(going)
        except OSError as error:
            raise _fault(error) from error
        return True

    def _forget_lock(self, digest: str) -> int:
        files = list(self._locks.leading_to(digest))
        for file in files:
            file.unlink(missing_ok=True)
        return len(files)

    def _sweep(self) -> int:
        """Removes temporary files, facts without an environment, and the reverse. Returns their number."""
        if not self._directory.is_dir():
            return 0
        entries = [*self._directory.iterdir(), *(self._directory / "locks").glob(f"{TEMPORARY}*")]
        stale = [path for path in entries if path.name != "locks" and self._is_stale(path)]
        for path in stale:
            remove_tree(path)
        return len(stale)

    def _is_stale(self, path: Path) -> bool:
        return path.name.startswith(TEMPORARY) or self._read(path.name.removesuffix(".json")) is None


def _built_from(data: Mapping[str, Any], used_at: float) -> BuiltEnvironment:
    return BuiltEnvironment(
        digest=str(data["digest"]),
        requirements=tuple(data["requirements"]),
        lock=Lock(**data["lock"]),
        distributions=dict(data["distributions"]),
        modules=tuple(data["modules"]),
        size=int(data["size"]),
        built_at=float(data["built_at"]),
        used_at=used_at,
        build_ms=float(data["build_ms"]),
        log=str(data["log"]),
    )


def _fault(error: OSError) -> StoreFault:
    return StoreFault(f"the environments cannot be read or written: {error.strerror or error}")


TEMPORARY = ".tmp-"
MOST_LOCKS = 5000


def read_json(file: Path) -> dict[str, Any] | None:
    """Returns None when there is no such file. Raises StoreFault."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreFault(f"{file} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise StoreFault(f"{file} is damaged")
    return data


def write_json(file: Path, data: dict[str, Any], modified_at: float | None = None) -> None:
    """Writes a file beside and renames it: it is there whole or not at all. With ``modified_at``, nobody sees the file
    with another time. Raises StoreFault."""
    new = file.with_name(f"{TEMPORARY}{file.name}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as stream:
            json.dump(data, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if modified_at is not None:
            os.utime(new, (modified_at, modified_at))
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StoreFault(f"{file} cannot be written: {error.strerror}") from error


class Locks:
    """Its methods block for as long as a small file takes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, wanted: Wanted, origin: Origin) -> StoredLock | None:
        """Raises StoreFault."""
        return _read(self._file(wanted, origin))

    def keep(self, wanted: Wanted, origin: Origin, lock: Lock, now: float) -> None:
        """Raises StoreFault."""
        self._trim()
        stored = StoredLock(lock, wanted.requirements, origin.index, now)
        write_json(self._file(wanted, origin), asdict(stored))

    def leading_to(self, digest: str) -> Iterator[Path]:
        """The files of those that name the environment ``digest``."""
        for file in self._directory.glob("*.json"):
            stored = _read(file)
            if stored is not None and stored.lock.digest == digest:
                yield file

    def _trim(self) -> None:
        """Removes the oldest locks: callers may ask for ever new sets of packages."""
        files = list(self._directory.iterdir()) if self._directory.is_dir() else []
        if len(files) < MOST_LOCKS:
            return
        files.sort(key=lambda file: file.lstat().st_mtime)
        for file in files[: MOST_LOCKS // 10]:
            file.unlink(missing_ok=True)

    def _file(self, wanted: Wanted, origin: Origin) -> Path:
        parts = [wanted.requirements, origin.platform, origin.index, sorted(origin.source)]
        if wanted.held:
            parts.append(wanted.digest)
        return self._directory / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}.json"


def _read(file: Path) -> StoredLock | None:
    data = read_json(file)
    if data is None:
        return None
    try:
        lock = Lock(str(data["lock"]["text"]), str(data["lock"]["platform"]))
        return StoredLock(lock, tuple(data["requirements"]), str(data["index"]), float(data["resolved_at"]))
    except (KeyError, TypeError, ValueError):
        raise StoreFault(f"the lock {file} is damaged: remove it, and it is resolved anew") from None
