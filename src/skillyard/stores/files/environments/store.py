"""Locks and built environments below one directory that this process owns.

``<digest>/`` is what sandboxes are shown, ``<digest>.json`` what is known of it (whose time of change says when it was
used last), ``locks/`` what requirements were resolved to. The directory is renamed into place last, so that what has no
directory is not there; whatever else lies around was left by a crash.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from skillyard.domain.errors import StoreFault
from skillyard.domain.package.environment import BuiltEnvironment, Lock, Wanted
from skillyard.ports.clock import Clock
from skillyard.ports.environments import Arrival, BadEnvironment, Origin, StoredLock, TooLarge
from skillyard.stores.archives import ArchiveRefused, ReceiverLimits, receive_tar
from skillyard.stores.disk import remove_tree
from skillyard.stores.files.environments.installed import Installed, check_installed, wheel_tags
from skillyard.stores.files.environments.locks import TEMPORARY, Locks, read_json, write_json

T = TypeVar("T")

TOUCHED_EVERY_S = 600.0
"""How often it is written down that an environment is used."""
MOST_ENTRIES = 500_000


class LocalEnvironments:
    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._locks = Locks(directory / "locks")
        self._known: dict[str, BuiltEnvironment] = {}
        self._written: dict[str, float] = {}
        """When those that are used were last written down as used."""

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
            installed = await _to_its_end(check_installed, staging, arrival.lock)
            built = self._built(arrival, installed)
            await _to_its_end(self._place, staging, built)
        except ArchiveRefused as refused:
            kind = TooLarge if refused.rule == "archive-bytes" else BadEnvironment
            raise kind(f"the build's result is refused: {refused}") from refused
        except OSError as error:
            raise _fault(error) from error
        finally:
            await _to_its_end(remove_tree, staging)
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
        """Temporary names, facts without an environment, and environments whose facts cannot be read."""
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


async def _to_its_end(work: Callable[..., T], *args: Any) -> T:
    """A thread goes on when its caller is cancelled: what comes after would meet it at work."""
    working = asyncio.get_running_loop().run_in_executor(None, work, *args)
    cancelled = False
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        working.exception()
        raise asyncio.CancelledError
    return working.result()


def _fault(error: OSError) -> StoreFault:
    return StoreFault(f"the environments cannot be read or written: {error.strerror or error}")
