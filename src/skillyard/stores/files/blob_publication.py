"""The step that makes a blob exist: its row and, when it has one, its file's final name."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from skillyard.domain.blob import BlobLimits
from skillyard.domain.errors import InvalidInput
from skillyard.ports.blobs import BlobInfo
from skillyard.stores.files.blob_files import BlobFiles
from skillyard.stores.files.blob_intake import Content
from skillyard.stores.sqlite import blob_rows as rows


@dataclass(slots=True)
class Publication:
    """An operation on the database. With a staged file it must be alone in its transaction."""

    info: BlobInfo
    content: Content
    limits: BlobLimits
    files: BlobFiles
    _inserted: bool = field(default=False, init=False)

    @property
    def key(self) -> str:
        """Returns the content's key."""
        return rows.content_key(self.info.owner, self.info.sha256)

    def store(self, connection: sqlite3.Connection) -> InvalidInput | None:
        """What speaks against the blob; None when it is stored."""
        self._inserted = False
        refusal = rows.insert(connection, self.info, self.content.inline, self.limits)
        if refusal is not None:
            return refusal
        if self.content.staged is not None:
            self.files.place(self.content.staged.path, self.key, self.info.size)
        self._inserted = True
        return None

    def undo(self, connection: sqlite3.Connection) -> None:
        """Queued behind :meth:`store`: remove the row if it was this publication that stored it."""
        if self._inserted:
            rows.delete(connection, self.info.blob_id)
