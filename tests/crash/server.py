"""A real server process, and runs sent to it over HTTP by callers that live on when it is killed."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import httpx2

from skillyard.client.run import Run
from skillyard.client.sync import SyncClient
from skillyard.ipc.peers import peer
from skillyard.sandbox.native.groups.groups import sweep_noted
from skillyard.sandbox.native.keepers import homes
from skillyard.sandbox.native.launch import keeper_lives

START_S = 120.0
STOP_S = 30.0
CALL_S = 60.0

SMALL = {"memory_mb": 64, "disk_mb": 16, "pids": 32}
"""Limits that let fifty runs work at once on a small host."""
PLACES = {"SKILLYARD_ADMISSION__RUNNING": "128", "SKILLYARD_NATIVE__TENANT_PIDS": "4096"}
"""As many at once for one caller."""


class Server:
    """``skillyard serve --port 0`` on a data directory; ``ready`` sandboxes are made ahead for each shape."""

    def __init__(self, data_dir: Path, *, ready: int = 0, python: str = sys.executable, **env: str) -> None:
        self.data_dir = data_dir
        self._log = log_of(data_dir)
        self._process = launch(data_dir, ready=ready, python=python, **env)
        try:
            self.url = self._ready_at()
            self.token = (data_dir / "token").read_text().strip()
        except BaseException:  # also the test's own time limit: a server that nobody stops works on beside other tests
            self.kill()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop it, or if a test failed or hangs, end it at once."""
        try:
            if self.alive and kind is None:
                assert self.stop() == 0, self.log()
            if error is not None:
                error.add_note(f"the server {'lives' if self.alive else 'has ended'} and said:\n{self.log()[-4000:]}")
        finally:
            self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """As if the power went: no handler runs."""
        self._process.kill()
        self._process.wait(STOP_S)
        cast("Any", self._process.stdout).close()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def client(self) -> SyncClient:
        return SyncClient(self.url, self.token, timeout=CALL_S, retries=0)

    def callers(self) -> Callers:
        return Callers(self)

    def _ready_at(self) -> str:
        stdout = cast("Any", self._process.stdout)
        readable, _, _ = select.select([stdout], [], [], START_S)
        line = stdout.readline().decode() if readable else ""
        if "skillyard is ready at " not in line:
            raise AssertionError(f"the server printed {line!r}; its log: {self.log()}")
        return str(line.split()[-1])


def launch(data_dir: Path, *, ready: int = 0, python: str = sys.executable, **env: str) -> subprocess.Popen[bytes]:
    """The process, which is not ready yet."""
    with log_of(data_dir).open("ab") as log:
        process = subprocess.Popen(
            [python, "-m", "skillyard", "serve", "--port", "0", "--data-dir", str(data_dir)],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **PLACES, "SKILLYARD_NATIVE__READY": str(ready), **env},
        )
    _launched[data_dir] = process
    return process


_launched: dict[Path, subprocess.Popen[bytes]] = {}


def end_kept() -> None:
    """Ends the keepers and gates that dead servers left with detached runs, and removes their control groups."""
    for data_dir in [data_dir for data_dir, server in _launched.items() if server.poll() is not None]:
        del _launched[data_dir]
        run_dir = data_dir / "run"
        _kill_behind(run_dir / "gate" / "gate.sock")
        for home in [home for below in ("", "landlock", "gvisor") for home in homes(run_dir / below)]:
            _kill_behind(home / "keeper.sock")
            deadline = time.monotonic() + STOP_S
            while (home / "keeper.lock").exists() and keeper_lives(home):
                assert time.monotonic() < deadline, f"the keeper of {home} does not end"
                time.sleep(0.02)
            while sweep_noted(str(home)):  # processes that end keep their group
                assert time.monotonic() < deadline, f"the control groups of {home} stay"
                time.sleep(0.02)


def _kill_behind(path: Path) -> None:
    """Kills the process that listens on a socket, if one does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, suppress(OSError):
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        os.kill(peer(sock)[0], signal.SIGKILL)


def log_of(data_dir: Path) -> Path:
    return data_dir.with_name("server.log")


class Callers:
    """Many requests at once. A caller whose server is killed gets None."""

    def __init__(self, server: Server) -> None:
        limits = httpx2.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {server.token}"}
        self._http = httpx2.AsyncClient(
            base_url=server.url, headers=headers, timeout=CALL_S, limits=limits, trust_env=False
        )

    async def __aenter__(self) -> Callers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def run(self, code: str, args: dict[str, Any] | None = None, **more: Any) -> asyncio.Task[Run | None]:
        """Start a run; the task gives its Run object."""
        params = {"language": "python", "code": code, "args": args or {}, "limits": SMALL, **more}
        return asyncio.create_task(self._call("run_code", params))

    async def records(self, status: str | None = None) -> list[dict[str, Any]]:
        """The newest five hundred."""
        answer = await self._result("runs.list", {"limit": 500, **({"status": status} if status else {})})
        return cast("list[dict[str, Any]]", answer["runs"])

    async def until_begun(self, count: int, seconds: float = 60.0) -> None:
        """Wait until exactly ``count`` runs are running and each has printed ``begun``."""
        begun: set[str] = set()
        running: set[str] = set()
        async with asyncio.timeout(seconds):
            while not len(begun & running) == len(running) == count:
                running = {record["run_id"] for record in await self.records("running")}
                for run_id in running - begun:
                    if "begun" in await self.log_of(run_id):
                        begun.add(run_id)
                await asyncio.sleep(0.05)  # the server that works for them answers this, too

    async def log_of(self, run_id: str) -> str:
        return str((await self._result("runs.logs", {"run_id": run_id}))["content"])

    async def _call(self, method: str, params: dict[str, Any]) -> Run | None:
        try:
            return Run.of(await self._result(method, params))
        except httpx2.TransportError:
            return None

    async def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._http.post("/rpc", json=request)).json()
        assert "result" in answer, answer
        return cast("dict[str, Any]", answer["result"])
