"""Sandboxes through E2B's SDK at this server, beside containers through ``docker run``, in turns of one run."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from skillyard.bench.subject import WrongResult
from skillyard.server_process import ServerProcess
from tests.conformance.sandbox.oci_ground import BASE, import_python
from tests.hosts.docker_engine import Docker, docker_daemon

OURS, DOCKER = "skillyard", "docker"
STEPS = ("create", "first command", "command", "run_code", "kill")
AT_ONCE = 8
MEMORY_MB = DISK_MB = 64
_SETTINGS = {
    "SKILLYARD_E2B_SERVER__ENABLED": "true",
    "SKILLYARD_ADMISSION__RUNNING": "512",
    "SKILLYARD_ADMISSION__RESERVE": "0",
    "SKILLYARD_ADMISSION__OVERCOMMIT": "32",
    "SKILLYARD_SERVICES__PLACES": "128",
    "SKILLYARD_SERVICES__PLACES_EACH": "128",
    "SKILLYARD_NATIVE__TENANT_PIDS": "16384",
    "SKILLYARD_LIMITS__MEMORY_MB": str(MEMORY_MB),
    "SKILLYARD_LIMITS__DISK_MB": str(DISK_MB),
}
_WALLS = ("--network", "none", "--memory", f"{MEMORY_MB}m", "--cpus", "1", "--pids-limit", "256", "--cap-drop", "ALL")
_SAFE = ("--security-opt", "no-new-privileges", "--user", "65532:65532", "--tmpfs", f"/workspace:size={DISK_MB}m")


@dataclass(slots=True)
class Found:
    """Seconds of each step by side; of many at once, the seconds for all, and the host's memory for each, in bytes."""

    times: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: {step: {OURS: [], DOCKER: []} for step in STEPS}
    )
    many: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, float]]:
        """Yields titles and numbers."""
        for step, sides in self.times.items():
            ours, theirs = (statistics.median(sides[side]) for side in (OURS, DOCKER))
            yield f"{step}: of docker's time", ours / theirs
            yield f"{step}: ms", ours * 1000
        yield f"{self.many} sandboxes, {AT_ONCE} at a time: of docker's time", self.seconds[OURS] / self.seconds[DOCKER]
        yield f"{self.many} sandboxes: sandboxes a second", self.many / self.seconds[OURS]
        yield "an idle sandbox: of docker's memory", self.memory[OURS] / self.memory[DOCKER]
        yield "an idle sandbox: MiB", self.memory[OURS] / 2**20

    def as_dict(self) -> dict[str, Any]:
        return {"times": self.times, "many": self.many, "seconds": self.seconds, "memory": self.memory}


class Ours:
    """Sandboxes of a server, by the unmodified SDK."""

    def __init__(self, url: str, token: str) -> None:
        self._kind, self._options = (
            import_module("e2b_code_interpreter").Sandbox,
            {"api_url": url, "sandbox_url": url, "api_key": token},
        )

    def create(self) -> Any:
        return self._kind.create(timeout=600, **self._options)

    def command(self, made: Any) -> str:
        return str(made.commands.run("echo done").stdout)

    def code(self, made: Any) -> str:
        return str(made.run_code("print('done')").logs.stdout[0])

    def kill(self, made: Any) -> None:
        made.kill()


class Theirs:
    """Containers with the same limits, by docker's command line."""

    def __init__(self, docker: Docker) -> None:
        self._docker = docker

    def create(self) -> Any:
        return self._docker("run", "-d", "--init", *_WALLS, *_SAFE, BASE, "sleep", "600").stdout.strip()

    def command(self, made: Any) -> str:
        return self._docker("exec", made, "bash", "-lc", "echo done").stdout

    def code(self, made: Any) -> str:
        return self._docker("exec", made, "python3", "-c", "print('done')").stdout

    def kill(self, made: Any) -> None:
        self._docker("rm", "-f", made)


@contextmanager
def sides(home: Path) -> Iterator[dict[str, Ours | Theirs]]:
    (home / "docker").mkdir()
    with docker_daemon(home / "docker") as docker:
        import_python(docker)
        with ServerProcess(home / "data", settings=_SETTINGS) as server:
            token = (server.data_dir / "token").read_text().strip()
            yield {OURS: Ours(server.url, token), DOCKER: Theirs(docker)}


def measure(home: Path, rounds: int, many: int) -> Found:
    """Returns what was measured. Raises WrongResult."""
    found = Found(many=many)
    with sides(home) as both:
        for turn in range(rounds + 1):
            for name, side in both.items():
                _one(found if turn else Found(), name, side)  # the first warms up
        for name, side in both.items():
            _many(found, name, side)
    return found


def _one(found: Found, name: str, side: Ours | Theirs) -> None:
    made: Any = None
    steps: dict[str, Callable[[], Any]] = {
        "create": side.create,
        "first command": lambda: side.command(made),
        "command": lambda: side.command(made),
        "run_code": lambda: side.code(made),
        "kill": lambda: side.kill(made),
    }
    for step, work in steps.items():
        began = time.perf_counter()
        said = work()
        found.times[step][name].append(time.perf_counter() - began)
        if step == "create":
            made = said
        elif step != "kill" and said != "done\n":
            raise WrongResult(f"{name}: {step} said {said!r}")


def _many(found: Found, name: str, side: Ours | Theirs) -> None:
    before = _available()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.perf_counter()
        made = list(pool.map(lambda _: side.create(), range(found.many)))
        found.seconds[name] = time.perf_counter() - began
        found.memory[name] = (before - _available()) / found.many
        list(pool.map(side.kill, made))


def _available() -> int:
    """Returns the bytes that the kernel could give to new programs (MemAvailable of proc(5))."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


@click.command("e2b")
@click.option("--quick", is_flag=True, help="A few turns: a sign of life.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def e2b(*, quick: bool, as_json: bool) -> None:
    """Measure sandboxes through E2B's SDK beside containers through docker. Needs root, dockerd and E2B's SDKs."""
    with tempfile.TemporaryDirectory() as home:
        found = measure(Path(home), rounds=2 if quick else 15, many=10 if quick else 100)
    if as_json:
        click.echo(json.dumps(found.as_dict()))
        return
    for title, value in found.rows():
        click.echo(f"{title:72} {value:8.2f}")
