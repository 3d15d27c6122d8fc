"""The modules of ours that a sandbox's root has: sources for other grounds, bytecode for zygotes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from skillyard.sandbox.native.grounds import root


def test_other_grounds_get_sources_alone() -> None:
    """gVisor's compiles each of them."""
    assert {Path(name).suffix for name, _ in root.inside_modules()} == {".py"}


def test_zygotes_load_our_modules_as_bytecode(tmp_path: Path) -> None:
    """It is that of the sources, of which none is read for it."""
    sources = {name: source for name, source in root.inside_modules() if source is not None}
    assert len(root.bytecode()) == len(sources)
    for name, source in root.inside_modules():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("raise RuntimeError" if source is not None else "")
    for name, data in root.bytecode():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from skillyard.sandbox.native.inside import walls"
    told = f"{code}; print(walls.INSIDE_ID)"
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", told], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout == "65532\n"
