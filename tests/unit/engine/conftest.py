"""An engine over the twins of sandboxes and stores; ``stored_rig`` has the real stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from skillyard.config.network import NetworkSettings
from skillyard.config.policy import PolicySettings
from skillyard.config.section import Section
from skillyard.config.sections import Sections
from skillyard.domain.principal import LOCAL, Principal
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.domain.secret import Secret
from skillyard.domain.work.record import RunRecord
from skillyard.engine.app import App, Ports
from skillyard.engine.observer import Event
from skillyard.engine.packages.environments import Environments
from skillyard.engine.table import invoke
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from skillyard.ports.jailed import Jailed
from skillyard.stores.clock import SystemIds
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.files.environments import LocalEnvironments
from skillyard.stores.skills.bundles import LocalBundles
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.sqlite.approvals import SqliteApprovals
from skillyard.stores.sqlite.callbacks import SqliteCallbacks
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.jobs import SqliteJobs
from skillyard.stores.sqlite.publications import SqlitePublications
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit
from skillyard.stores.sqlite.sessions import SqliteSessions
from skillyard.testing.jobs.memory import MemoryJobs
from skillyard.testing.memory import MemoryCallbacks, MemoryRecords
from skillyard.testing.memory_blobs import MemoryBlobs
from skillyard.testing.memory_publications import MemoryApprovals, MemoryPublications
from skillyard.testing.memory_secrets import MemorySecretAudit, MemorySecrets
from skillyard.testing.sessions.memory import MemorySessions
from skillyard.testing.tools.memory import MemoryTools, TwinToolServer, TwinToolServers
from skillyard.testing.twin_sandbox import Script, TwinBackend, TwinProcess
from tests.unit.engine.fakes import FakeSkills, succeed
from tests.unit.engine.network.fake_gate import FakeGate
from tests.unit.engine.packages.building import MINE
from tests.unit.engine.packages.fake_builder import FakeBuilder

CODE = "def main(args): return args"
SECTIONS = Sections(policy=PolicySettings(isolation=TwinBackend.name))


class ManualClock:
    """Goes only where a test sends it."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def boottime(self) -> float:
        return self.time

    def boot(self) -> str:
        return "boot"


class DictSecrets(MemorySecrets):
    """With ``values`` for everybody, which a test may change as it likes."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.values: dict[str, str] = {}

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        value = self.values.get(name)
        return Secret(name, value, "store:1") if value else await super().find(name, project, skill)


@dataclass(kw_only=True)
class Rig:
    """What a test holds: the services and everything behind them."""

    app: App
    backend: TwinBackend
    skills: FakeSkills
    secrets: DictSecrets
    clock: ManualClock
    events: list[Event]
    home: Path
    builder: FakeBuilder
    jailed: Jailed
    gate: FakeGate | None = None
    principal: Principal = LOCAL
    extra: dict[str, Any] = field(default_factory=dict)

    async def call(self, method: str, /, principal: Principal | None = None, **params: Any) -> dict[str, Any]:
        return await invoke(self.app, principal or self.principal, method, params)

    async def run(self, script: Script | None = None, /, **params: Any) -> dict[str, Any]:
        """run_code while the backend plays ``script``."""
        if script is not None:
            self.backend.script = script
        return await self.call("run_code", language="python", **{"code": CODE, **params})

    async def record(self, run: dict[str, Any]) -> RunRecord:
        record = await self.app.ports.records.get(run["run_id"])
        assert record is not None
        return record

    async def content(self, blob_id: str) -> bytes:
        return b"".join([chunk async for chunk in self.app.ports.blobs.read(blob_id)])

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def with_network(self, **network: Any) -> FakeGate:
        """Another engine over the same stores, with a gate that the backend can be plugged into."""
        gate = self.gate = FakeGate()
        self.backend.abilities = dict.fromkeys(("egress", "direct"), Protection(Level.KERNEL, by="a fake"))
        self.extra["probe"] = replace(self.extra["probe"], abilities=self.backend.abilities)
        self.configure(network=NetworkSettings(**network))
        return gate

    def configure(self, **changes: Any) -> None:
        """Another engine over the same stores. A change is a value, a section, or a mapping of a section's changes."""
        given = {name: self._changed(name, change) for name, change in changes.items()}
        self.app = make_app(self, self.app.config.model_copy(update=given))
        self.app.backends.admit(self.backend, self.extra["probe"])

    def _changed(self, name: str, change: Any) -> Any:
        section = getattr(self.app.config, name)
        return section.changed(**change) if isinstance(section, Section) and isinstance(change, dict) else change


