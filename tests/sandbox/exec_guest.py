"""Runs a Guest as a command."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import skillyard.guest
from skillyard.domain.sandbox import Argv
from tests.sandbox.exec_walls import GUEST


@functools.cache
def guest_bundle() -> bytes:
    """The guest as one file that the interpreter runs."""
    source = Path(skillyard.guest.__file__).parent
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr("__main__.py", "from guest.command import main\nmain()\n")
        for path in sorted(source.glob("*.py")):
            bundle.write(path, f"guest/{path.name}")
    return file.getvalue()


def guest_argv(numbers: Mapping[str, int]) -> Argv:
    return Argv(("python3", "-I", GUEST, "call", f"fd:{numbers['request']}", f"fd:{numbers['channel']}"))
