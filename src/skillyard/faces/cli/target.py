"""Opens the worker of a command: a server, or a runtime in this process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from skillyard.client.discovery import Server, ServerUrl, default_data_dir, find_server, recorded_url
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.render import calm
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.client import ExportedSkill, FetchedBlob, PublishedSkill, StoredBlob
    from skillyard.client.bundles import ArchiveFormat
    from skillyard.client.run import Run
    from skillyard.client.sources import Progress, Sink, Source
    from skillyard.data_dir import DataDirInUse

PATIENCE_S = 60.0
"""Seconds to wait for another command that holds the data directory."""
_QUIET_S = 0.5
_POLL_S = 0.05


class Target(Protocol):
    """The calls that commands make of a client or a runtime alike."""

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...

    def wait_run(self, run_id: str, *, timeout_ms: int | None = ...) -> Run: ...

    def put_blob(self, source: Source, kind: str = ..., *, progress: Progress | None = None) -> StoredBlob: ...

    def get_blob(
        self,
        blob_id: str,
        sink: Sink,
        *,
        offset: int = 0,
        length: int | None = None,
        progress: Progress | None = None,
    ) -> FetchedBlob: ...

    def save_files(self, run: Run, directory: str | os.PathLike[str]) -> list[Path]: ...

    def publish_skill(self, source: Source, *, progress: Progress | None = None) -> PublishedSkill: ...

    def export_skill(
        self,
        name: str,
        sink: Sink,
        *,
        version: str | None = None,
        form: ArchiveFormat = ...,
        progress: Progress | None = None,
    ) -> ExportedSkill: ...


@dataclass(frozen=True, slots=True)
class Where:
    """The place that the options name. ``skills_dirs`` asks for this process."""

    url: str | None = None
    token: str | None = None
    data_dir: Path | None = None
    skills_dirs: tuple[Path, ...] = ()

    @contextmanager
    def open(self, *, changes: bool = False) -> Iterator[Target]:
        """Yields the named server, else the data directory's server, else a runtime of our own.

        A data directory that another command holds is waited for. Where a server holds it, ``skills_dirs`` are served
        by a runtime on a directory beside: not for ``changes``, which would be made where nobody looks for them.
        Raises what the client or the runtime raises, and DataDirInUse.
        """
        with ExitStack() as stack:
            yield self._entered(stack, changes)

    @contextmanager
    def server(self) -> Iterator[Target]:
        """Yields the named server, else that of the data directory. Raises Failure when none runs there."""
        home = self.data_dir or default_data_dir()
        if not self.url and not _running(home):
            raise Failure(f"no server runs on {home}", "name one with --url or --data-dir", Exit.NO_ACCESS)
        with ExitStack() as stack:
            yield self._client(stack)

    def _entered(self, stack: ExitStack, changes: bool) -> Target:
        home = self.data_dir or default_data_dir()
        if self.url or (not self.skills_dirs and _running(home)):
            return self._client(stack)
        from skillyard.data_dir import DataDirInUse
        from skillyard.runtime import SyncRuntime

        patience = _Patience()
        while True:
            try:
                return stack.enter_context(SyncRuntime(data_dir=self.data_dir, skills_dirs=self.skills_dirs))
            except DataDirInUse as error:
                if not _running(home):
                    patience.wait(error)
                elif not self.skills_dirs:
                    return self._client(stack)
                elif changes:
                    raise DataDirInUse(f"{error.message}; without --skills-dir the server does it") from None
                else:
                    return self._beside(stack, home, patience)

    def _client(self, stack: ExitStack) -> Target:
        from skillyard.client.sync import SyncClient

        return stack.enter_context(SyncClient(self.url, self.token, data_dir=self.data_dir))

    def _beside(self, stack: ExitStack, home: Path, patience: _Patience) -> Target:
        """Opens a runtime with the settings and the skills of ``home``.

        It has runs, blobs, approvals and secrets of its own.
        """
        from skillyard.config.settings import load_settings
        from skillyard.data_dir import DataDir, DataDirInUse
        from skillyard.runtime import SyncRuntime

        place = DataDir(home)
        known = load_settings(data_dir=home, skills_dirs=(*self.skills_dirs, place.skills))
        settings = known.model_copy(update={"data_dir": place.beside.absolute()})
        said = f"a server runs on {home}: with --skills-dir this works beside it, with --data-dir {place.beside}"
        click.echo(calm(f"skillyard: {said}"), err=True)
        while True:
            try:
                return stack.enter_context(SyncRuntime(settings=settings))
            except DataDirInUse as error:
                patience.wait(error)


class _Patience:
    """Waits for the holder of a data directory within a bound, and says so."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = False

    def wait(self, error: DataDirInUse) -> None:
        """Returns when the directory may be free. Raises the error once the bound is passed."""
        waited = time.monotonic() - self._began
        if waited > PATIENCE_S:
            raise type(error)(f"{error.message} (waited {waited:.0f} s)", **error.details) from None
        if waited > _QUIET_S and not self._told:
            self._told = True
            holder = calm(error.details["holder"])
            click.echo(f"skillyard: waiting for {holder}, which holds the data directory", err=True)
        time.sleep(_POLL_S)


def running_server(where: Where) -> Server | None:
    """Returns the named server, else that of the data directory.

    It is None where the work is for this process. Raises Unreachable and BadArgument.
    """
    if where.url or (not where.skills_dirs and _running(where.data_dir or default_data_dir())):
        return find_server(where.url, where.token, where.data_dir)
    return None


def _running(data_dir: Path) -> bool:
    url = recorded_url(data_dir)
    return url is not None and _listens(url)


def _listens(url: ServerUrl) -> bool:
    """Returns whether somebody listens there: a recorded process may be another one by now."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(url.host, url.host)  # noqa: S104
    try:
        socket.create_connection((host, url.port), timeout=1).close()
    except OSError:
        return False
    return True
