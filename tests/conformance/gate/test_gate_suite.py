"""The real gate keeps the promises of its port."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from skillyard.gate.client import ProcessGate
from skillyard.testing.gate_suite import port
from skillyard.testing.gate_suite.port import GateGround
from tests.conformance.gate.house import House
from tests.conformance.gate.test_kept import killed

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", port.CHECKS, ids=lambda check: check.__name__)
async def test_the_gate(check: Any) -> None:
    async def kill(gate: object) -> None:
        assert isinstance(gate, ProcessGate)
        await killed(gate)

    with TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as short:  # unix sockets have short names
        house = House(Path(short), None)
        try:
            await check(GateGround(house.server, kill))
        finally:
            await house.close()
