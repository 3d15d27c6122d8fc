"""A runtime whose settings name the toy server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import load_settings
from skillyard.domain.principal import LOCAL, Principal
from skillyard.engine.observer import Observer, ignore
from skillyard.engine.table import invoke
from skillyard.runtime import Runtime

TOY = Path(__file__).parent / "toy"
SERVER: dict[str, Any] = {
    "command": ["python3", "toy_server.py"],
    "source": str(TOY),
    "approve_first": True,
    "timeout_s": 20,
    "memory_mb": 64,
}


class Yard:
    """A runtime, called as any principal."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    async def call(self, method: str, /, principal: Principal = LOCAL, **params: Any) -> dict[str, Any]:
        return await invoke(self.runtime.app, principal, method, params)

    async def tool(
        self, tool: str, arguments: dict[str, Any] | None = None, *, principal: Principal = LOCAL, **more: Any
    ) -> dict[str, Any]:
        return await self.call("tools.call", principal, server="toy", tool=tool, arguments=arguments or {}, **more)

    async def held(self) -> list[str]:
        """Returns the keys of all sandboxes that there are."""
        offer = self.runtime.app.backends.default
        assert offer is not None
        return [held.key for held in await offer.backend.survey()]


@asynccontextmanager
async def yard_of(home: Path, observer: Observer = ignore, **settings: Any) -> AsyncIterator[Yard]:
    async with Runtime(settings=load_settings(data_dir=home, **settings), observer=observer) as runtime:
        yield Yard(runtime)


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    tmp_path.chmod(0o755)
    async with yard_of(tmp_path / "data", mcp={"servers": {"toy": SERVER}}) as yard:
        await yard.call("tools.refresh", server="toy")
        yield yard
