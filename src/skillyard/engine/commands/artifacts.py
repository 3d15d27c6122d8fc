"""Artifacts: files that commands left, with the name that their outputs gave them.

An artifact is a blob of a command's run. It belongs to the agent and the project of that run, so that every token of
this agent reads it. Other blobs are read as artifacts too, by their owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import BlobNotFound, InvalidInput, shown
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunRecord
from skillyard.engine.blobs.service import MAX_READ, agents_blob
from skillyard.engine.commands.service import artifact
from skillyard.engine.method import (
    BLOB_ID,
    INTEGER,
    STRING,
    Method,
    answer,
    described,
    obj,
)
from skillyard.engine.shapes import or_null
from skillyard.engine.shares import LargeReads
from skillyard.engine.text import cut_head, is_text, show
from skillyard.ports.blobs import BlobInfo, BlobStore
from skillyard.ports.records import RecordStore

PAGE = 64 * 1024


class ArtifactService:
    """Finds artifacts and reads them."""

    def __init__(self, blobs: BlobStore, records: RecordStore, large_reads: LargeReads) -> None:
        self._blobs = blobs
        self._records = records
        self._large_reads = large_reads

    async def find(
        self, principal: Principal, artifact_id: str, agent: str | None = None
    ) -> tuple[BlobInfo, RunRecord | None]:
        """Returns an artifact, and the record of its command. Raises BlobNotFound, alike for those of others."""
        return await agents_blob(self._blobs, self._records, principal, artifact_id, "artifact_id", agent)

    async def read(self, info: BlobInfo, offset: int, max_bytes: int) -> bytes:
        """Returns bytes of an artifact from ``offset`` on. Raises InvalidInput for an offset behind its end, Busy."""
        if offset > info.size:
            raise InvalidInput("offset", f"must be at most the size, {info.size}", shown(offset))
        length = min(max_bytes, info.size - offset)
        if not length:
            return b""
        async with self._large_reads.place(length):
            return b"".join([piece async for piece in self._blobs.read(info.blob_id, offset, length)])


async def read_artifact(service: ArtifactService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    offset = params["offset"]
    info, record = await service.find(principal, params["artifact_id"], params.get("agent"))
    data = await service.read(info, offset, params["max_bytes"])
    text = is_text(info.kind)
    if text and offset + len(data) < info.size:
        data = cut_head(data) or data
    content, encoding = show(data, text=text)
    end = offset + len(data)
    files = () if record is None else record.files
    made = next((artifact(file) for file in files if file["blob_id"] == info.blob_id), {})
    return {
        "artifact_id": info.blob_id,
        "filename": made.get("filename", ""),
        "path": made.get("path", ""),
        "mime": info.kind,
        "size": info.size,
        "sha256": info.sha256,
        "content": content,
        "encoding": encoding,
        "offset": offset,
        "next_offset": end if end < info.size else None,
        "run_id": info.run_id,
        "project": "" if record is None else record.project,
        "agent": "" if record is None else record.agent,
    }


TABLE = (
    Method(
        name="skills.read_artifact",
        doc="A file that a command left, with its name and its owner, from any offset.",
        params=obj(
            {
                "artifact_id": BLOB_ID,
                "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "bytes to leave out"},
                "max_bytes": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_READ,
                    "default": PAGE,
                    "description": "how much of it to read",
                },
                "agent": described(STRING, "the agent that it belongs to; the token's own when left out", maxLength=64),
            },
            "artifact_id",
        ),
        example={"artifact_id": "blob:EXAMPLE"},
        result=answer(
            {
                "artifact_id": STRING,
                "filename": described(STRING, "save_as, or the file's own name; empty for a blob of no command"),
                "path": described(STRING, "where it was, below /workspace"),
                "mime": STRING,
                "size": INTEGER,
                "sha256": STRING,
                "content": described(STRING, "text as it is, all else in base64"),
                "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
                "offset": INTEGER,
                "next_offset": or_null(INTEGER),
                "run_id": or_null(STRING),
                "project": described(STRING, "its owner, with the agent"),
                "agent": STRING,
            }
        ),
        scope=Scope.BLOBS,
        errors=(BlobNotFound,),
        repeatable=True,
        service=ArtifactService,
        handler=read_artifact,
    ),
)
