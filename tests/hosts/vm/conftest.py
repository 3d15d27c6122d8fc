"""One image for all boots of a kind of machine. SKILLYARD_VM_DIR keeps what was fetched and installed between runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.vm import image


@pytest.fixture(scope="session")
def machine_image(tmp_path_factory: pytest.TempPathFactory) -> image.Image:
    return _made(image.X86, tmp_path_factory)


@pytest.fixture(scope="session")
def arm_image(tmp_path_factory: pytest.TempPathFactory) -> image.Image:
    return _made(image.ARM, tmp_path_factory)


def _made(kind: image.Kind, places: pytest.TempPathFactory) -> image.Image:
    if why := image.missing(kind):
        pytest.skip(why)
    kept = os.environ.get("SKILLYARD_VM_DIR")
    return image.make((Path(kept).absolute() if kept else places.mktemp("vm")) / kind.name, kind)
