"""The run object of the protocol (skills-protocol §4.3), as a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.client.errors import BadReply, RunFailed


@dataclass(frozen=True, slots=True)
class Run(Mapping[str, Any]):
    """How one run ended. ``status`` is ``completed`` or ``failed`` and speaks of the execution only.

    ``output`` is what the entrypoint returned, at most 4,096 bytes as JSON; bigger values are the blob that
    ``output["blob_id"]`` names. Also a mapping: ``run["status"]``, with all that the server sent.
    """

    status: str
    run_id: str
    summary: str
    output: Any = None
    output_blobs: tuple[str, ...] = ()
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
            logs_preview=raw.get("logs_preview") or "",
            logs_blob=raw.get("logs_blob"),
            error=raw.get("error"),
            raw=raw,
        )

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    def raise_for_status(self) -> Run:
        """This run when it completed. Raises RunFailed."""
        if not self.ok:
            raise RunFailed(self)
        return self

    def __getitem__(self, key: str) -> Any:
        return self.raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)
