"""Reads and replaces configuration files, whole or not at all."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path

from skillyard.faces.cli.failures import Failure

MOST_BYTES = 64 * 1024 * 1024


def difference(file: Path, before: str, after: str, context: int = 3) -> list[str]:
    """Returns the lines that change, with some around them."""
    lines = unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(file), str(file), n=context
    )
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]


def read(file: Path) -> str:
    """Returns the text of a file, empty without one. Raises Failure, also for what is not a file."""
    try:
        # Not blocked by a pipe, which may stand there.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise Failure(f"{file} is not a file")
            raw = stream.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise Failure(f"{file} is too large to be a configuration")
        return raw.decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{file} cannot be read: {error}") from None


def write(file: Path, before: str, after: str) -> Path | None:
    """Replaces a file, whole or not at all; returns the copy of the one before. Its rights stay."""
    if read(file) != before:
        raise Failure(f"{file} was changed meanwhile", "call again")
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = None
    if file.exists():
        kept = file.with_name(f"{file.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}.bak")
        _make(kept, before, file)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        _make(new, after, kept)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return kept


def _make(file: Path, text: str, like: Path | None) -> None:
    """Makes a file that has the rights of ``like``.

    Until then it is its user's alone, since it may hold tokens.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123 - a descriptor
        stream.write(text)
        if like is not None:
            os.fchmod(descriptor, stat.S_IMODE(like.stat().st_mode))
