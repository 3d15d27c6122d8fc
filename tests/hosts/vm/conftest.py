"""One image for all boots. SKILLYARD_VM_DIR keeps what was fetched and installed between runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.vm import image


@pytest.fixture(scope="session")
def machine_image(tmp_path_factory: pytest.TempPathFactory) -> image.Image:
    if why := image.missing():
        pytest.skip(why)
    kept = os.environ.get("SKILLYARD_VM_DIR")
    return image.make(Path(kept).absolute() if kept else tmp_path_factory.mktemp("vm"))
