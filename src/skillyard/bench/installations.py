"""Makes the subjects: plain interpreters, runtimes in this process, and servers beside it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from skillyard.bench.subject import DATA, NUMPY, PLAIN, SUM, Awaited, Blocking, Job, Skipped, Subject, WrongResult
from skillyard.client.sync import SyncClient
from skillyard.config.settings import Settings, load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.errors import SkillyardError
from skillyard.runtime import Runtime
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.server_process import ServerProcess

PYTHON = "python"
PYTHON_BARE = "python_bare"
SLOW = 6
"""The number of rounds in which a slow subject takes part once."""
BARE = ("-I", "-S")
"""Without the site module, whose .pth files can cost more than all the rest."""
_SITE = """
import json, os, site
print(json.dumps([name for path in site.getsitepackages() if os.path.isdir(path) for name in os.listdir(path)]))
"""
"""Debian's interpreters name directories that a virtual environment does not have."""
_CLEAN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
_PATIENCE_S = 60.0

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns what it prints. Raises OSError, WrongResult."""


def baselines(python: str, packages: Path | None) -> list[Subject]:
    """Returns the plain interpreters; ``packages`` holds numpy and pandas, when they are wanted."""
    found = [
        Subject(PYTHON, "python3 -I", "none", SUM, job_of([python, "-I"], SUM), loaded=True, peer=True),
        Subject(PYTHON_BARE, "python3 -I -S", "none", SUM, job_of([python, *BARE], SUM), peer=True),
    ]
    if packages:
        doing = job_of([python, "-I"], DATA, packages)
        found.append(Subject(f"{PYTHON}_data", "python3 -I", "none", DATA, doing, block=1, every=SLOW, peer=True))
    return found


def job_of(python: Sequence[str], job: Job, packages: Path | None = None, run: Run | None = None) -> Blocking:
    """Returns what does the job with a new interpreter. ``run`` starts its command, within walls perhaps."""
    command = [*python, "-c", PLAIN, job.request(packages)]
    run = run or (lambda command: printed(command, _CLEAN))
    return Blocking(lambda: job.check(json.loads(run(command))))


def interpreter() -> str:
    """Returns the path of the interpreter below any virtual environment; sandboxes run it too."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def clean_interpreter(home: Path) -> str:
    """Returns the interpreter of a new virtual environment with empty site-packages. So the comparison holds no cost of
    a version manager's shim or of an installation's .pth files. Raises WrongResult."""
    place = home / "clean"
    printed([interpreter(), "-I", "-m", "venv", "--without-pip", str(place)])
    python = str(place / "bin" / "python3")
    seen: list[str] = json.loads(printed([python, "-I", "-c", _SITE]))
    if seen:
        raise WrongResult(f"the baseline is not clean: {', '.join(seen)[:200]}")
    return python


