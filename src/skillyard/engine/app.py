"""The services of one data directory, built from its ports. Only the composition root and tests import this."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from skillyard.config.sections import Sections
from skillyard.domain.errors import SkillyardError
from skillyard.domain.network.policy import OPERATOR, Layer, Policy
from skillyard.domain.package.environment import DEFAULT_ENVIRONMENT
from skillyard.domain.sandbox.frames import FrameFamilies
from skillyard.domain.sandbox.spec import make_spec
from skillyard.engine.backends import Backends
from skillyard.engine.blobs.service import BlobService
from skillyard.engine.commands.artifacts import ArtifactService
from skillyard.engine.commands.callbacks import Callbacks
from skillyard.engine.commands.courier import Courier
from skillyard.engine.commands.jails import Around as AroundJails
from skillyard.engine.commands.jails import JailService
from skillyard.engine.commands.service import CommandService
from skillyard.engine.commands.tasks import TaskService
from skillyard.engine.driver import Tools
from skillyard.engine.gateway.catalogue import ToolCatalogue
from skillyard.engine.gateway.for_code import ToolsForCode
from skillyard.engine.gateway.service import Books, Gateway
from skillyard.engine.gateway.starting import Starter
from skillyard.engine.jobs.driving import Around, Jobs
from skillyard.engine.jobs.service import JobService
from skillyard.engine.lending import Lender
from skillyard.engine.method import NoService
from skillyard.engine.network.service import PolicyService
from skillyard.engine.observer import Observer, ignore
from skillyard.engine.packages.ahead import Ahead
from skillyard.engine.packages.building import Builder, Building, SandboxBuilder
from skillyard.engine.packages.environment import standard_library
from skillyard.engine.packages.environments import Environments
from skillyard.engine.packages.for_run import RunPackages
from skillyard.engine.packages.service import PackageService
from skillyard.engine.packages.steps import Steps
from skillyard.engine.parts import Parts
from skillyard.engine.presence import Presence
from skillyard.engine.quotas import CallQuotas
from skillyard.engine.reaper import Ages, Kept, Reaper, environments_in_use, repeat
from skillyard.engine.runs.active import ActiveRuns, Drain, Waiting
from skillyard.engine.runs.detached import RENEW_S, DetachedRuns
from skillyard.engine.runs.grant import Granter, Supplies
from skillyard.engine.runs.history import RunHistory
from skillyard.engine.runs.plan import Planner
from skillyard.engine.runs.service import RunService
from skillyard.engine.secrets.service import RunSecrets, SecretBook
from skillyard.engine.services.names import Endpoints
from skillyard.engine.services.sandboxes import SandboxService
from skillyard.engine.services.service import ServiceRuns
from skillyard.engine.sessions.keeping import Keeping
from skillyard.engine.sessions.moving import Mover
from skillyard.engine.sessions.service import SessionService
from skillyard.engine.shares import Admission, Budget, LargeReads, Room
from skillyard.engine.skills.approval_methods import Approvals
from skillyard.engine.skills.inspection import Inspection
from skillyard.engine.skills.publishing import Publisher
from skillyard.engine.skills.run_needs import Rules
from skillyard.engine.skills.service import SkillService
from skillyard.engine.skills.standings import Standings
from skillyard.engine.skills.tools import SkillTools
from skillyard.engine.tasks import Tasks
from skillyard.ports.approvals import ApprovalStore
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.environments import EnvironmentStore
from skillyard.ports.gate import Gate
from skillyard.ports.jailed import Jailed
from skillyard.ports.publications import PublicationStore
from skillyard.ports.records import CallbackStore, JobStore, RecordStore
from skillyard.ports.sandbox import Backend
from skillyard.ports.secrets import SecretAudit, SecretReader, SecretStore
from skillyard.ports.sessions import SessionStore
from skillyard.ports.skills import BundleStore, SkillStore
from skillyard.ports.tools import ToolServers, ToolStore
from skillyard.values import dataclass

TOOL_SERVERS_S = 5.0
"""How often MCP servers are looked at that nobody calls."""
SANDBOXES_S = 1.0
"""How often the times of sandboxes are looked at that callers keep."""
KEEP_NETWORKS_S = 5.0
"""How often the connections of runs at work are written down."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside that the use cases need."""

    backends: Mapping[str, Backend]
    blobs: BlobStore
    skills: SkillStore
    records: RecordStore
    sessions: SessionStore
    jobs: JobStore
    callbacks: CallbackStore
    secrets: SecretStore
    secret_audit: SecretAudit
    clock: Clock
    ids: Ids
    approvals: ApprovalStore
    publications: PublicationStore
    bundles: BundleStore
    environments: EnvironmentStore
    jailed: Jailed
    tools: ToolStore
    tool_servers: ToolServers
    gate: Gate | None = None
    """The way out of sandboxes; without one, runs that need a network are refused."""
    secret_readers: Sequence[SecretReader] = ()


