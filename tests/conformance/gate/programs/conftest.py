"""One world and one runtime for all: on a street of two network namespaces as root, else on the loopback."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from skillyard.stores.disk import remove_tree
from tests.conformance.gate.programs import street as streets
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.street import Street
from tests.conformance.gate.programs.world import NAMES, World
from tests.conformance.gate.programs.yard import Yard

CONNECTIONS = 64
"""At once, of one run."""
LIMITS = {"connections": CONNECTIONS}
RULES = ("*", "*.yard.test:*")
"""What code of these tests gets; requests narrow it."""


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    """Readable for whoever the servers run as."""
    path = Path(tempfile.mkdtemp(prefix="skillyard-programs-"))
    path.chmod(0o755)
    yield path
    remove_tree(path)  # snapshots and environments are sealed


@pytest.fixture(scope="session")
def place(directory: Path) -> Iterator[Place]:
    home = directory / "data"
    with ExitStack() as stack:
        yield _on_street(stack, directory, home) if _may() else _on_loopback(stack, directory, home)


@pytest.fixture
def street(place: Place) -> Place:
    """With addresses that must stay closed, each of which would answer."""
    if place.street is None:
        pytest.skip("needs root, and ip of iproute2: these tests make network namespaces")
    place.world.seen.clear()
    place.world.listeners.heard.clear()
    place.world.listeners.asked.clear()
    return place


def _may() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


def _on_street(stack: ExitStack, directory: Path, home: Path) -> Place:
    street = stack.enter_context(Street(directory))
    world = street.in_world(lambda: World(directory, "::", usual=True))
    stack.callback(street.in_world, world.close)
    world.listeners.names.update({name: [streets.WORLD] for name in NAMES})
    network = {"run_code": RULES, "open": True, "ca_file": world.authority.ca_file, "limits": LIMITS}
    yard = Yard(home, network, street.in_host)
    stack.callback(yard.close)
    return Place(world, yard, street)


def _on_loopback(stack: ExitStack, directory: Path, home: Path) -> Place:
    address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
    world = World(directory, address, usual=False)
    stack.callback(world.close)
    network = {
        "run_code": RULES,
        "open": True,
        "hosts": world.hosts(),
        "ca_file": world.authority.ca_file,
        "limits": LIMITS,
    }
    yard = Yard(home, network)
    stack.callback(yard.close)
    return Place(world, yard)
