"""kill -9 of the server while it builds an environment: the build ends with it, and what it made is removed."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from tests.crash.leftovers import Footprint, gone
from tests.crash.programs import QUICK
from tests.crash.server import Server

pytestmark = pytest.mark.anyio


async def test_the_build_ends_with_the_server(tmp_path: Path) -> None:
    """Its index never answers, so that it is at work when the server is killed."""
    data_dir, footprint = tmp_path / "data", Footprint(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as index:
        environments = json.dumps({"slow": {"packages": ["slow"]}})
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        with Server(data_dir, SKILLYARD_ENVIRONMENTS=environments, SKILLYARD_PACKAGES__INDEX=url) as server:
            async with server.callers() as callers:
                run = callers.run(QUICK, {"n": 1}, environment="slow")
                build = await _accepted(index)
                assert any("uv" in process.command for process in footprint.look().processes)
                server.kill()
                assert await run is None
        with build:
            await _hung_up(build)
    (data_dir / "environments" / ".tmp-half-made").mkdir()
    with Server(data_dir) as server:
        assert not list((data_dir / "environments").iterdir())
        async with server.callers() as callers:
            assert (again := await callers.run(QUICK, {"n": 2})) is not None
            assert again.output == {"n": 2}
    gone(footprint)


async def _accepted(index: socket.socket) -> socket.socket:
    index.setblocking(False)
    async with asyncio.timeout(30):
        connection, _ = await asyncio.get_running_loop().sock_accept(index)
    connection.setblocking(False)
    return connection


async def _hung_up(connection: socket.socket) -> None:
    """The other end is gone."""
    async with asyncio.timeout(10):
        while await asyncio.get_running_loop().sock_recv(connection, 4096):
            pass
