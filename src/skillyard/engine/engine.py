"""The ports of the engine, and those of its parts that have no service yet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skillyard.config.sections import Sections
from skillyard.engine.backends import Backends
from skillyard.engine.lending import Lender
from skillyard.engine.observer import Observer
from skillyard.engine.packages.ahead import Ahead
from skillyard.engine.packages.builder import Builder
from skillyard.engine.packages.making import make_environments
from skillyard.engine.runs.active import ActiveRuns
from skillyard.engine.secrets.book import SecretBook
from skillyard.engine.shares import Admission, LargeReads
from skillyard.engine.skills.service import SkillService
from skillyard.engine.skills.standings import Standings
from skillyard.engine.tasks import Tasks
from skillyard.ports.approvals import ApprovalStore
from skillyard.ports.blobs import BlobStore
from skillyard.ports.bundles import BundleStore
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.environments import EnvironmentStore
from skillyard.ports.gate import Gate
from skillyard.ports.publications import PublicationStore
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Backend
from skillyard.ports.schemas import SchemaChecker
from skillyard.ports.secrets import SecretAudit, SecretReader, SecretStore
from skillyard.ports.skills import SkillStore


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside that the use cases need."""

    backends: Mapping[str, Backend]
    blobs: BlobStore
    skills: SkillStore
    records: RecordStore
    secrets: SecretStore
    secret_audit: SecretAudit
    clock: Clock
    ids: Ids
    approvals: ApprovalStore
    publications: PublicationStore
    bundles: BundleStore
    environments: EnvironmentStore
    schemas: SchemaChecker
    gate: Gate | None = None
    """The way out of sandboxes; without one, runs that need a network are refused."""
    secret_readers: Sequence[SecretReader] = ()


class Engine:
    """The ports and parts that functions get whose part of the engine has no service yet."""

    def __init__(self, ports: Ports, config: Sections, emit: Observer, builder: Builder | None = None) -> None:
        """``builder`` makes environments; in sandboxes when there is none."""
        self.blobs = ports.blobs
        self.skills = ports.skills
        self.approvals = ports.approvals
        self.records = ports.records
        self.secret_book = SecretBook(ports.secrets, ports.secret_audit, ports.clock, ports.secret_readers)
        self.clock = ports.clock
        self.ids = ports.ids
        self.gate = ports.gate
        self.tasks = Tasks()
        self.config = config
        self.backends = Backends(ports.backends, config.policy)
        self.emit = emit
        self.cursor_key = os.urandom(32)
        self.active = ActiveRuns()
        self.large_reads = LargeReads()
        self.admission = Admission(config.admission)
        self.lender = Lender(self.admission, self.tasks, emit)
        self.schemas = ports.schemas
        self.standings = Standings(ports.approvals, config.trust, emit)
        self.catalogue = SkillService(
            ports.skills, ports.publications, self.standings, cursor_key=self.cursor_key, large_reads=self.large_reads
        )
        self.ahead = Ahead(emit, enabled=config.native.preloads)
        self.environments = make_environments(self, ports.environments, builder)
