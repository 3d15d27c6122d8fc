"""kill -9 of the server while it builds an environment: the build ends with it, and what it made is removed."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
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


async def test_a_stop_ends_a_build_and_whoever_waits_is_told(tmp_path: Path) -> None:
    data_dir, footprint = tmp_path / "data", Footprint(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as index:
        environments = json.dumps({"slow": {"packages": ["slow"]}})
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        settings = {"SKILLYARD_ENVIRONMENTS": environments, "SKILLYARD_PACKAGES__INDEX": url}
        with Server(data_dir, ready=0, SKILLYARD_SERVER__GRACE_S="0.5", **settings) as server:
            async with server.callers() as callers:
                run = callers.run(QUICK, {"n": 1}, environment="slow")
                build = await _accepted(index)
                assert await asyncio.to_thread(server.stop) == 0, server.log()
                done = await run
        with build:
            await _hung_up(build)
    assert done is None or "shutting down" in str(done.error)
    assert not list((data_dir / "environments").iterdir())
    gone(footprint)


async def _accepted(index: socket.socket) -> socket.socket:
    index.setblocking(False)
    async with asyncio.timeout(30):
        connection, _ = await asyncio.get_running_loop().sock_accept(index)
    connection.setblocking(False)
    return connection


async def _hung_up(connection: socket.socket) -> None:
    """The other end is gone."""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            await _read_all(connection)


async def _read_all(connection: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(connection, 4096):
        pass
