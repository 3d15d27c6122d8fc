"""Our own modules inside: one directory of a keeper, compiled once, shown read-only to all of its sandboxes."""

from __future__ import annotations

import os
import py_compile
import shutil
from collections.abc import Iterator
from pathlib import Path

from skillyard.sandbox.native.inside.code import modules as native_modules

_GROUNDS = "skillyard/sandbox/native/grounds"


def install(directory: Path) -> None:
    """Make ``directory`` afresh: readable by everybody, since each sandbox's gofer is somebody else."""
    if directory.exists():
        shutil.rmtree(directory)
    for name, source in _modules():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is None:
            target.touch()
        else:
            shutil.copyfile(source, target)
        py_compile.compile(
            str(target),
            dfile=f"/opt/{name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    for top, _, files in os.walk(directory):
        os.chmod(top, 0o755)
        for name in files:
            os.chmod(os.path.join(top, name), 0o644)


def _modules() -> Iterator[tuple[str, Path | None]]:
    yield from native_modules()
    for name in (_GROUNDS, f"{_GROUNDS}/gvisor"):
        yield f"{name}/__init__.py", None
    yield f"{_GROUNDS}/gvisor/inside.py", Path(__file__).with_name("inside.py")
