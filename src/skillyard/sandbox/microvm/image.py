"""An image of machines: kernel, initial file system and root, with their digests."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault
from skillyard.values import dataclass

FORMAT = 1
KERNEL, INITIAL, ROOT = "kernel", "initial", "root.squashfs"
FILES = (KERNEL, INITIAL, ROOT)
MANIFEST = "image.json"
MEND = "make one with `skillyard image build --microvm` (docs/microvm.md)"
_MOST_MANIFEST = 64 * 1024


@dataclass(frozen=True, slots=True)
class Image:
    """An image whose files are open, and have the digests that its manifest names.

    Machines get the descriptors, so that a file which is replaced meanwhile changes nothing.
    """

    digest: str
    facts: dict[str, str]
    descriptors: dict[str, int]

    def close(self) -> None:
        for descriptor in self.descriptors.values():
            os.close(descriptor)


def built_at(directory: Path) -> tuple[int, ...]:
    """Returns numbers by which a manifest differs from that of an image built anew."""
    try:
        found = (directory / MANIFEST).stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def open_image(directory: Path) -> Image:
    """Opens an image and compares its files with their digests. Raises SandboxFault.

    The manifest protects as far as others cannot write it: its rights, and those of the files, are looked at.
    """
    try:
        for place in (directory, *(directory / name for name in (*FILES, MANIFEST))):
            if place.stat().st_mode & 0o022:
                raise SandboxFault(f"{place}: others can write it, and so into machines; chmod go-w")
        manifest = read_manifest(directory)
    except OSError as error:
        raise SandboxFault(f"{directory} is not an image of machines: {error.strerror}; {MEND}") from None
    opened: dict[str, int] = {}
    try:
        for name in FILES:
            opened[name] = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            if digest_of(opened[name]) != manifest["files"][name]:
                raise SandboxFault(f"{directory / name} is not the file that was built; {MEND}")
    except BaseException as error:
        for descriptor in opened.values():
            os.close(descriptor)
        if isinstance(error, OSError):
            raise SandboxFault(f"{directory / name}: {error.strerror}; {MEND}") from None
        raise
    digest = hashlib.sha256(json.dumps(manifest["files"], sort_keys=True).encode()).hexdigest()
    return Image(digest, manifest["facts"], opened)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the manifest of an image. Raises OSError, and SandboxFault for another form."""
    with (directory / MANIFEST).open("rb") as file:
        text = file.read(_MOST_MANIFEST)
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    match told:
        case {"format": 1, "files": dict(files), "facts": dict(facts)}:
            texts = all(isinstance(value, str) for value in (*files.values(), *facts.values()))
            if set(files) == set(FILES) and texts:
                return {"files": files, "facts": facts}
    raise SandboxFault(f"{directory / MANIFEST} is not a manifest of format {FORMAT}; {MEND}")


def write_manifest(directory: Path, facts: dict[str, str]) -> None:
    """Writes the digests of the files, and takes the right to write them away."""
    files = {}
    for name in FILES:
        (directory / name).chmod(0o444)
        descriptor = os.open(directory / name, os.O_RDONLY)
        files[name] = digest_of(descriptor)
        os.close(descriptor)
    manifest = {"format": FORMAT, "files": files, "facts": facts}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    (directory / MANIFEST).chmod(0o444)


def digest_of(descriptor: int) -> str:
    """Returns the SHA-256 of an open file."""
    digest, at = hashlib.sha256(), 0
    while piece := os.pread(descriptor, 1 << 20, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()
