"""The loader puts content into a volume of an engine, or tells which content is there.

It runs in a container of its own that has the volume and nothing else. Its text is a word of the container's command,
so it imports the standard library only::

    python3 -I -S -c SOURCE take PLACE    make PLACE of standard input, and tell its seal
    python3 -I -S -c SOURCE look PLACE    tell the seal of PLACE

The input is a list of entries as JSON, behind its length in eight hexadecimal digits, and then the bytes of all files.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

DIRECTORY, LINK, FILE, PROGRAM = "dlfx"
HEAD = 8
MOST_LISTED = 1 << 28
_HOP = 1 << 20
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def main(arguments: list[str]) -> int:
    """Returns the exit status. A failure is told as ``{"error": …}``."""
    try:
        word, place = arguments
        if word == "take":
            take(place, sys.stdin.buffer)
        if os.listdir(os.path.dirname(place)) != [os.path.basename(place)]:
            raise ValueError("there is more in the volume, or nothing")
        told = {"seal": seal(place)}
    except (AttributeError, IndexError, OSError, TypeError, ValueError) as error:
        told = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(told), flush=True)
    return int("error" in told)


def entries(root: str) -> Iterator[tuple[str, str, int | str]]:
    """Yields the name, the kind, and the size or the target of everything below ``root``.

    Parents come first. Sockets, pipes and devices are left out. Raises OSError.
    """
    yield from _entries(root, "")


def _entries(path: str, name: str) -> Iterator[tuple[str, str, int | str]]:
    told = os.lstat(path)
    if stat.S_ISDIR(told.st_mode):
        yield name, DIRECTORY, 0
        for child in sorted(os.listdir(path)):
            yield from _entries(f"{path}/{child}", f"{name}/{child}" if name else child)
    elif stat.S_ISLNK(told.st_mode):
        yield name, LINK, os.readlink(path)
    elif stat.S_ISREG(told.st_mode):
        yield name, PROGRAM if told.st_mode & 0o111 else FILE, told.st_size


def seal(root: str) -> str:
    """Returns a digest of all names, kinds, bytes and targets. Raises OSError."""
    whole = hashlib.sha256()
    for name, kind, value in entries(root):
        if kind in (FILE, PROGRAM):
            digest = hashlib.sha256()
            with open(f"{root}/{name}" if name else root, "rb") as file:
                while piece := file.read(_HOP):
                    digest.update(piece)
            value = digest.hexdigest()
        whole.update(json.dumps([name, kind, value]).encode() + b"\n")
    return whole.hexdigest()


def take(place: str, source: IO[bytes]) -> None:
    """Makes ``place`` of a stream: files that everybody may read and nobody may write.

    An entry is a name below ``place`` and a kind, of a file the size and the time of its last change in seconds, of a
    link the target. Each name is opened relative to its open parent, without following links, and only what was not
    there before is made. Raises OSError, ValueError.
    """
    listed = json.loads(_read(source, int(_read(source, HEAD), 16)))
    made: list[list[str]] = []
    for name, kind, *told in listed:
        parts = [os.path.basename(place), *(name.split("/") if name else ())]
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise ValueError(f"a name leads elsewhere: {name!r}")
        parent = _opened(os.path.dirname(place), parts[:-1])
        try:
            if kind == DIRECTORY:
                os.mkdir(parts[-1], 0o700, dir_fd=parent)
                made.append(parts)
            elif kind == LINK:
                os.symlink(told[0], parts[-1], dir_fd=parent)
            elif kind in (FILE, PROGRAM):
                file = os.open(parts[-1], _NEW, 0o600, dir_fd=parent)
                _copy(source, file, 0o555 if kind == PROGRAM else 0o444, *told)
            else:
                raise ValueError(f"an entry is of another kind: {kind!r}")
        finally:
            os.close(parent)
    for parts in reversed(made):
        directory = _opened(os.path.dirname(place), parts)
        os.fchmod(directory, 0o555)
        os.close(directory)


def _opened(top: str, parts: list[str]) -> int:
    """Returns the open directory ``parts`` below ``top``. Raises OSError for a link on the way."""
    at = os.open(top, _OPEN)
    for part in parts:
        try:
            below = os.open(part, _OPEN, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _copy(source: IO[bytes], into: int, mode: int, size: int, changed: int) -> None:
    with os.fdopen(into, "wb") as file:
        while size > 0:
            piece = _read(source, min(size, _HOP))
            file.write(piece)
            size -= len(piece)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.utime(file.fileno(), (changed, changed))  # which bytecode remembers of its source


def _read(source: IO[bytes], size: int) -> bytes:
    """Returns so many bytes. Raises ValueError at the end of the stream."""
    found = source.read(size) if 0 <= size <= MOST_LISTED else b""
    if len(found) != size:
        raise ValueError("the content did not come whole")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
