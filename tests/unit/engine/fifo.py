"""A file that keeps its reader waiting."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path


def fifo_writer(fifo: Path) -> int:
    """Opens when somebody reads, who has nothing to read until it is closed."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            time.sleep(0.01)
    raise TimeoutError
