"""A disk that takes so many bytes of a file and no more."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """While the block lasts, the kernel writes no file of this process beyond ``size`` bytes: EFBIG for ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
