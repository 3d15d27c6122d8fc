"""What a tar stream hands on, kept."""

from __future__ import annotations

from skillyard.domain.archive.tar_stream import TarEntry


class Kept:
    """``seen`` holds each entry with its content."""

    def __init__(self) -> None:
        self.seen: list[tuple[TarEntry, bytes]] = []

    def header(self) -> None:
        pass

    def begin(self, entry: TarEntry) -> None:
        self.seen.append((entry, b""))

    def write(self, data: memoryview) -> None:
        entry, before = self.seen.pop()
        self.seen.append((entry, before + bytes(data)))

    def end(self) -> None:
        entry, data = self.seen[-1]
        assert entry.size == len(data)
