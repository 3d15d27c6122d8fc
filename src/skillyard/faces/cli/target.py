"""Who does a command's work: a server, or a runtime in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from skillyard.client.discovery import ServerUrl, default_data_dir, recorded_url

if TYPE_CHECKING:
    from skillyard.client import ExportedSkill, FetchedBlob, PublishedSkill, StoredBlob
    from skillyard.client.bundles import ArchiveFormat
    from skillyard.client.run import Run
    from skillyard.client.sources import Progress, Sink, Source


class Target(Protocol):
    """What commands ask of either."""

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...

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
    """What the options say. ``skills_dirs`` asks for this process."""

    url: str | None = None
    token: str | None = None
    data_dir: Path | None = None
    skills_dirs: tuple[Path, ...] = ()

    @contextmanager
    def open(self) -> Iterator[Target]:
        """The named server, else the one that runs on the data directory, else a runtime of our own.

        Raises what the client or the runtime raises.
        """
        if self.url or (not self.skills_dirs and _running(self.data_dir or default_data_dir())):
            from skillyard.client.sync import SyncClient

            with SyncClient(self.url, self.token, data_dir=self.data_dir) as client:
                yield client
        else:
            with self._runtime() as runtime:
                yield runtime

    @contextmanager
    def _runtime(self) -> Iterator[Target]:
        from skillyard.assembly import SyncRuntime

        with SyncRuntime(data_dir=self.data_dir, skills_dirs=self.skills_dirs) as runtime:
            yield runtime


def _running(data_dir: Path) -> bool:
    url = recorded_url(data_dir)
    return url is not None and _listens(url)


def _listens(url: ServerUrl) -> bool:
    """A recorded process may be another one by now: only a listener counts."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(url.host, url.host)  # noqa: S104
    try:
        socket.create_connection((host, url.port), timeout=1).close()
    except OSError:
        return False
    return True
