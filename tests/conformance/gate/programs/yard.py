"""A runtime whose runs may reach what a test says, and what became of their connections."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillyard import SyncRuntime
from skillyard.client.run import Run
from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.stores.disk import remove_tree
from tests.conformance.gate.programs.clients import PACKAGES
from tests.unit.engine.packages import real_index

ENVIRONMENT = "net"
TIMEOUT_MS = 60_000
ROOMY = {"ready": 0, "tenant_pids": 8192}
PLACES = {"running": 400, "queued": 400, "queued_each": 400}
"""For hundreds of runs of one principal at once."""


@dataclass(frozen=True, slots=True)
class Told:
    """A run, what it returned, however large, and what its record says of the network."""

    run: Run
    returned: Any
    connections: list[dict[str, Any]]
    dropped: int

    @property
    def output(self) -> Any:
        assert self.run.ok, dict(self.run.raw)
        return self.returned["result"] if set(self.returned) == {"result"} else self.returned

    def allowed(self) -> list[dict[str, Any]]:
        return [one for one in self.connections if one["allowed"]]

    def refused(self, host: str | None = None, port: int | None = None) -> list[dict[str, Any]]:
        return [
            one
            for one in self.connections
            if not one["allowed"] and host in (None, one["host"]) and port in (None, one["port"])
        ]


class Yard:
    """One open runtime. ``inside`` calls a function where its processes shall live (a network namespace, say)."""

    def __init__(
        self,
        home: Path,
        network: Mapping[str, Any],
        inside: Callable[[Callable[[], Any]], Any] = lambda work: work(),
        **settings: Any,
    ) -> None:
        environments = {ENVIRONMENT: {"packages": PACKAGES}}
        self.settings = load_settings(
            data_dir=home, network=network, environments=environments, native=ROOMY, admission=PLACES, **settings
        )
        self._inside = inside
        self.runtime: SyncRuntime = self._inside(self._opened)

    def close(self) -> None:
        self._inside(self.runtime.close)

    def _opened(self) -> SyncRuntime:
        runtime = SyncRuntime(settings=self.settings)
        runtime.open()
        return runtime

    def go(self, code: str, rules: Iterable[str] | None, args: Mapping[str, Any] | None = None, **more: Any) -> Told:
        """Run ``code``; ``rules`` narrow what it may reach, None leaves what the settings give."""
        limits = {"timeout_ms": TIMEOUT_MS, "memory_mb": 1024, **more.pop("limits", {})}
        if rules is not None:
            more["network"] = list(rules)
        run = self.runtime.run_code(code, dict(args or {}), limits=limits, **more)
        return self.told(run)

    def told(self, run: Run) -> Told:
        shown = self.runtime.call("runs.show", {"run_id": run.run_id})
        network = shown.get("run", shown).get("network") or {}
        return Told(run, self._returned(run), list(network.get("connections", ())), int(network.get("dropped", 0)))

    def _returned(self, run: Run) -> Any:
        found = run.output
        if not isinstance(found, dict) or set(found) != {"truncated", "blob_id", "size_bytes"}:
            return found
        content = io.BytesIO()
        self.runtime.get_blob(found["blob_id"], content)
        return json.loads(content.getvalue())


def install(home: Path) -> str:
    """Build the environment of the clients into a data directory, whose own runtime may have no way to an index; why it
    cannot be had, or nothing."""
    if why := real_index.why_not():
        return why
    building = home.with_name(f"{home.name}-building")
    settings = load_settings(
        data_dir=building, environments={ENVIRONMENT: {"packages": PACKAGES}}, packages=real_index.packages()
    )
    with SyncRuntime(settings=settings) as runtime:
        built = runtime.call("environments.build", {"environment": ENVIRONMENT})["environment"]
    if built["state"] != "ready":
        return str(built["error"])
    shutil.copytree(DataDir(building).environments, DataDir(home).environments, dirs_exist_ok=True)
    remove_tree(building)
    return ""


def packages_in(home: Path) -> Path | None:
    """Where :func:`install` put them."""
    found = [path for path in DataDir(home).environments.iterdir() if path.is_dir() and path.name != "locks"]
    return found[0] if found else None
