"""The template of machines: a Dockerfile, the stage, the guest and packages by content."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from inspect import getsource
from pathlib import Path

from skillyard.domain.errors import InvalidInput
from skillyard.domain.package.platforms import interpreter
from skillyard.sandbox.e2b import stage
from skillyard.sandbox.e2b.order import fixed
from skillyard.sandbox.guest_argv import bytecode, guest_bundle

BASE = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim-bookworm"
"""With this server's Python a template shares packages with other isolations, and they are compiled ahead."""
DOCKERFILE, START, READY, CONTEXT = "e2b.Dockerfile", "start.sh", "ready.sh", "skillyard"
_PACKAGES = "bash ca-certificates procps"
_TEXT = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends {packages} && rm -rf /var/lib/apt/lists/*
COPY {context} {baked}
COPY {start} {baked}/{start}
COPY {ready} {baked}/{ready}
RUN chmod -R a+rX,go-w {baked}
USER root
"""
_START = """\
#!/bin/sh
# The start command of the template: it fails where a tool is missing. Then the stage waits for the order of a sandbox,
# in the memory that all machines of the template begin with.
set -e
mkdir -p -m 0755 {root}
python3 -I -S {baked}/stage.py look
exec python3 -I -S {baked}/waiting.py {place}
"""
_READY = """\
#!/bin/sh
# The ready command of the template: the stage waits.
test -p {place}/order
"""


@cache
def guest_name() -> str:
    """Returns the name of this release's guest, by its content."""
    return hashlib.sha256(guest_bundle()).hexdigest()[:32]


@cache
def stage_source() -> bytes:
    """Returns the stage as it runs in a machine."""
    return program("stage.py")


@cache
def fixed_part() -> bytes:
    """Returns the part of orders that a stage in a template goes by ahead, as its file."""
    return json.dumps(fixed(f"{stage.BAKED}/guests/{guest_name()}.pyz")).encode()


@cache
def waiting_place() -> str:
    """Returns the directory of the stage of this release that waits. Each of its parts is in the name."""
    parts = (stage_source(), program("waiting.py"), fixed_part())
    name = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]
    return f"{stage.WAITS}/{name}"


@cache
def program(name: str) -> bytes:
    """Returns a program of this package that can tell of its interpreter."""
    text = (resources.files("skillyard.sandbox.e2b") / name).read_text("utf-8")
    head, guard, end = text.rpartition("\n\nif __name__")
    return f"{head}\n\n{getsource(interpreter)}{guard}{end}".encode()


@cache
def stage_bytecode() -> bytes:
    """Returns the stage as it runs in a machine with this server's version of Python."""
    return bytecode("stage.py", stage_source())


def write_template(directory: Path, base: str, packages: Mapping[str, Path]) -> list[Path]:
    """Writes the files that a template is built of, in a new or empty directory; returns them.

    ``base`` is an image with Python 3.11 or newer and apt. ``packages`` are directories by the digest of their content.
    Raises InvalidInput.
    """
    if directory.exists() and any(directory.iterdir()):
        raise InvalidInput("DIRECTORY", "must be new or empty", str(directory))
    if not base or any(c.isspace() or not c.isprintable() for c in base):
        raise InvalidInput("--base", "must be the name of an image", base)
    guest, context = guest_name(), directory / CONTEXT
    (context / "guests").mkdir(parents=True)
    (context / "content").mkdir()
    files = {
        directory / DOCKERFILE: _TEXT.format(
            base=base, packages=_PACKAGES, context=CONTEXT, baked=stage.BAKED, start=START, ready=READY
        ).encode(),
        directory / START: _START.format(root=stage.ROOT, baked=stage.BAKED, place=waiting_place()).encode(),
        directory / READY: _READY.format(place=waiting_place()).encode(),
        context / "stage.py": stage_source(),
        context / "stage.pyc": stage_bytecode(),
        context / "waiting.py": program("waiting.py"),
        context / "fixed.json": fixed_part(),
        context / "guests" / f"{guest}.pyz": guest_bundle(),
    }
    for path, data in files.items():
        path.write_bytes(data)
    for name in (START, READY):
        (directory / name).chmod(0o755)
    for digest, source in packages.items():
        shutil.copytree(source, context / "content" / digest, symlinks=True)
    return [*files, *(context / "content" / digest for digest in packages)]
