"""Wheels out of an archive that a server gives, into a directory: those of the lock, byte for byte, and no others."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillyard.domain.package.lock_text import BadLock, parse_lock
from skillyard.faces.cli.failures import Exit, Failure

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target

_PIECE = 1 << 20


def write_wheels(target: Target, found: dict[str, Any], directory: Path, *, quiet: bool) -> list[Path]:
    """The files that are there then. Raises Failure for an archive that holds anything else."""
    from skillyard.faces.cli.progress import transfer
    from skillyard.stores.archives import ArchiveRefused, TarReceiver

    directory.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".wheels-", dir=directory))
    try:
        with (staging / "archive").open("w+b") as archive:
            with transfer("wheels", quiet=quiet) as progress:
                target.get_blob(found["archive"], archive, progress=progress)
            archive.seek(0)
            unpacked = staging / "unpacked"
            unpacked.mkdir()
            with TarReceiver(unpacked) as receiver:
                while piece := archive.read(_PIECE):
                    receiver.feed(piece)
                receiver.finish()
        return [_moved(path, directory) for path in _checked(unpacked, str(found["lock"]))]
    except (ArchiveRefused, BadLock) as error:
        raise Failure(f"the server's archive of wheels is refused: {error}", code=Exit.FAILED) from None
    finally:
        shutil.rmtree(staging)


def _checked(unpacked: Path, lock: str) -> list[Path]:
    """Raises Failure."""
    known = {digest: pin.name for pin in parse_lock(lock) for digest in pin.hashes}
    found: dict[str, Path] = {}
    for path in sorted(unpacked.iterdir()):
        name = known.get(_digest(path)) if path.is_file() else None
        if name is None or path.suffix != ".whl" or name in found:
            raise Failure(f"{path.name} is no wheel of the lock", code=Exit.FAILED)
        found[name] = path
    if missing := sorted(set(known.values()) - found.keys()):
        raise Failure(f"the archive lacks the wheels of {', '.join(missing)}", code=Exit.FAILED)
    return list(found.values())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _moved(path: Path, directory: Path) -> Path:
    """Readable by all: sandboxes see it as users of their own."""
    path.chmod(0o644)
    return path.replace(directory / path.name)
