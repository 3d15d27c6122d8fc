"""A server with two tenants, and how long the quiet one's runs take."""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2

from skillyard.client.sync import SyncClient
from skillyard.domain.principal import Principal, Scope
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.tokens import FileTokens
from tests import waiting
from tests.crash.server import Server

SCOPES = frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.BLOBS, Scope.DISCOVER})
CODE = "def main(args):\n    return {'sum': sum(args['xs'])}\n"
FLOOD = Path(__file__).with_name("flood.py")
LONGEST_S = 300.0
PATIENCE_S = 60.0


@dataclass
class Latency:
    """Of runs one after the other, in milliseconds."""

    times: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return statistics.median(self.times)

    @property
    def p95(self) -> float:
        return sorted(self.times)[int(len(self.times) * 0.95)]

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f} ms, p95 {self.p95:.1f} ms, max {max(self.times):.0f} ms ({len(self.times)})"


class Yard:
    """``greedy`` and ``quiet`` are two principals of one server."""

    def __init__(self, home: Path, **env: str) -> None:
        self.server = Server(home / "data", ready=4, **env)
        self.tokens = {name: self._token(name) for name in ("greedy", "quiet")}
        with self.client("quiet") as client:
            self.enforced = client.run_code(CODE, {"xs": []})["enforced"]
        self.quiet: Latency | None = None
        """What was measured last without a flood."""

    def _token(self, name: str) -> str:
        tokens = FileTokens(self.server.data_dir / "tokens.json", SystemClock())
        return asyncio.run(tokens.create(Principal(name, SCOPES)))

    def client(self, name: str) -> SyncClient:
        return SyncClient(self.server.url, self.tokens[name], timeout=60, retries=0)

    def measure(self, seconds: float, least: int = 40, most: int = 200) -> Latency:
        """How long the quiet tenant's runs take, each of which must complete."""
        found, end = Latency(), time.monotonic() + seconds
        headers = {"authorization": f"Bearer {self.tokens['quiet']}"}
        params = {"language": "python", "code": CODE, "args": {"xs": [1, 2, 3]}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params}
        with httpx2.Client(base_url=self.server.url, headers=headers, timeout=60, trust_env=False) as http:
            while len(found.times) < least or (time.monotonic() < end and len(found.times) < most):
                begun = time.perf_counter()
                answer = http.post("/rpc", json=body).json()
                found.times.append((time.perf_counter() - begun) * 1000)
                assert answer["result"]["output"] == {"sum": 6}, answer
        return found

    @contextmanager
    def flood(self, name: str, told: dict[str, Any] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """``told`` takes what the flood says at its end."""
        command = [sys.executable, str(FLOOD), self.server.url, self.tokens["greedy"], name, str(LONGEST_S)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            stdout, stdin = cast("Any", process.stdout), cast("Any", process.stdin)
            try:
                assert stdout.readline() == b"under way\n"
                yield process
                stdin.close()
                line = stdout.readline()
                if told is not None:
                    told.update(json.loads(line))
            finally:
                process.kill()

    def until_running(self, name: str, count: int) -> int:
        """Wait until so many runs of a tenant are running; how many are."""
        with self.client(name) as client:
            return self._until(lambda: len(client.list_runs(status="running", limit=500)["runs"]), count)

    def until_waiting(self, count: int) -> int:
        """Wait until so many runs wait for a place."""
        headers = {"authorization": f"Bearer {self.server.token}"}
        with httpx2.Client(base_url=self.server.url, headers=headers, timeout=60, trust_env=False) as http:

            def waiting() -> int:
                found = re.search(r"^skillyard_runs_waiting (\d+)", http.get("/metrics").text, re.MULTILINE)
                return int(found[1]) if found else 0

            return self._until(waiting, count)

    def settle(self) -> None:
        """Wait until the flood's runs have ended."""
        with self.client("greedy") as client:
            self._until(lambda: -len(client.list_runs(status="running", limit=500)["runs"]), 0)

    def _until(self, number: Callable[[], int], least: int) -> int:
        found: list[int] = []

        def enough() -> bool:
            found.append(number())
            return found[-1] >= least

        waiting.until(enough, PATIENCE_S, lambda: f"{found[-1]} of {least}")
        return found[-1]

    def keeper_mb(self) -> float:
        return rss_mb(self.keeper())

    def rss_mb(self) -> float:
        """Of the server process."""
        return rss_mb(self.server.pid)

    def keeper(self) -> int:
        """Its pid, as the host sees it."""
        mark = f'"run_dir": "{self.server.data_dir}'
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
                    parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, ValueError):
                    continue
                if mark in line and parent != self.server.pid:
                    return int(entry)
        raise AssertionError("there is no keeper")


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)
