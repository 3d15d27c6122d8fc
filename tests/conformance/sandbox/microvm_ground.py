"""An image of machines of the tests' own, made once for a run of the tests of this machine's Debian packages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from skillyard.config.backends import MicrovmSettings
from skillyard.sandbox.microvm import machine
from skillyard.sandbox.microvm.build import BuildFailed, build_image

SETTINGS = MicrovmSettings(accel="tcg", ready=0)
"""Emulation, so that the tests are the same on every host. `auto` and `ready` have tests of their own."""
IMAGE = Path("/usr/local/lib/skillyard-ci/microvm-image")
"""The one that .ci/setup makes."""
_TOOLS = ("qemu-system-x86_64", "apt-get", "dpkg-deb", "mksquashfs", "unshare", "setpriv")


def image(scratch: Path) -> Path:
    """Returns the directory of the image, made below ``scratch``. Skips, with the reason, where none can be made."""
    check_tools()
    return IMAGE if IMAGE.exists() else built(scratch / "microvm-image")


def check_tools() -> None:
    """Skips, with the reason, where no machine can be made."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"machines need {', '.join(missing)} (.ci/setup installs them)")
    if os.uname().machine != "x86_64":
        pytest.skip("images of machines are made for x86_64 only")
    pytest.importorskip("qemu.qmp", reason="QMP's client is not installed: pip install 'skillyard[microvm]'")


def built(place: Path, root: Path | None = None) -> Path:
    """Returns an image, of a root or of Debian's packages. Skips, with the reason, where none can be made."""
    if not place.exists():
        try:
            build_image(place, root, (), lambda _: None)
        except BuildFailed as failed:
            pytest.skip(f"no image of machines can be built: {failed.message}")
    return place


async def witness(handle: str) -> list[int]:
    """The QEMU of a sandbox, whose programs are no processes of the host."""
    return sorted(machine.processes_of(handle))
