"""A runtime in this process: settings in, every method out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from skillyard.client.bundles import LATEST, TYPES, ExportedSkill, PublishedSkill, packed
from skillyard.client.client import DEFAULT_KIND, FetchedBlob, StoredBlob
from skillyard.client.methods.calling import blocking
from skillyard.client.methods.protocol import ProtocolMethods, SyncProtocolMethods
from skillyard.client.sources import Upload, save
from skillyard.config.profiles import bound
from skillyard.config.sections import Sections
from skillyard.config.settings import Settings, load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import LOCAL, Principal
from skillyard.engine.app import App
from skillyard.engine.observer import Observer, ignore
from skillyard.engine.skills.publishing import EXPORT_TOOL, UPLOAD_TOOL
from skillyard.engine.table import invoke
from skillyard.ports.skills import ArchiveForm
from skillyard.watches import new_event_loop
from skillyard.wiring import at_rest, open_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from skillyard.client.bundles import ArchiveFormat
    from skillyard.client.sources import Progress, Sink, Source
    from skillyard.client.transport import Transport
    from skillyard.ports.sandbox import Backend


T = TypeVar("T")


class Runtime(ProtocolMethods):
    """A runtime in this process, over a data directory that it owns while it is open::

        async with Runtime(skills_dirs=["skills"]) as runtime:
            run = await runtime.run_code("def main(args): return {'sum': sum(args['n'])}", {"n": [1, 2]})

    The methods of the protocol and the operator's are those of the client, and ``call`` takes any of them by
    name. ``settings`` are the operator's, or are loaded with ``data_dir`` and ``skills_dirs`` over them;
    ``backend`` replaces those that they name; ``principal`` is who asks; ``observer`` gets the engine's events.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        skills_dirs: Iterable[str | os.PathLike[str]] = (),
        settings: Settings | None = None,
        backend: Backend | None = None,
        principal: Principal = LOCAL,
        observer: Observer = ignore,
        warm: bool = True,
    ) -> None:
        """``warm`` readies sandboxes ahead.

        Raises InvalidInput for settings that contradict each other or a call that gives both.
        """
        self.settings = _settings(data_dir, tuple(map(Path, skills_dirs)), settings)
        self.data_dir = DataDir(self.settings.data_dir)
        self.principal = principal
        self._rest = at_rest(self.settings, self.data_dir)
        self.clock, self.tokens, self.secrets = self._rest.clock, self._rest.tokens, self._rest.secrets
        self._backend = backend
        self._observer = observer
        self._warms = warm
        self._app: App | None = None
        self._stack = AsyncExitStack()

    @property
    def app(self) -> App:
        """The services behind it. Raises RuntimeError unless the runtime is open."""
        if self._app is None:
            raise RuntimeError("the runtime is not open: use 'async with Runtime(...)'")
        return self._app

    async def __aenter__(self) -> Runtime:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def bound(self, principal: Principal) -> Principal:
        """Returns a principal with the rights that its profile has in the settings."""
        return principal if principal.profile is None else bound(self.settings.profiles, principal)

    def _using(self, tool: str) -> Principal:
        """Returns who asks. Raises Forbidden when its profile does not allow the tool."""
        principal = self.bound(self.principal)
        principal.require_tool(tool)
        return principal

    async def open(self) -> None:
        """Own the data directory, probe the backend, settle what a dead process left.

        Raises DataDirInUse, DataDirUnusable, StoreFault, SandboxFault.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self.data_dir.owned())
            ports = await open_ports(self.settings, self.data_dir, self._rest, stack, self._backend)
            self._app = app = App(ports, _over(self.settings, self._backend), self._observer, warm=self._warms)
            stack.callback(self._forget)
            stack.push_async_callback(app.close)
            await app.start()
            self._stack = stack.pop_all()

    async def close(self, grace_s: float = 0.0) -> None:
        """Let runs end for ``grace_s`` seconds, cancel the rest, and leave nothing behind. Idempotent."""
        if self._app is not None:
            await self._app.close(grace_s)
        await self._stack.aclose()

    def _forget(self) -> None:
        self._app = None

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of any method of the table. Raises what :func:`skillyard.engine.table.invoke` raises."""
        return await invoke(self.app, self.bound(self.principal), method, params or {})

    async def put_blob(
        self, source: Source, kind: str = DEFAULT_KIND, *, progress: Progress | None = None
    ) -> StoredBlob:
        """Stores bytes of any size in constant memory.

        ``source`` is a path, bytes, a binary file or an iterator. ``kind`` is a MIME type; ``progress`` is called with
        the bytes stored and the bytes in all (or None). Raises QuotaExceeded, InvalidInput, and BadArgument for a file
        that cannot be read.
        """
        principal = self._using("create_blob")
        with Upload(source, _THREADS, progress) as upload:
            info = await self.app.blobs.put(principal, kind, upload.chunks())
        return StoredBlob(info.blob_id, info.size, info.sha256)

    async def get_blob(
        self,
        blob_id: str,
        sink: Sink,
        *,
        offset: int = 0,
        length: int | None = None,
        progress: Progress | None = None,
    ) -> FetchedBlob:
        """Write a blob, or ``length`` bytes of it from ``offset`` on, to a path or a binary file.

        A file at a path appears only when everything came. Raises BlobNotFound, and InvalidInput for a range
        outside the blob.
        """
        info = await self.app.blobs.stat(self._using("read_blob"), blob_id)
        end = _end(info.size, offset, length)
        chunks = self.app.blobs.read(blob_id, offset, end - offset)
        done = await save(chunks, sink, _THREADS, progress, end - offset)
        return FetchedBlob(blob_id, info.kind, done, info.size)

    async def stream_blob(
        self, blob_id: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob as they come. Raises what :meth:`get_blob` raises."""
        info = await self.app.blobs.stat(self._using("read_blob"), blob_id)
        end = _end(info.size, offset, length)
        async for chunk in self.app.blobs.read(blob_id, offset, end - offset):
            yield chunk

    async def publish_skill(self, source: Source, *, progress: Progress | None = None) -> PublishedSkill:
        """As :meth:`skillyard.client.client.Client.publish_skill`. Raises BundleRefused, VersionTaken, Forbidden,
        QuotaExceeded, Busy, and BadArgument for what cannot be read."""
        principal = self._using(UPLOAD_TOOL)
        with Upload(await packed(source, _THREADS), _THREADS, progress) as upload:
            done = await self.app.publisher.publish(principal, upload.chunks())
        told = done.publication
        findings = tuple(asdict(finding) for finding in done.findings)
        return PublishedSkill(told.name, told.version, told.digest, told.size, told.files, done.created, findings)

    async def export_skill(
        self,
        name: str,
        sink: Sink,
        *,
        version: str | None = None,
        form: ArchiveFormat = "tar.gz",
        progress: Progress | None = None,
    ) -> ExportedSkill:
        """As :meth:`skillyard.client.client.Client.export_skill`. Raises SkillNotFound, Forbidden."""
        if form not in TYPES:
            raise InvalidInput("form", "must be 'tar.gz' or 'zip'")
        publisher, principal = self.app.publisher, self._using(EXPORT_TOOL)
        skill = await publisher.find(principal, name, version or LATEST)
        async with publisher.export(principal, skill, ArchiveForm(form)) as archive:
            done = await save(archive.chunks, sink, _THREADS, progress, archive.size)
        return ExportedSkill(skill.name, skill.version, skill.digest, done)


class SyncRuntime(SyncProtocolMethods):
    """:class:`Runtime` without ``await``, to be shared between threads.

    It works on an event loop of its own, in one thread of its own. An interrupted call (Ctrl-C) cancels its run.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        skills_dirs: Iterable[str | os.PathLike[str]] = (),
        settings: Settings | None = None,
        backend: Backend | None = None,
        principal: Principal = LOCAL,
        observer: Observer = ignore,
    ) -> None:
        self._inner: Runtime = Runtime(
            data_dir,
            skills_dirs=skills_dirs,
            settings=settings,
            backend=backend,
            principal=principal,
            observer=observer,
        )
        self._loop = LoopThread()

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    def __enter__(self) -> SyncRuntime:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """As :meth:`Runtime.open`."""
        self._loop.start()
        try:
            self._wait(self._inner.open())
        except BaseException:
            self._loop.stop()
            raise

    def close(self, grace_s: float = 0.0) -> None:
        """As :meth:`Runtime.close`. Idempotent."""
        if self._loop.running:
            try:
                self._wait(self._inner.close(grace_s))
            finally:
                self._loop.stop()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.wait(coroutine)

    put_blob = blocking(Runtime.put_blob)
    get_blob = blocking(Runtime.get_blob)
    publish_skill = blocking(Runtime.publish_skill)
    export_skill = blocking(Runtime.export_skill)

    def stream_blob(self, blob_id: str, *, offset: int = 0, length: int | None = None) -> Generator[bytes, None, None]:
        """The bytes of a blob as they come."""
        chunks = self._inner.stream_blob(blob_id, offset=offset, length=length)
        try:
            while (chunk := self._wait(_next(chunks))) is not None:
                yield chunk
        finally:
            self._wait(chunks.aclose())


