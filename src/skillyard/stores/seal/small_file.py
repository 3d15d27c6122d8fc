"""A small file that somebody else provides, read without being led astray."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from skillyard.domain.errors import StoreFault


def read_small(path: Path, most: int, beneath: Path | None = None) -> bytes | None:
    """At most ``most`` bytes; None when there is no such file.

    With ``beneath``, links may lead only to files below that directory (Kubernetes links a secret's file to a dated
    directory beside it). What is opened is judged, so that nothing can be swapped in between; devices, pipes and
    sockets are never opened. Raises StoreFault naming the path.
    """
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreFault(f"{path} cannot be read: {error.strerror}") from None
    try:
        _check(found, path, most, beneath)
        return _read(found, path, most)
    finally:
        os.close(found)


def _check(found: int, path: Path, most: int, beneath: Path | None) -> None:
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode):
        raise StoreFault(f"{path} is no regular file")
    if status.st_size > most:
        raise StoreFault(f"{path} is larger than {most} bytes")
    if beneath is not None:
        real = Path(os.readlink(f"/proc/self/fd/{found}"))  # noqa: PTH115 - where the kernel says it is
        if not real.is_relative_to(beneath.resolve()):
            raise StoreFault(f"{path} leads out of {beneath}")


def _read(found: int, path: Path, most: int) -> bytes:
    try:
        with Path(f"/proc/self/fd/{found}").open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise StoreFault(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise StoreFault(f"{path} is larger than {most} bytes")
    return data
