"""The module ``runtime`` that foreign code imports: ``from runtime import blobs, log``."""

from __future__ import annotations

import sys
from types import ModuleType

from .blobs import Blobs
from .errors import BlobNotMounted
from .log import Log


def publish(blobs: Blobs) -> None:
    """Make ``runtime``, ``runtime.blobs`` and ``runtime.log`` importable."""
    module = ModuleType("runtime", "What this run can do: read and write blobs, log.")
    log = Log()
    module.__dict__.update(blobs=blobs, log=log, BlobNotMounted=BlobNotMounted, __path__=[])
    sys.modules.update({"runtime": module, "runtime.blobs": blobs, "runtime.log": log})  # type: ignore[dict-item]
