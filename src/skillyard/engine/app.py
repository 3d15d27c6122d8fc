"""The services of one data directory, built from its ports. Only the composition root and tests import this."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from skillyard.config.sections import Sections
from skillyard.domain.package.environment import DEFAULT_ENVIRONMENT
from skillyard.engine.blobs.service import BlobService
from skillyard.engine.engine import Engine, Ports
from skillyard.engine.method import Locator
from skillyard.engine.observer import Observer, ignore
from skillyard.engine.packages.builder import Builder
from skillyard.engine.parts import Parts
from skillyard.engine.reaper import Ages, Reaper, repeat
from skillyard.engine.runs.execution import Tools
from skillyard.engine.runs.grant import Granter, make_spec
from skillyard.engine.runs.history import RunHistory
from skillyard.engine.runs.plan import Planner
from skillyard.engine.runs.service import RunService
from skillyard.engine.shares import Budget
from skillyard.engine.skills.approval_methods import Approvals
from skillyard.engine.skills.inspection import Inspection
from skillyard.engine.skills.publishing import Publisher
from skillyard.engine.skills.service import SkillService
from skillyard.engine.tasks import Tasks

KEEP_NETWORKS_S = 5.0
"""How often the connections of runs at work are written down."""


class App:
    """Made once for a data directory, used from one event loop: :meth:`start`, any number of calls of
    :func:`skillyard.engine.table.invoke`, :meth:`close`. ``engine`` serves the parts that have no service yet."""

    def __init__(
        self,
        ports: Ports,
        config: Sections | None = None,
        emit: Observer = ignore,
        builder: Builder | None = None,
    ) -> None:
        """``builder`` makes environments; in sandboxes when there is none."""
        self.config = config or Sections()
        self.engine = engine = Engine(ports, self.config, emit, builder)
        self.packages = self.network = self.secrets = engine
        self.active, self.admission = engine.active, engine.admission
        self.backends, self.ahead = engine.backends, engine.ahead
        self.blobs = self._blobs(ports)
        self.skills = engine.catalogue
        self.publisher = Publisher(ports.publications, ports.bundles, self.skills, ports.clock, engine.tasks, emit)
        self.planner = Planner(
            engine.catalogue, engine.backends, ports.blobs, ports.clock, ports.ids, self.config.limits.family
        )
        self.runs = self._runs(ports, emit)
        self.history = self._history(ports, emit)
        self.reaper = self._reaper(ports, emit)
        self._background = Tasks()
        parts = [*ports.backends.values(), *([ports.gate] if ports.gate is not None else [])]
        self.parts = Parts(parts, emit, ports.clock, self._background)
        self.strict_params = self.config.strict_params
        self.by_class: Mapping[type[Any], Any] = {
            Locator: engine,
            BlobService: self.blobs,
            RunHistory: self.history,
            RunService: self.runs,
            SkillService: self.skills,
            Publisher: self.publisher,
            Approvals: Approvals(self.skills, self.publisher, self.config, ports.clock, emit),
            Inspection: Inspection(self.skills),
        }

    async def start(self) -> None:
        """Probe for the default isolation, settle what a dead server left, and begin to sweep."""
        await self.engine.environments.clean()
        await self.backends.start()
        await self.reaper.recover()
        self._background.spawn(self.reaper.sweep_forever(), "sweeper")
        self._background.spawn(self._warm_up(), "warm-up")
        if self.engine.gate is not None:
            self._background.spawn(repeat(self.history.keep_networks, KEEP_NETWORKS_S), "network keeper")

    def close_admission(self) -> None:
        """Refuse new runs, and those that wait, with Busy; those at work go on. Builds end, since what they are for
        would not be admitted."""
        self.admission.close()
        self.engine.environments.building.stop()

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no more runs, let those at work end for ``grace_s`` seconds, cancel the rest, and wait until
        every record is written and every sandbox is gone."""
        self.close_admission()
        await self.runs.close(grace_s)
        await self.engine.environments.close()
        await self.ahead.close()
        await self.engine.tasks.drain()
        await self.parts.close()
        await self._background.close()

    async def _warm_up(self) -> None:
        """Tell the default backend which sandbox most runs will ask for."""
        offer = self.backends.default
        if offer is None or offer.refusal is not None:
            return
        environment = await self.engine.environments.get(DEFAULT_ENVIRONMENT)
        await offer.backend.prepare(make_spec(offer, self.config.limits.family.defaults, environment.ref))

    def _blobs(self, ports: Ports) -> BlobService:
        config, reads = self.config, self.engine.large_reads
        return BlobService(ports.blobs, reads, ttl_s=config.blobs.ttl_s, json_bytes=config.blobs.json_bytes)

    def _runs(self, ports: Ports, emit: Observer) -> RunService:
        engine, config = self.engine, self.config
        granter = Granter(
            engine,
            config,
            engine.environments,
            engine.ahead,
            ports.schemas,
            ports.gate,
            ports.ids,
            emit,
            config.blobs.frames,
        )
        tools = Tools(
            records=ports.records,
            blobs=ports.blobs,
            schemas=ports.schemas,
            clock=ports.clock,
            ids=ports.ids,
            tasks=engine.tasks,
            emit=emit,
            active=engine.active,
            ahead=engine.ahead,
            log_bytes=config.output.log_bytes,
            blob_bytes=config.blobs.max_bytes,
            blob_ttl_s=config.blobs.ttl_s,
            spill=config.output.oversize == "spill",
            network=config.network,
            environments=config.environments,
            packages=config.packages,
        )
        total = config.admission.request_bytes
        each = int(total * (1 - config.admission.reserve))
        requests = Budget(total, each, "too many large requests at once; send bulk data as a blob")
        return RunService(self.planner, granter, engine.environments, engine.lender, requests, tools)

    def _history(self, ports: Ports, emit: Observer) -> RunHistory:
        consent = self.config.network.open
        return RunHistory(self.runs, self.active, ports.records, ports.blobs, ports.clock, emit, open_network=consent)

    def _reaper(self, ports: Ports, emit: Observer) -> Reaper:
        config, environments = self.config, self.engine.environments

        def at_work() -> Collection[str]:
            return self.active.keys() | environments.building.sandboxes

        ages = Ages(config.records.ttl_s, config.secrets.audit_ttl_s, config.records.owner_count, config.sweep_every_s)
        return Reaper(
            self.backends,
            ports.records,
            ports.blobs,
            ports.secret_audit,
            environments,
            at_work,
            ports.clock,
            emit,
            ages,
        )
