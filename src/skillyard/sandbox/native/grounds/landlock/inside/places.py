"""Where things are in a sandbox that has no root directory of its own.

Each sandbox has a directory of the host, and the paths of the port lie below it: ``/workspace`` is
``<root>/workspace``, ``/dev/shm`` is ``<root>/dev/shm``. Imported by the server, the keeper and what runs inside.
"""

from __future__ import annotations

import hashlib
import os

from skillyard.guest import files

WRITABLE = ("workspace", "tmp", "dev/shm")
SHOWN = ("skills", "blobs")
_TOPS = tuple(f"/{name}" for name in (*WRITABLE, *SHOWN))
ROOT = "SKILLYARD_ROOT"
"""The variable that names a sandbox's own directory in there."""


def root_of(homes: str, secret: str, handle: str) -> str:
    """A sandbox's directory: a name that no other sandbox can guess."""
    return f"{homes}/{hashlib.sha256(f'{secret}:{handle}'.encode()).hexdigest()[:24]}"


def real(root: str, path: str) -> str:
    """Where a path of the port is on this host; what is none of the sandbox's own stays as it is.

    A path that steps back with ``..`` is taken apart first: it must not lead from one to the other unseen.
    """
    plain = os.path.normpath(path) if ".." in path else path
    if any(plain == top or plain.startswith(f"{top}/") for top in _TOPS):
        return root + plain
    return path


def variables(root: str) -> dict[str, str]:
    """The environment of a sandbox, beside what every one has."""
    return {ROOT: root, "HOME": f"{root}/workspace", "TMPDIR": f"{root}/tmp"}  # noqa: S108 - its own


def main(arguments: list[str]) -> int:
    """As :func:`skillyard.guest.files.main`. What lies outside and may not be read is, for a sandbox, not there."""
    outside = False
    if len(arguments) > 1:
        plain, arguments[1] = arguments[1], real(os.environ[ROOT], arguments[1])
        outside = arguments[0] != "write" and plain == arguments[1]
    status = files.main(arguments)
    return files.MISSING if outside and status == files.REFUSED else status
