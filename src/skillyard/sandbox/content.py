"""The content of mounts and environments, at places on this host that a backend can bind.

Content with a path is bound where it is. Content that has only an opener is realised below a directory of the backend:
``DIGEST`` is a file, ``DIGEST.tree`` a tree. A name appears by a rename, when all bytes have come and their SHA-256 is
the digest. Marks keep it while sandboxes have it; the others go, longest unused first, when room is needed. The
directory is a cache: it is emptied after a boot, since nothing is synchronized to the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from io import RawIOBase
from pathlib import Path

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.errors import SandboxFault, shown
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import EnvironmentRef, Held, SandboxSpec
from skillyard.sandbox.turns import Turns
from skillyard.tar_receiver import ReceiverLimits, receive_tar
from skillyard.threads import to_its_end

MOST_BYTES = 4 * 1024**3
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}(?:\.tree)?")
_MARKS, _BOOT, _PART = ".marks", ".boot", ".part-"
_PINNED = "pinned"
"""The mark that belongs to no sandbox."""
_HOP = 1 << 20
"""Bytes that go to a thread at once."""


def bound(source: Content | HostDirectory) -> Path:
    """Returns the place on this host that a backend can bind. Raises SandboxFault where there is none."""
    if source.path is None:
        raise SandboxFault(f"the content {source.digest} has no place on this host")
    return source.path


class ContentCache:
    """Content without a place, realised below ``directory``. One process at a time uses it.

    ``survey`` lists the sandboxes that are held: marks of others are those of dead servers. All of it together, with
    what arrives, stays below ``most_bytes``.
    """

    def __init__(
        self, directory: Path, survey: Callable[[], Awaitable[Sequence[Held]]], most_bytes: int = MOST_BYTES
    ) -> None:
        self._directory = directory
        self._marks = directory / _MARKS
        self._survey = survey
        self._most_bytes = most_bytes
        self._opening = asyncio.Lock()
        self._sizes: dict[str, int] | None = None
        self._arriving = 0
        self._creating: list[str] = []
        self._arrivals = Turns()

    @asynccontextmanager
    async def placed(self, spec: SandboxSpec, key: str) -> AsyncIterator[SandboxSpec]:
        """Gives ``spec`` with a place for all its content, which is kept for the sandbox of ``key``.

        Nothing is kept for it when the block raises. Raises SandboxFault, and what an opener raises.
        """
        mark = _mark_of(key)
        known = any(self._marks.glob(f"*/{mark}"))
        self._creating.append(mark)
        try:
            mounts = [
                replace(mount, source=await self._realised(mount.source, mark))
                if isinstance(mount.source, Content)
                else mount
                for mount in spec.mounts
            ]
            environment = await self.with_packages(spec.environment, mark)
            yield replace(spec, mounts=tuple(mounts), environment=environment)
        except BaseException:
            if not known:
                self.release(key)
            raise
        finally:
            self._creating.remove(mark)

    async def with_packages(self, environment: EnvironmentRef, *marks: str) -> EnvironmentRef:
        """Returns ``environment`` with a place for its packages. Raises as :meth:`placed` does."""
        if environment.packages is None:
            return environment
        return replace(environment, packages=await self._realised(environment.packages, *marks))

    def pin(self, path: Path) -> None:
        """Keeps packages until :meth:`restarted`: warm interpreters show them all the time."""
        if path.parent == self._directory:
            self._mark(path.name, _PINNED)

    def release(self, key: str) -> None:
        """The sandbox of ``key`` is gone. Idempotent."""
        for mark in self._marks.glob(f"*/{_mark_of(key)}"):
            mark.unlink(missing_ok=True)
            self._use(mark.parent)

    def restarted(self) -> None:
        """No warm interpreter of before is left, so what was pinned for one is not any more."""
        for mark in self._marks.glob(f"*/{_PINNED}"):
            mark.unlink(missing_ok=True)

    async def _realised(self, content: Content, *marks: str) -> Content:
        if content.path is not None:
            return content
        if not _DIGEST.fullmatch(content.digest):
            raise SandboxFault(f"content: its digest must be a SHA-256 in hexadecimal, not {shown(content.digest)}")
        name = f"{content.digest}.tree" if content.tree else content.digest
        path = self._directory / name
        try:
            await self._open()
            async with self._arrivals.of(name):
                for mark in marks:  # first, so that it is not removed meanwhile
                    self._mark(name, mark)
                if name not in self._present:
                    await self._receive(content, path)
        except OSError as error:
            raise SandboxFault(f"content: {content.digest} cannot be kept on this host: {error}") from error
        except ArchiveRefused as refused:
            raise SandboxFault(f"content: {content.digest} is not a tree that is taken: {refused}") from None
        return replace(content, path=path)

    def _mark(self, name: str, mark: str) -> None:
        (self._marks / name).mkdir(exist_ok=True)
        (self._marks / name / mark).touch()
        self._use(self._marks / name)

    @staticmethod
    def _use(marks: Path) -> None:
        """Notes that the content is used now."""
        # By a fine clock: that of the file system stands still for some milliseconds.
        now = time.time_ns()
        os.utime(marks, ns=(now, now))

    @property
    def _present(self) -> dict[str, int]:
        """The size of each that is there, by name."""
        assert self._sizes is not None
        return self._sizes

    async def _open(self) -> None:
        async with self._opening:
            if self._sizes is None:
                self._sizes = await to_its_end(_opened, self._directory)

    async def _receive(self, content: Content, path: Path) -> None:
        part = self._directory / f"{_PART}{secrets.token_hex(8)}"
        taken = _Taken(content.digest)
        try:
            async with aclosing(self._arrives(content, taken)) as chunks:
                if content.tree:
                    part.mkdir(0o700)
                    await receive_tar(chunks, part, ReceiverLimits(self._most_bytes), sealed=True)
                else:
                    await _write(chunks, part)
            taken.check()
            await to_its_end(_seal, part)
            part.rename(path)
            self._present[path.name] = taken.bytes
        except BaseException:
            await to_its_end(_remove, part)
            raise
        finally:
            self._arriving -= taken.bytes

    async def _arrives(self, content: Content, taken: _Taken) -> AsyncGenerator[bytes]:
        """Yields the bytes while there is room for them."""
        assert content.open is not None
        source = content.open()
        try:
            async for chunk in source:
                taken.add(chunk)
                self._arriving += len(chunk)
                if self._excess() > 0:
                    await self._make_room()
                if self._excess() > 0:
                    raise SandboxFault(
                        f"content: {content.digest} does not fit beside the content in use, {self._most_bytes >> 20} "
                        "MiB in all; raise native.content_mb, or run fewer sandboxes with such content"
                    )
                yield chunk
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    def _excess(self) -> int:
        return sum(self._present.values()) + self._arriving - self._most_bytes

    async def _make_room(self) -> None:
        await self._forget_the_dead()
        for name in sorted(self._present, key=self._last_used):
            if self._excess() <= 0:
                return
            if name in self._present and not self._marked(name):
                part = self._directory / f"{_PART}{secrets.token_hex(8)}"
                (self._directory / name).rename(part)
                size = self._present.pop(name)
                with suppress(OSError):
                    (self._marks / name).rmdir()
                self._arriving += size  # until its bytes are gone
                try:
                    await to_its_end(_remove, part)
                finally:
                    self._arriving -= size

    async def _forget_the_dead(self) -> None:
        """Removes the marks of sandboxes that are not held any more.

        A mark that was made or renewed during the survey stays, since its sandbox may be younger than the answer.
        """
        before = {mark: mark.stat().st_mtime_ns for mark in self._marks.glob("*/*") if self._may_be_dead(mark)}
        held = {_mark_of(one.key) for one in await self._survey()}
        for mark, made in before.items():
            with suppress(FileNotFoundError):
                if mark.name not in held and self._may_be_dead(mark) and mark.stat().st_mtime_ns == made:
                    mark.unlink()

    def _may_be_dead(self, mark: Path) -> bool:
        return mark.name != _PINNED and mark.name not in self._creating

    def _marked(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return any((self._marks / name).iterdir())
        return False

    def _last_used(self, name: str) -> int:
        """Returns when a sandbox got it, or let go of it."""
        with suppress(FileNotFoundError):
            return (self._marks / name).stat().st_mtime_ns
        return 0


class _Taken:
    """Counts and digests the bytes of one content."""

    def __init__(self, digest: str) -> None:
        self.bytes = 0
        self._wanted = digest
        self._sha256 = hashlib.sha256()

    def add(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        self._sha256.update(chunk)

    def check(self) -> None:
        """Raises SandboxFault when the bytes are others than those that were named."""
        found = self._sha256.hexdigest()
        if found != self._wanted:
            raise SandboxFault(f"content: {self._wanted} was asked for, and bytes of the digest {found} came")


async def _write(chunks: AsyncIterator[bytes], path: Path) -> None:
    with path.open("xb", buffering=0) as file:
        held = bytearray()
        async for chunk in chunks:
            held += chunk
            if len(held) >= _HOP:
                await to_its_end(_write_all, file, held)
                held = bytearray()
        await to_its_end(_write_all, file, held)


def _write_all(file: RawIOBase, data: bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def _opened(directory: Path) -> dict[str, int]:
    """Makes the directory ready; returns the size of each content that is whole."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    boot = directory / _BOOT
    if not boot.exists() or boot.read_text("ascii") != _this_boot():
        for left in directory.iterdir():
            _remove(left)
        boot.write_text(_this_boot(), "ascii")
    (directory / _MARKS).mkdir(exist_ok=True)
    for part in directory.glob(f"{_PART}*"):
        _remove(part)
    return {path.name: sum(_sizes(path)) for path in directory.iterdir() if _NAME.fullmatch(path.name)}


def _this_boot() -> str:
    """Returns the kernel's name of this boot. Where it tells none, nothing is kept for the next server."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(16)


def _sizes(path: Path) -> Iterator[int]:
    if path.is_file():
        yield path.stat().st_size
    for directory, _, files in os.walk(path):
        for name in files:
            yield Path(directory, name).stat().st_size


def _seal(path: Path) -> None:
    """Gives the modes that content has: files 0444, or 0555 in trees, and directories 0555."""
    if path.is_file():
        path.chmod(0o444)
    for directory, _, _ in os.walk(path, topdown=False):
        Path(directory).chmod(0o555)


def _remove(path: Path) -> None:
    if path.is_dir():
        for directory, _, _ in os.walk(path):
            Path(directory).chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _mark_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
