"""The services of one data directory, built from its ports. Only the composition root and tests import this."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from skillyard.config.sections import Sections
from skillyard.engine.blobs.service import BlobService
from skillyard.engine.engine import Engine, Ports
from skillyard.engine.method import Locator
from skillyard.engine.observer import Observer, ignore
from skillyard.engine.packages.builder import Builder

S = TypeVar("S")


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
        self.engine = Engine(ports, self.config, emit, builder)
        self.runs = self.skills = self.packages = self.network = self.secrets = self.engine
        self.blobs = BlobService(
            ports.blobs,
            self.engine.large_reads,
            ttl_s=self.config.blobs.ttl_s,
            json_bytes=self.config.blobs.json_bytes,
        )
        self._services: dict[type[Any], object] = {Locator: self.engine, BlobService: self.blobs}

    @property
    def strict_params(self) -> bool:
        return self.config.strict_params

    def service(self, kind: type[S]) -> S:
        """Returns the service that is an instance of ``kind``."""
        return cast("S", self._services[kind])

    async def start(self) -> None:
        """Probe for the default isolation, settle what a dead server left, and begin to sweep."""
        await self.engine.start()

    def close_admission(self) -> None:
        """Refuse new runs, and those that wait, with Busy; those at work go on."""
        self.engine.close_admission()

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no more runs, let those at work end for ``grace_s`` seconds, cancel the rest, and wait until
        every record is written and every sandbox is gone."""
        await self.engine.close(grace_s)
