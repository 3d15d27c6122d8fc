"""The loop of the files program: requests in, answers out."""

from __future__ import annotations

import errno
import json
import os

from . import DAMAGED, GIVEN_UP, MISSING, NO_SPACE, NOT_REGULAR, PIECE, REFUSED, USAGE, WINDOW, single
from .single import Damaged, NotRegular, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_HEAD = 5
_STATUS = {
    errno.ENOENT: MISSING,
    errno.ENOTDIR: MISSING,  # also entries of a link
    errno.ELOOP: NOT_REGULAR,
    errno.EISDIR: NOT_REGULAR,
    errno.ENXIO: NOT_REGULAR,
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
    errno.EFBIG: NO_SPACE,
}


class GivenUp(Exception):
    """The host does not want the request any more."""


class Gone(Exception):
    """The host is gone."""


class Port:
    """Frames over two descriptors."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._read = bytearray()
        self.credit = WINDOW
        self.taking = False
        """Whether the host still sends pieces."""

    def next(self) -> tuple[bytes, bytes]:
        """Returns the next frame's kind and payload. Raises Gone at the end."""
        self._fill(_HEAD)
        kind, size = bytes(self._read[:1]), int.from_bytes(self._read[1:_HEAD])
        self._fill(_HEAD + size)
        payload = bytes(self._read[_HEAD : _HEAD + size])
        del self._read[: _HEAD + size]
        return kind, payload

    def pieces(self) -> Iterator[bytes]:
        """Yields what the host sends. Raises GivenUp, Gone."""
        while True:
            kind, payload = self.next()
            if kind == b"D":
                yield payload
            elif kind in b"EX":
                self.taking = False
                if kind == b"X":
                    raise GivenUp
                return

    def give(self, pieces: Iterable[bytes]) -> None:
        """Sends pieces as there is credit. Raises GivenUp, Gone."""
        for piece in (part for whole in pieces for part in _parts(whole)):
            while self.credit < len(piece):
                kind, payload = self.next()
                if kind == b"C":
                    self.credit += int.from_bytes(payload)
                elif kind == b"X":
                    raise GivenUp
            self.credit -= len(piece)
            self.send(b"D", piece)

    def send(self, kind: bytes, payload: bytes) -> None:
        write_all(self._writing, kind + len(payload).to_bytes(4) + payload)

    def _fill(self, size: int) -> None:
        while len(self._read) < size:
            data = os.read(self._reading, max(65536, size - len(self._read)))
            if not data:
                raise Gone
            self._read += data


def _parts(whole: bytes) -> Iterator[bytes]:
    """Yields pieces that fit into a frame: a tree joins headers with what follows."""
    for start in range(0, len(whole), PIECE):
        yield whole[start : start + PIECE] if len(whole) > PIECE else whole


def serve(port: Port, place: Callable[[str], str] = str) -> None:
    """Answers requests until the host is gone. ``place`` gives the place of a port's path on this file system."""
    try:
        while True:
            kind, payload = port.next()
            if kind == b"Q":
                _answer(port, json.loads(payload), place)
    except (Gone, BrokenPipeError):
        return


def _answer(port: Port, request: dict[str, Any], place: Callable[[str], str]) -> None:
    port.credit = WINDOW
    path, operation = str(request.pop("path", "")), str(request.pop("op", ""))
    real = place(path)
    port.taking = writes = operation in ("write", "put")
    try:
        told = _OPERATIONS[operation](port, real, **request)
        port.send(b"O", json.dumps(told or {}).encode())
        return
    except Exception as error:  # noqa: BLE001 - the host hears of it, and the next request is served
        status, text = _status(error)
    _drain(port)
    if place is not str and path == real and not writes and status == REFUSED:
        status = MISSING  # what lies outside of the sandbox is not there
    port.send(b"F", json.dumps({"status": status, "text": text[:300]}).encode())


def _status(error: Exception) -> tuple[int, str]:
    if isinstance(error, Gone | BrokenPipeError):
        raise error
    if isinstance(error, GivenUp):
        return GIVEN_UP, "the host gave up"
    if isinstance(error, NotRegular):
        return NOT_REGULAR, str(error)
    if isinstance(error, OSError):
        return _STATUS.get(error.errno or 0, REFUSED), error.strerror or str(error)
    if isinstance(error, Damaged):
        return DAMAGED, str(error)
    if isinstance(error, TypeError | ValueError | KeyError):
        return USAGE, f"{type(error).__name__}: {error}"
    return REFUSED, f"{type(error).__name__}: {error}"


def _drain(port: Port) -> None:
    """Takes what the host has sent before it hears of the fault."""
    try:
        for _ in port.pieces() if port.taking else ():
            pass
    except GivenUp:
        return


def _read(port: Port, path: str, offset: int = 0, length: int | None = None) -> None:
    port.give(single.read(path, offset, length))


def _write(port: Port, path: str, mode: int) -> dict[str, object]:
    return {"size": single.write(path, port.pieces(), mode)}


def _entries(port: Port, path: str) -> None:
    port.give(single.entries(path))


def _stat(_: Port, path: str) -> dict[str, object]:
    return single.describe(path)


def _remove(_: Port, path: str) -> None:
    single.remove(path)


def _put(port: Port, path: str) -> None:
    from .trees import put  # which reads tarfile, and most sandboxes never do

    put(path, port.pieces())


def _get(port: Port, path: str) -> None:
    from .trees import get

    port.give(get(path))


_OPERATIONS: dict[str, Callable[..., dict[str, object] | None]] = {
    "read": _read,
    "write": _write,
    "entries": _entries,
    "stat": _stat,
    "remove": _remove,
    "put": _put,
    "get": _get,
}


def main(place: Callable[[str], str] = str) -> int:
    """Serves over standard input and output; returns the exit status."""
    serve(Port(0, 1), place)
    return 0