@dataclass(kw_only=True)
class StoredRig(Rig):
    """A rig over the real stores, in one database."""

    database: Database


R = TypeVar("R", bound=Rig)


def _no_server() -> TwinToolServer:
    raise AssertionError("this test has no MCP server")


def make_app(rig: Rig, config: Sections) -> App:
    ports = Ports(
        backends=rig.extra.get("backends", {rig.backend.name: rig.backend}),
        blobs=rig.extra["blobs"],
        skills=rig.skills,
        records=rig.extra["records"],
        sessions=rig.extra["sessions"],
        jobs=rig.extra["jobs"],
        callbacks=rig.extra["callbacks"],
        secrets=rig.secrets,
        secret_audit=rig.extra["secret_audit"],
        approvals=rig.extra["approvals"],
        publications=rig.extra["publications"],
        bundles=rig.extra.get("bundles", LocalBundles(Snapshots(rig.home / "snapshots"), rig.home / "uploads")),
        clock=rig.clock,
        ids=SystemIds(),
        environments=LocalEnvironments(rig.home / "environments", rig.clock),
        jailed=rig.jailed,
        tools=rig.extra.setdefault("tools", MemoryTools()),
        tool_servers=rig.extra.get("tool_servers", TwinToolServers(_no_server)),
        gate=rig.gate,
    )
    return App(ports, config, rig.events.append, rig.builder)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    clock = ManualClock()
    twins = {
        "blobs": MemoryBlobs(tmp_path, clock, SystemIds()),
        "records": (records := MemoryRecords()),
        "callbacks": MemoryCallbacks(records),
        "sessions": MemorySessions(),
        "jobs": MemoryJobs(),
        "secret_audit": MemorySecretAudit(),
        "approvals": MemoryApprovals(),
        "publications": MemoryPublications(),
    }
    async with _at_work(Rig(**_parts(tmp_path, clock), extra=twins)) as rig:
        yield rig


@pytest.fixture
async def stored_rig(tmp_path: Path) -> AsyncIterator[StoredRig]:
    clock, database = ManualClock(), await Database.open(tmp_path / "s.db")
    blobs = LocalBlobs(database, tmp_path / "blobs", clock, SystemIds())
    await blobs.prepare()
    stores = {
        "blobs": blobs,
        "records": SqliteRecords(database),
        "sessions": SqliteSessions(database),
        "jobs": SqliteJobs(database),
        "callbacks": SqliteCallbacks(database),
        "secret_audit": SqliteSecretAudit(database),
        "approvals": SqliteApprovals(database),
        "publications": SqlitePublications(database),
    }
    async with _at_work(StoredRig(**_parts(tmp_path, clock), extra=stores, database=database)) as rig:
        yield rig
    await database.close()


def _parts(home: Path, clock: ManualClock) -> dict[str, Any]:
    """Returns the fields of a rig that do not depend on its stores; its app is made later."""
    return {
        "app": None,
        "backend": TwinBackend(succeed),
        "skills": FakeSkills(),
        "secrets": DictSecrets(clock),
        "clock": clock,
        "events": [],
        "home": home,
        "builder": FakeBuilder(),
        "jailed": JailedPool(NO_ACCOUNT),
    }


@asynccontextmanager
async def _at_work(rig: R) -> AsyncIterator[R]:
    rig.app = make_app(rig, SECTIONS)
    await rig.app.start()
    offer = rig.app.backends.default
    assert offer is not None
    rig.extra["probe"] = offer.probe
    yield rig
    await rig.app.close()
    await rig.jailed.close()
    await rig.backend.close()


def playing(*writes: bytes, log: bytes = b"") -> Callable[[TwinProcess], Any]:
    """A script that writes these frames and this log."""

    async def script(process: TwinProcess) -> None:
        process.log(log)
        for data in writes:
            process.write(data)

    return script


@pytest.fixture
async def environments(rig: Rig) -> AsyncIterator[Environments]:
    """The rig's, with some that have names."""
    rig.configure(environments=MINE)
    yield rig.app.environments
    await rig.app.environments.close()
