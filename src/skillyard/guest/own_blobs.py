"""Copies of what the run wrote itself, so that it can read it again: the channel gives nothing back."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO

KEPT_BYTES = 64 * 1024 * 1024
"""All copies together; what is larger is not kept, so that streaming a large blob costs no disk."""


class OwnBlobs:
    """Files in a private temporary directory, made when the first is needed. A full disk costs the copy only."""

    def __init__(self) -> None:
        self._directory = ""
        self._left = KEPT_BYTES
        self._paths: dict[str, str | None] = {}

    def path(self, blob_id: str) -> str | None:
        """None for what is no complete blob of this run, or was not kept."""
        return self._paths.get(blob_id)

    def wrote(self, blob_id: str) -> bool:
        return blob_id in self._paths

    def begin(self, blob_id: str) -> Copy:
        self._paths[blob_id] = None
        try:
            return Copy(blob_id, open(os.path.join(self._place(), blob_id.replace("/", "_")), "xb", buffering=0))
        except OSError:
            return Copy(blob_id, None)

    def _place(self) -> str:
        if not self._directory:
            directory = f"{os.environ.get('TMPDIR') or '/tmp'}/blobs-{os.urandom(8).hex()}"  # noqa: S108
            os.mkdir(directory, 0o700)
            self._directory = directory
        return self._directory

    def append(self, copy: Copy, data: memoryview) -> None:
        if copy.file is None:
            return
        copy.size += len(data)
        self._left -= len(data)
        try:
            if self._left < 0 or copy.file.write(data) != len(data):
                self.drop(copy)
        except OSError:
            self.drop(copy)

    def end(self, copy: Copy) -> None:
        if copy.file is not None:
            os.fchmod(copy.file.fileno(), 0o444)
            copy.file.close()
            self._paths[copy.blob_id] = os.fsdecode(copy.file.name)

    def drop(self, copy: Copy) -> None:
        self._paths[copy.blob_id] = None
        if copy.file is None:
            return
        copy.file.close()
        os.unlink(copy.file.name)
        copy.file = None
        self._left += copy.size


class Copy:
    """``file`` is None when nothing is kept; ``size`` is what it takes of KEPT_BYTES."""

    def __init__(self, blob_id: str, file: FileIO | None) -> None:
        self.blob_id = blob_id
        self.file = file
        self.size = 0
