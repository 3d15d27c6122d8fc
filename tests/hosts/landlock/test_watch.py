"""The keeper's watch looks at what is still there, and at nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.sandbox.native.grounds.landlock.place import LandlockBox
from skillyard.sandbox.native.grounds.landlock.watch import Watch
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Shape
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects


def test_a_sandbox_whose_directory_goes_is_not_looked_at(tmp_path: Path) -> None:
    """Its init has ended, and not everybody has been told: a look at that moment must not end the keeper."""
    loop = Loop()
    shape = Shape("base", "", memory_mb=64, cpus=1.0, pids=16, disk_mb=8)
    box = LandlockBox(loop, "gone", shape, str(tmp_path), str(tmp_path / "home"), 0, 0)
    watch = Watch(loop, processes=True)
    with pytest.raises(FileNotFoundError):
        watch.check(box, Objects())
    box.removed = True
    watch.check(box, Objects())
    box.handed_over([])
    box.release()
