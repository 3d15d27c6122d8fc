"""One process of the gate and one maker of network namespaces for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skillyard.gate.client import ProcessGate
from tests.conformance.gate.intercepted import Outside
from tests.conformance.gate.rooms import Rooms

GATE_UID = 1_899_999_999
SAME = ("test_endpoint", "test_http_proxy", "test_intercept", "test_kept", "test_names", "test_socks", "test_versions")
"""Beginnings of modules about what the gate reads and answers, which is the same whoever runs it."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.path.stem.startswith(SAME):
        item.add_marker("ordinary")


@pytest.fixture(scope="module")
def rooms() -> Iterator[Rooms]:
    rooms = Rooms()
    yield rooms
    rooms.close()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    outside = Outside(tmp_path_factory.mktemp("outside"))
    yield outside
    outside.close()


@pytest.fixture(scope="module")
async def shared_gate(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[ProcessGate]:
    """For tests whose sessions are their own and whose gate stays up."""
    gate = ProcessGate(tmp_path_factory.mktemp("gate") / "gate", uid=GATE_UID)
    yield gate
    await gate.close()


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[ProcessGate]:
    gate = ProcessGate(tmp_path / "gate", uid=GATE_UID)
    yield gate
    await gate.close()
