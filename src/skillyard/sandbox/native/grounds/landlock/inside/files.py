"""The files program of a sandbox without a root of its own: paths of the port, found where they are."""

from __future__ import annotations

import os

from skillyard.guest import files
from skillyard.sandbox.native.grounds.landlock.inside.places import ROOT, real


def main(arguments: list[str]) -> int:
    """As :func:`skillyard.guest.files.main`. What lies outside and may not be read is, for a sandbox, not there."""
    outside = False
    if len(arguments) > 1:
        plain, arguments[1] = arguments[1], real(os.environ[ROOT], arguments[1])
        outside = arguments[0] != "write" and plain == arguments[1]
    status = files.main(arguments)
    return files.MISSING if outside and status == files.REFUSED else status
