"""The srt that tests run: that of SKILLYARD_SRT__COMMAND, or the one on PATH."""

from __future__ import annotations

import asyncio
import os
import tempfile
from functools import cache
from pathlib import Path

from skillyard.config.srt import SrtSettings
from skillyard.ports.gate import Plug
from skillyard.sandbox.srt.backend import SrtBackend


def settings(**changes: object) -> SrtSettings:
    """Returns the settings of the backend, with this host's srt."""
    return SrtSettings(command=os.environ.get("SKILLYARD_SRT__COMMAND", "")).changed(**changes)


def backend(base: Path, gate: Plug | None = None, /, **changes: object) -> SrtBackend:
    """Returns a backend whose run directories are below ``base``."""
    return SrtBackend(base, settings(**changes), gate=gate)


@cache
def absent() -> str:
    """Returns why srt cannot be tested here; empty when it can."""

    async def look() -> str:
        with tempfile.TemporaryDirectory() as base:
            tried = backend(Path(base) / "srt")
            probe = await tried.probe()
            await tried.close()
            return "" if probe.ready else f"srt does not stand here: {probe.facts['why']}"

    return asyncio.run(look())
