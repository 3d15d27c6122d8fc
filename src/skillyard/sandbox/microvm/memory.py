"""The memory of a saved machine: a file in memory that nobody can change.

Each restored machine maps it privately. So a restore reads nothing of it: pages come as they are used, those that are
only read are the same for all machines, and those that are written are copied. On the disk it is a file with holes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator

_PIECE = 64 * 1024
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def blank(size_mb: int) -> int:
    """Returns the descriptor of an empty memory. Raises OSError."""
    memory = os.memfd_create("machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size_mb << 20)
    return memory


def seal(memory: int) -> None:
    """Takes the right to change it from everybody. Raises OSError where a machine still works in it."""
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)


def copied(source: int, target: int) -> str:
    """Copies a memory into an empty one; returns its digest. Raises OSError."""
    os.ftruncate(target, os.fstat(source).st_size)
    digest = hashlib.sha256(b"%d" % os.fstat(source).st_size)
    for at, piece in _pieces(source):
        digest.update(b"%d " % at + piece)
        if os.pwrite(target, piece, at) != len(piece):
            raise OSError("the memory of a machine does not fit: no space is left")
    return digest.hexdigest()


def _pieces(memory: int) -> Iterator[tuple[int, bytes]]:
    """Yields the pieces that are not empty, with their places.

    They are the same whatever file system holds them.
    """
    at = 0
    while True:
        try:
            at = os.lseek(memory, at, os.SEEK_DATA) // _PIECE * _PIECE
        except OSError:  # there is nothing behind it
            return
        end = max(os.lseek(memory, at, os.SEEK_HOLE), at + 1)  # a piece may begin in a hole
        while at < end:
            if (piece := os.pread(memory, _PIECE, at)).strip(b"\0"):
                yield at, piece
            at += _PIECE
