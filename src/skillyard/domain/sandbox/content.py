"""References to the content of mounts and environments; backends bind or upload it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from skillyard.values import dataclass

Opener = Callable[[], AsyncIterator[bytes]]
"""Gives a file's bytes, or a tree as a tar stream with names below the tree's root."""


@dataclass(frozen=True, slots=True)
class Content:
    """An immutable file or tree of a store.

    ``digest`` names the bytes. ``path`` is their place on this host: files 0444 and directories 0555 (executables
    0555). Where there is none, ``open`` gives the bytes, and ``tree`` says whether they are a tar stream. Raises
    ValueError when both are missing.
    """

    digest: str
    path: Path | None = None
    open: Opener | None = None
    tree: bool = False

    def __post_init__(self) -> None:
        if self.path is None and self.open is None:
            raise ValueError("content needs a path or an opener")


@dataclass(frozen=True, slots=True)
class JailDirectory:
    """A directory of the host that a jail shows at its own place.

    The operator's command line and settings alone lead to one. ``device`` and ``inode`` say which directory was meant:
    another one at that path is refused. The files of ``uid`` and ``gid`` belong to the program inside, and the files
    that it writes belong to them.
    """

    path: str
    device: int
    inode: int
    uid: int
    gid: int
    writable: bool = False


@dataclass(frozen=True, slots=True)
class HostDirectory:
    """A directory or file of the operator, shown read-only.

    It is not content of a store, and can change while it is shown. Only the operator's settings and command line lead
    to one.
    """

    path: Path
