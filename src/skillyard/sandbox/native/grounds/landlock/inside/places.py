"""The paths of a sandbox that has no root directory of its own, and its files program.

Each sandbox has a directory of the host, and the paths of the port lie below it: ``/workspace`` is
``<root>/workspace``, ``/dev/shm`` is ``<root>/dev/shm``. Server, keeper and sandbox import this module.
"""

from __future__ import annotations

import hashlib
import os

from skillyard.guest.files import serving

WRITABLE = ("workspace", "tmp", "dev/shm")
SHOWN = ("skills", "blobs")
_TOPS = tuple(f"/{name}" for name in (*WRITABLE, *SHOWN))
ROOT = "SKILLYARD_ROOT"
"""The variable that names a sandbox's directory to its programs."""


def root_of(homes: str, secret: str, handle: str) -> str:
    """Returns a sandbox's directory, which no other sandbox can guess."""
    return f"{homes}/{hashlib.sha256(f'{secret}:{handle}'.encode()).hexdigest()[:24]}"


def real(root: str, path: str) -> str:
    """Returns the place of a port's path on this host; paths outside of the sandbox stay."""
    # A path with ``..`` is resolved first, so that it cannot lead in or out unseen.
    plain = os.path.normpath(path) if ".." in path else path
    if any(plain == top or plain.startswith(f"{top}/") for top in _TOPS):
        return root + plain
    return path


def variables(root: str) -> dict[str, str]:
    """Returns the environment variables that differ between sandboxes."""
    return {ROOT: root, "HOME": f"{root}/workspace", "TMPDIR": f"{root}/tmp"}  # noqa: S108 - its own


def main() -> int:
    """Runs the files program, whose paths lie below the sandbox's directory."""
    root = os.environ[ROOT]
    return serving.main(lambda path: real(root, path))
