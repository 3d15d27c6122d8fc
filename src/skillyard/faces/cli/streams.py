"""Standard input, output and error, also where one is closed or cannot take all text."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, BinaryIO, cast

from skillyard.faces.cli.failures import Exit, Failure


def stand_in() -> None:
    """Makes all three usable. A closed one is refused when it is needed, and no other file gets its number."""
    names = ("stdin", "stdout", "stderr")
    closed = [name for number, name in enumerate(names) if not _is_open(number)]
    for _ in closed:  # in ascending order these are the lowest free numbers
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if "stdin" in closed:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()), "utf-8")
    if "stdout" in closed:
        sys.stdout = _text(_ClosedOutput(), "strict")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Unbuffered, all of them: a writer that keeps what it could not write would fail again at the very end. Nobody
    # can be told that standard error fails: what a command did and its exit code stay as they are.
    sys.stderr = _text(_Deaf(2, "w", closefd=False), "backslashreplace")


def read_stdin(field: str) -> str:
    """Returns the whole of standard input as text. Raises Failure for text that is not UTF-8 in any locale."""
    return decoded(field, sys.stdin.buffer.read())


def decoded(field: str, data: bytes) -> str:
    """Decodes UTF-8. Raises Failure with ``field`` and the place of the first wrong byte."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        said = f"{field}: must be UTF-8 text (got the byte 0x{data[error.start]:02x} at offset {error.start})"
        raise Failure(said, "`iconv -f latin1 -t utf-8` converts text in Latin-1") from None


class _ClosedInput(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ARG002 - io's signature
        raise Failure("standard input is closed", "give it a file with <, or a pipe")


class _ClosedOutput(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ARG002
        said = "standard output is closed, and there was something to write to it"
        raise Failure(said, "> /dev/null drops it", Exit.FAILED)


class _Deaf(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _text(raw: io.RawIOBase, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(cast("BinaryIO", raw), "utf-8", errors, write_through=True)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