class _Threads:
    """How a transfer reads and writes local files: beside the event loop."""

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


_THREADS = cast("Transport", _Threads())
"""A transfer asks no more of a transport."""


def _settings(
    data_dir: str | os.PathLike[str] | None, skills_dirs: tuple[Path, ...], settings: Settings | None
) -> Settings:
    if settings is None:
        return load_settings(data_dir=data_dir, skills_dirs=skills_dirs or None)
    if data_dir is not None or skills_dirs:
        raise InvalidInput("settings", "must not be given beside data_dir or skills_dirs")
    return settings


def _over(settings: Settings, backend: Backend | None) -> Sections:
    """Returns the settings.

    A policy of ``backend`` alone takes the place of theirs where a backend is given.
    """
    if backend is None:
        return settings
    policy = settings.policy.changed(isolation=backend.name, isolations=frozenset())
    return settings.model_copy(update={"policy": policy})


def _end(size: int, offset: int, length: int | None) -> int:
    """Where a range ends. Raises InvalidInput for one that holds no byte of the blob."""
    if offset < 0 or (length is not None and length < 1):
        raise InvalidInput("offset", "must be at least 0, and length at least 1")
    if offset and offset >= size:
        raise InvalidInput("offset", f"must be below the blob's size of {size} bytes", str(offset)[:32])
    return size if length is None else min(size, offset + length)


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(chunks, None)


class LoopThread:
    """An event loop in a thread: the one place where the synchronous runtime starts one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    @property
    def running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        if self._loop is None:
            self._loop = new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="skillyard-runtime", daemon=True)
            self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns the coroutine's result.

        When this thread is interrupted meanwhile, the coroutine is cancelled.
        """
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("the runtime is not open: use 'with SyncRuntime(...)'")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
