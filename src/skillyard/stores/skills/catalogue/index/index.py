"""The index as a whole: a file, what is asked of it, what is changed in it."""

from __future__ import annotations

from pathlib import Path

from skillyard.stores.skills.catalogue.index.file import IndexFile, remove
from skillyard.stores.skills.catalogue.index.reads import Reads
from skillyard.stores.skills.catalogue.index.writes import Writes


class Index:
    """``near`` answers on the event loop's thread. ``reads`` and ``writes`` are for one thread at a time, which may be
    another; ``reads`` sees what ``writes`` has not committed. All methods block and raise StoreFault."""

    def __init__(self, path: Path, mark: str) -> None:
        self._path = path
        self._mark = mark
        self._open()

    def _open(self) -> None:
        self._file = IndexFile.open(self._path, self._mark)
        self.near = Reads(self._file.near)
        self.reads = Reads(self._file.far)
        self.writes = Writes(self._file.far)

    def renew(self) -> None:
        """An empty one in its place."""
        self._file.close()
        remove(self._path)
        self._open()

    def close(self) -> None:
        self._file.close()
