"""Which modules of ours go into a sandbox's root, and how the zygote is started from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skillyard.sandbox.native.inside.walls import CODE_ROOT

_NATIVE = (
    *(f"linux/{name}" for name in ("__init__", "kernel", "landlock")),
    *(f"inside/{name}" for name in ("__init__", "walls", "protocol", "init", "zygote")),
)

START = (
    f"import sys, json; sys.path.append({CODE_ROOT!r});"
    " from skillyard.sandbox.native.inside.zygote import main; main(*json.loads(sys.argv[1]))"
)


def modules() -> Iterator[tuple[str, Path | None]]:
    """(path below CODE_ROOT, source file or None for an empty file)."""
    package = Path(__file__).parents[3]
    for name in ("skillyard", "skillyard/sandbox", "skillyard/sandbox/native", "skillyard/ipc"):
        yield f"{name}/__init__.py", None
    yield "skillyard/ipc/packets.py", package / "ipc" / "packets.py"
    for name in _NATIVE:
        yield f"skillyard/sandbox/native/{name}.py", package / "sandbox" / "native" / f"{name}.py"
    for source in sorted((package / "guest").rglob("*.py")):
        yield f"skillyard/{source.relative_to(package)}", source