def printed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Returns the standard output of a command that succeeds. Raises OSError, WrongResult, TimeoutExpired."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, env=environment
    )
    if done.returncode:
        raise WrongResult(f"{Path(command[0]).name} ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


_SETTLE_S = 0.04
"""Longer than what the keeper leaves between a short run and the refilling of its pool."""
_SETTLE_BOUND_S = 0.5
_WARM_UP = 5


@dataclass(slots=True)
class Installations:
    """``ready`` makes sandboxes ahead, ``demand`` none; the servers likewise."""

    ready: Runtime
    demand: Runtime
    ready_server: ServerProcess
    demand_server: ServerProcess
    ready_client: SyncClient
    demand_client: SyncClient
    packages: Path | None = None
    """Where the environment ``data`` is installed, once it is."""

    async def subjects(self, *, data: bool) -> tuple[list[Subject], list[Skipped]]:
        """Returns the subjects that can be measured here, warmed up, and those that cannot. Raises what a job
        raises."""
        walls = await self._walls()
        found = [
            Subject("ready", "skillyard, ready", walls, SUM, _in_process(self.ready, SUM), self._settled, 4, 1, True),
            Subject(
                "on_demand", "skillyard, on demand", walls, SUM, _in_process(self.demand, SUM), block=4, loaded=True
            ),
            Subject(
                "http", "skillyard over HTTP, ready", walls, SUM, _http(self.ready_client, SUM), _pause, 4, 1, True
            ),
            Subject(
                "http_on_demand", "skillyard over HTTP, on demand", walls, SUM, _http(self.demand_client, SUM), block=4
            ),
        ]
        skipped = []
        if data and (reason := await self._install_data()):
            skipped.append(Skipped("data", "skillyard, numpy+pandas", reason))
        elif data:
            # Behind the run that they are compared with: what happens between would be a part of the difference.
            found[1:1] = self._data_subjects(walls)
        for subject in found:
            for _ in range(_WARM_UP):
                await subject.doing.once()
                await self.ready.app.ahead.settled()
        return found, skipped

    def _data_subjects(self, walls: str) -> list[Subject]:
        return [
            Subject("numpy", "skillyard, ready", walls, NUMPY, _in_process(self.ready, NUMPY), self._settled, 4),
            Subject("data", "skillyard, ready", walls, DATA, _in_process(self.ready, DATA), self._settled, 3),
            Subject("data_on_demand", "skillyard, on demand", walls, DATA, _in_process(self.demand, DATA)),
            Subject("http_data", "skillyard over HTTP, ready", walls, DATA, _http(self.ready_client, DATA), _pause, 3),
        ]

    async def _walls(self) -> str:
        probe = await self.native().probe()
        levels = list(probe.enforced().values())
        counts = {level: levels.count(level) for level in ("kernel", "supervised", "missing")}
        told = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
        return f"{told}; {probe.facts['walls']}" if "walls" in probe.facts else told

    async def _install_data(self) -> str:
        """Installs numpy and pandas. Returns why they cannot be had, or nothing."""
        try:
            await self.ready.app.environments.get(NUMPY.environment)
            environment = await self.ready.app.environments.get(DATA.environment)
        except SkillyardError as error:
            return error.message
        assert environment.ref.packages is not None
        packages = environment.ref.packages.path
        assert packages is not None
        for directory in (self.demand.data_dir.home, self.ready_server.data_dir, self.demand_server.data_dir):
            _share(packages.parent, DataDir(directory).environments)
        self.packages = packages
        return ""

    def native(self) -> NativeBackend:
        """Returns the backend that makes the ready sandboxes."""
        offer = self.ready.app.backends.default
        assert offer is not None
        assert isinstance(offer.backend, NativeBackend)
        return offer.backend

    async def _settled(self) -> None:
        """Waits until the pool stops growing."""
        backend = self.native()
        deadline, seen = time.perf_counter() + _SETTLE_BOUND_S, -1
        while time.perf_counter() < deadline:
            await asyncio.sleep(_SETTLE_S)
            ready = (await backend.stats())["ready"]
            if ready == seen:
                return
            seen = ready


def _share(built: Path, other: Path) -> None:
    """Shares a built environment: its description is copied, its packages are linked to."""
    for path in built.iterdir():
        if path.name == "locks":
            shutil.copytree(path, other / path.name)
        elif path.is_dir():
            (other / path.name).symlink_to(path)
        else:
            shutil.copy2(path, other / path.name)


@asynccontextmanager
async def open_installations(home: Path) -> AsyncIterator[Installations]:
    """Opens four data directories below ``home``. Nothing is left running."""
    async with AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(Runtime(settings=_settings(made, ready)))
            for made, ready in ((home / "ready", 4), (home / "demand", 0))
        ]
        servers = [
            stack.enter_context(ServerProcess(made, settings={"SKILLYARD_NATIVE__READY": ready}))
            for made, ready in ((home / "server", "4"), (home / "server-demand", "0"))
        ]
        clients = [stack.enter_context(SyncClient(data_dir=server.data_dir)) for server in servers]
        yield Installations(runtimes[0], runtimes[1], servers[0], servers[1], clients[0], clients[1])


def _settings(data_dir: Path, ready: int) -> Settings:
    numpy = {NUMPY.environment: {"packages": ["numpy"]}}
    return load_settings(data_dir=data_dir, native={"ready": ready}, environments=numpy)


def _in_process(runtime: Runtime, job: Job) -> Awaited:
    async def work() -> None:
        run = await runtime.run_code(job.code, job.args, environment=job.environment)
        job.check(run.raise_for_status().output)

    return Awaited(work)


def _http(client: SyncClient, job: Job) -> Blocking:
    def work() -> None:
        run = client.run_code(job.code, job.args, environment=job.environment)
        job.check(run.raise_for_status().output)

    return Blocking(work)


async def _pause() -> None:
    """Leaves a server the time to refill its pool: it does not say how full that is."""
    await asyncio.sleep(2 * _SETTLE_S)
