"""The keeper's watch looks at what is still there, and at nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from skillyard.sandbox.native.grounds.landlock.place import LandlockPlace, Owner
from skillyard.sandbox.native.grounds.landlock.watch import Watch
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects


def test_a_sandbox_whose_directory_goes_is_not_looked_at(tmp_path: Path) -> None:
    """Its init has ended, and not everybody has been told: a look at that moment must not end the keeper."""
    loop = Loop()
    shape = Shape("base", "", memory_mb=64, cpus=1.0, pids=16, disk_mb=8)
    owner = cast(Owner, None)  # nothing is removed
    place = LandlockPlace(loop, owner, shape, str(tmp_path / "home"), (0, 0), b"")
    sandbox = Sandbox(loop, "gone", shape, place, str(tmp_path))
    watch = Watch(loop, processes=True)
    with pytest.raises(FileNotFoundError):
        watch.check(sandbox, place, Objects())
    place.removed = True
    watch.check(sandbox, place, Objects())
    sandbox.handed_over([])
    sandbox.release()
