"""The module ``runtime`` that foreign code imports: ``from runtime import blobs, log``."""

from __future__ import annotations

import sys
from types import ModuleType

from .blobs import Blobs
from .errors import BlobNotMounted


class Log:
    def debug(self, msg: object) -> None:
        _write("DEBUG", msg)

    def info(self, msg: object) -> None:
        _write("INFO", msg)

    def warning(self, msg: object) -> None:
        _write("WARNING", msg)

    def error(self, msg: object) -> None:
        _write("ERROR", msg)


def _write(level: str, msg: object) -> None:
    """One write for one line, behind what was printed before."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if sys.stderr is not None:
        sys.stderr.write(f"{level}: {msg}\n")


def publish(blobs: Blobs) -> None:
    """Make ``runtime``, ``runtime.blobs`` and ``runtime.log`` importable."""
    module = ModuleType("runtime", "What this run can do: read and write blobs, log.")
    log = Log()
    module.__dict__.update(blobs=blobs, log=log, BlobNotMounted=BlobNotMounted, __path__=[])
    sys.modules.update({"runtime": module, "runtime.blobs": blobs, "runtime.log": log})  # type: ignore[dict-item]