class App:
    """The services of one data directory, used from one event loop.

    It is started with :meth:`start`, called through :func:`skillyard.engine.table.invoke` and ended with :meth:`close`.
    """

    def __init__(
        self,
        ports: Ports,
        config: Sections | None = None,
        emit: Observer = ignore,
        builder: Builder | None = None,
        *,
        warm: bool = True,
    ) -> None:
        """``builder`` makes environments; in sandboxes when there is none. ``warm`` readies that of most runs."""
        self._warms = warm
        self.ports = ports
        self.config = config = config or Sections()
        self.tasks = Tasks()
        self._background = Tasks()
        self.active = ActiveRuns()
        self.backends = Backends(ports.backends, config.policy, config.of_backend)
        self.admission = Admission(config.admission)
        most = config.admission.tasks_live
        each = int(most * (1 - config.admission.reserve)) or 1
        promised = Budget(most, each, "too many tasks wait or work; come again when some have ended")
        serve = min(config.services.places, config.admission.service_places)
        told = "too many services are at work (services.places, services.places_each); end one, or come again later"
        services = Budget(serve, min(serve, config.services.places_each), told)
        places = Room(config.admission.task_places)
        self.lender = Lender(self.admission, self.tasks, emit, places, promised, services)
        self.ahead = Ahead(emit, enabled=config.native.preloads)
        reads = LargeReads()
        self.blobs = BlobService(ports.blobs, reads, ttl_s=config.blobs.ttl_s, json_bytes=config.blobs.json_bytes)
        self.secrets = SecretBook(ports.secrets, ports.secret_audit, ports.clock, ports.secret_readers)
        standings = Standings(ports.approvals, config.trust, emit)
        self.skills = SkillService(
            ports.skills, ports.publications, standings, cursor_key=os.urandom(32), large_reads=reads
        )
        self.publisher = Publisher(ports.publications, ports.bundles, self.skills, ports.clock, self.tasks, emit)
        self.environments = self._environments(builder, emit)
        most, each = config.admission.polls, config.admission.polls_each
        polls = Budget(most, each, "too many calls wait for runs at once; come again later")
        self.waiting = Waiting(ports.records, polls)
        self.calls = CallQuotas(config.profiles, ports.clock)
        self.gateway = self._gateway(emit)
        self.runs = self._runs(emit)
        self.history = RunHistory(
            self.runs,
            self.active,
            ports.records,
            ports.blobs,
            ports.clock,
            emit,
            self.waiting,
            open_network=config.network.open,
        )
        self.reaper = self._reaper(emit)
        parts = [*ports.backends.values(), *([ports.gate] if ports.gate is not None else [])]
        self.parts = Parts(parts, emit, ports.clock, self._background)
        self.presence = Presence(self.backends, self.reaper, emit, ports.clock, self._warm_up)
        has_gate = ports.gate is not None
        self.strict_params = self.config.strict_params
        self.drain = Drain(self.active, ports.records)
        commands = CommandService(
            self.runs, self.sessions, ports.blobs, ports.records, config.commands, config.profiles
        )
        self.task_service = TaskService(
            commands,
            self.runs,
            self.history,
            ports.records,
            ports.blobs,
            self.active,
            self.waiting,
            ports.clock,
            self.drain,
            endpoints := Endpoints(config.services),
            self._callbacks(emit),
        )
        self.services = ServiceRuns(
            commands,
            self.runs,
            self.task_service,
            self.active,
            self.tasks,
            endpoints,
            ports.clock,
            config.services,
            config.commands.max_task_timeout_s,
        )
        self.sandboxes = SandboxService(
            self.runs,
            ports.records,
            self.active,
            self._background,
            ports.clock,
            ports.ids,
            emit,
            config.profiles,
            config.sandbox.variables(os.environ)[0],
            config.commands.max_task_timeout_s,
        )
        around = Around(
            jobs=ports.jobs,
            commands=commands,
            runs=self.runs,
            sessions=self.sessions,
            records=ports.records,
            active=self.active,
            waiting=self.waiting,
            clock=ports.clock,
            tasks=self.tasks,
            emit=emit,
        )
        self.jobs = Jobs(around)
        self.jails = JailService(
            self.backends,
            self.lender,
            AroundJails(
                ports.records, ports.gate, config.network, self.active, self.tasks, ports.clock, ports.ids, emit
            ),
        )
        self.by_class: Mapping[type[Any], Any] = {
            NoService: None,
            Drain: self.drain,
            BlobService: self.blobs,
            RunHistory: self.history,
            RunService: self.runs,
            CommandService: commands,
            TaskService: self.task_service,
            JobService: JobService(
                around,
                self.jobs,
                self.task_service,
                commands,
                self.planner,
                ports.ids,
                config.commands,
                config.profiles,
            ),
            SessionService: self.sessions,
            ArtifactService: ArtifactService(ports.blobs, ports.records, reads),
            ServiceRuns: self.services,
            SkillService: self.skills,
            Publisher: self.publisher,
            Approvals: Approvals(
                self.skills, self.publisher, config.network, config.limits.family, config.packages, ports.clock, emit
            ),
            Inspection: Inspection(self.skills, ports.jailed),
            SkillTools: SkillTools(
                self.skills, self.publisher, ports.blobs, self.planner, self.granter, commands, self.sessions
            ),
            SecretBook: self.secrets,
            Gateway: self.gateway,
            PackageService: PackageService(
                self.environments, self.backends, self.skills, config.packages, ports.blobs, config.blobs.ttl_s
            ),
            PolicyService: PolicyService(
                self.skills, self.backends, config.network, config.trust, has_gate, config.profiles
            ),
        }

    async def start(self) -> None:
        """Probe for the default isolation, settle what a dead server left, and begin to sweep."""
        await self.environments.clean()
        await self.backends.start()
        await self.reaper.recover()
        await self.jobs.resume()
        self.sessions.mover.begin()
        self._background.spawn(self.reaper.sweep_forever(), "sweeper")
        self._background.spawn(repeat(self.detached.renew, RENEW_S), "leases")
        self._background.spawn(repeat(self.jobs.resume, RENEW_S), "jobs")
        self._background.spawn(repeat(self.sessions.renew, RENEW_S), "leases of sessions")
        self._background.spawn(repeat(self.sessions.reap, self.config.sessions.reap_every_s), "reaper of sessions")
        self._background.spawn(repeat(self.sandboxes.reap, SANDBOXES_S), "reaper of kept sandboxes")
        self._background.spawn(repeat(self.gateway.reap, TOOL_SERVERS_S), "reaper of MCP servers")
        self._background.spawn(self.callbacks.deliver(), "callbacks")
        self._background.spawn(self._warm_up(), "warm-up")
        self._background.spawn(self.presence.watch(), "watch of backends")
        if self.ports.gate is not None:
            self._background.spawn(repeat(self.history.keep_networks, KEEP_NETWORKS_S), "network keeper")

    def close_admission(self) -> None:
        """Refuse new runs, and those that wait, with Busy; those at work go on. Builds end, since what they are for
        would not be admitted. Detached runs that wait are left to the next server."""
        self.jobs.stop()
        self.detached.leave_waiting()
        self.admission.close()
        self.waiting.close()
        self.environments.building.stop()

    async def close(self, grace_s: float = 0.0) -> None:
        """Takes no more runs, and returns when every record is written and every sandbox is gone.

        Runs at work may end within ``grace_s`` seconds; then they are cancelled. Detached ones are left to the next
        server, with their sandboxes.
        """
        self.close_admission()
        await self.sessions.mover.close()
        await self.jobs.leave()
        await self.runs.close(grace_s)
        await self.gateway.close()
        await self.environments.close()
        await self.ahead.close()
        self.services.access.idle.close()
        await self.tasks.drain()
        await self.parts.close()
        await self._background.close()

    async def _warm_up(self) -> None:
        """Tell the default backend which sandbox most runs will ask for."""
        offer = self.backends.default
        if not self._warms or offer is None or offer.refusal is not None:
            return
        environment = await self.environments.get(DEFAULT_ENVIRONMENT, offer)
        limits, closed = self.config.limits.family.defaults, self.config.sandbox.read_only
        await offer.backend.prepare(make_spec(offer.demand, limits, environment.ref, read_only=closed))

    def _environments(self, builder: Builder | None, emit: Observer) -> Environments:
        ports, config = self.ports, self.config

        async def keep_log(owner: str, log: bytes) -> str:
            try:
                info = await ports.blobs.create(owner, "text/plain; charset=utf-8", log, ttl_s=config.blobs.ttl_s)
            except SkillyardError:  # a full store is no reason to have no environment
                return ""
            return info.blob_id

        async def make_room(spare: int) -> int:
            await environments.evict(await environments_in_use(ports.records), spare)
            return await environments.room()

        # Builds use the warm interpreter of most runs where that has no packages.
        default = config.environments.get(DEFAULT_ENVIRONMENT)
        usual = "build" if default is None or default.packages else DEFAULT_ENVIRONMENT
        self._usual = usual
        self.steps = Steps(
            config.packages, config.network, self.backends, self.lender, ports.gate, self.secrets, usual=usual
        )
        builder = builder or SandboxBuilder(self.steps)
        building = Building(ports.environments, builder, config.packages, ports.clock, keep_log, emit, make_room)
        environments = Environments(config.environments, ports.environments, building, config.packages, ports.clock)
        return environments

    def _runs(self, emit: Observer) -> RunService:
        ports, config = self.ports, self.config
        family, command_family = config.limits.family, config.commands.family(config.limits.family)
        frames = FrameFamilies(config.blobs.frames, config.commands.frames(config.blobs.frames))
        families = (family, command_family)
        self.planner = Planner(
            self.skills, self.backends, ports.blobs, ports.clock, ports.ids, *families, config.profiles, ports.records
        )
        secrets = RunSecrets(self.secrets, code_may=config.policy.run_code_secrets == "mounted")
        packages = RunPackages(self.environments, self.skills.standings, secrets, config.packages)
        self.granter = granter = Granter(
            Supplies(packages, secrets, ToolsForCode(self.gateway, config.mcp, self.calls)),
            Rules(config.network, config.policy, config.packages, config.profiles, config.sandbox),
            self.environments,
            self.ahead,
            ports.jailed,
            ports.gate,
            ports.ids,
            emit,
            frames,
            os.environ,
        )
        tools = Tools(
            records=ports.records,
            blobs=ports.blobs,
            schemas=ports.jailed,
            clock=ports.clock,
            ids=ports.ids,
            tasks=self.tasks,
            emit=emit,
            active=self.active,
            ahead=self.ahead,
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
        holder = f"{os.getpid()}-{os.urandom(8).hex()}"
        keeping = Keeping(
            ports.sessions,
            ports.records,
            ports.secrets,
            self.backends,
            ports.clock,
            ports.ids,
            emit,
            config.sessions,
            holder,
        )
        made_of = (family.defaults, config.policy, config.sandbox, standard_library(self._usual))
        mover = Mover(keeping, self.backends, emit, *made_of)
        self.sessions = SessionService(
            keeping, self.lender, ports.secrets, self.active, ports.clock, emit, config.profiles, mover
        )
        self.detached = DetachedRuns(
            self.planner,
            granter,
            self.environments,
            self.backends,
            self.sessions,
            requests,
            secrets,
            ports.gate,
            frames,
            tools,
            holder,
        )
        return RunService(self.planner, granter, self.environments, self.sessions, requests, self.detached, tools)

    def _gateway(self, emit: Observer) -> Gateway:
        ports, config = self.ports, self.config
        starter = Starter(
            self.backends,
            self.lender,
            self.environments,
            ports.gate,
            self.secrets,
            config.network,
            ports.tool_servers,
            self.tasks,
            config.policy.separate_principals,
        )
        catalogue = ToolCatalogue(config.mcp.servers, ports.tools, ports.clock, emit)
        told = "too many MCP servers are at work (mcp.processes, mcp.processes_each); come again later"
        places = Budget(config.mcp.processes, config.mcp.processes_each, told)
        books = Books(ports.records, self.active, ports.ids, ports.clock, self.tasks, emit)
        return Gateway(catalogue, starter, places, books)

    def _callbacks(self, emit: Observer) -> Callbacks:
        ports, config, courier = self.ports, self.config.commands, None
        if config.callback_hosts and ports.gate is not None:
            network = self.config.network
            policy = Policy((Layer(OPERATOR, config.callback_hosts),), network.hosts, network.nat64)
            courier = Courier(ports.gate, policy, network.ca_file)
        rest = ports.clock, emit, config, self.config.profiles
        self.callbacks = Callbacks(ports.callbacks, ports.records, self.secrets, courier, *rest)
        return self.callbacks

    def _reaper(self, emit: Observer) -> Reaper:
        ports, config, environments = self.ports, self.config, self.environments

        def at_work() -> Collection[str]:
            return self.active.keys() | environments.building.sandboxes | self.gateway.sandboxes

        ages = Ages(
            config.records.ttl_s,
            config.secrets.audit_ttl_s,
            config.records.owner_count,
            config.blobs.made_bytes,
            config.sweep_every_s,
        )
        return Reaper(
            self.backends,
            ports.records,
            ports.blobs,
            self.secrets,
            environments,
            at_work,
            Kept(self.detached, self.sessions, ports.jobs),
            ports.gate,
            ports.clock,
            emit,
            ages,
        )
