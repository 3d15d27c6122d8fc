"""The run object of the protocol (skills-protocol §4.3), as a value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from skillyard.client.errors import BadArgument, BadReply, RunFailed
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file that a run left in ``/workspace/out``; ``path`` is relative to that."""

    path: str
    blob_id: str
    size: int
    mime: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> RunFile:
        """Reads it from the wire. Raises BadReply."""
        path, blob_id, size, mime = (raw.get(name) for name in ("path", "blob_id", "size", "mime"))
        if not (isinstance(path, str) and isinstance(blob_id, str) and isinstance(size, int) and isinstance(mime, str)):
            raise BadReply("the server's run object names a file in a form that is not known")
        return cls(path, blob_id, size, mime)

    def place(self, directory: Path) -> Path:
        """Returns the path to save it to, always inside ``directory``; makes the directories above. Raises BadReply for
        a path that leads elsewhere, BadArgument for a file that exists already."""
        parts = self.path.split("/")
        odd = "\\:" if os.name == "nt" else "\\"
        if any(part in ("", ".", "..") or not part.isprintable() or set(part) & set(odd) for part in parts):
            raise BadReply("the server names a file by a path that leads elsewhere")
        for part in parts[:-1]:
            directory = directory / part
            if directory.is_symlink():
                raise BadArgument(f"{directory} is a link; nothing was written behind it")
            directory.mkdir(exist_ok=True)
        path = directory / parts[-1]
        if path.is_symlink() or path.exists():
            raise BadArgument(f"{path} exists; nothing was written over it")
        return path


@dataclass(frozen=True, slots=True)
class Run(Mapping[str, Any]):
    """How one run ended, or how far a detached one is.

    ``status`` is ``completed`` or ``failed``, of one that has not ended ``queued``, ``starting`` or ``running``.
    ``output`` is what the entrypoint returned, at most 4,096 bytes as JSON; bigger values are the blob that
    ``output["blob_id"]`` names. ``files`` are what it left in ``/workspace/out``. Also a mapping:
    ``run["status"]``, with all that the server sent.
    """

    status: str
    run_id: str
    summary: str
    output: Any = None
    output_blobs: tuple[str, ...] = ()
    files: tuple[RunFile, ...] = ()
    notes: tuple[str, ...] = ()
    logs_preview: str = ""
    logs_blob: str | None = None
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Run:
        """From a result on the wire. Raises BadReply when a required field is missing."""
        absent = [name for name in ("status", "run_id", "summary") if not isinstance(raw.get(name), str)]
        if absent:
            raise BadReply(f"the server's run object lacks {', '.join(absent)}")
        return cls(
            status=raw["status"],
            run_id=raw["run_id"],
            summary=raw["summary"],
            output=raw.get("output"),
            output_blobs=tuple(raw.get("output_blobs") or ()),
            files=tuple(map(RunFile.of, raw.get("files") or ())),
            notes=tuple(raw.get("notes") or ()),
            logs_preview=raw.get("logs_preview") or "",
            logs_blob=raw.get("logs_blob"),
            error=raw.get("error"),
            raw=raw,
        )

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed")

    def raise_for_status(self) -> Run:
        """Returns this run, unless it failed. Raises RunFailed."""
        if self.ended and not self.ok:
            raise RunFailed(self)
        return self

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)
