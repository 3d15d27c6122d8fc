"""A registry over real bundles and a real catalogue, and people of several projects who publish into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillyard.domain.principal import LOCAL, Principal, Scope
from skillyard.domain.skill.publication import PublicationLimits
from skillyard.engine.skills.publishing import Published
from skillyard.ports.skills import ArchiveForm
from skillyard.stores.skills.bundles import LocalBundles
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.snapshots import Snapshots
from tests.unit.engine.conftest import Rig, make_app

PUBLISHER = frozenset({Scope.DISCOVER, Scope.EXECUTE, Scope.PUBLISH})
ANN = Principal("ann", PUBLISHER, project="crm")
BOB = Principal("bob", PUBLISHER, project="crm")
EVE = Principal("eve", PUBLISHER, project="hr")
ROOT = LOCAL


async def chunks(data: bytes, size: int = 4096) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@dataclass
class Publisher:
    rig: Rig
    skills: Catalogue
    snapshots: Path
    directory: Path

    async def publish(self, archive: bytes, who: Principal = ANN) -> Published:
        return await self.rig.app.publisher.publish(who, chunks(archive))

    async def export(self, name: str, version: str = "latest", form: ArchiveForm = ArchiveForm.TAR_GZ) -> bytes:
        skill = await self.rig.app.publisher.find(ANN, name, version)
        async with self.rig.app.publisher.export(ANN, skill, form) as archive:
            data = b"".join([chunk async for chunk in archive.chunks])
            assert len(data) == archive.size
        return data

    async def call(self, method: str, who: Principal = ANN, /, **params: Any) -> dict[str, Any]:
        return await self.rig.call(f"catalogue.{method}", who, **params)

    async def restarted(self, **limits: Any) -> Publisher:
        """As after a new start over the same directories."""
        return await publisher(self.rig, PublicationLimits(**limits))

    def stored(self) -> set[str]:
        return {path.name for path in self.snapshots.iterdir()} if self.snapshots.exists() else set()


async def publisher(rig: Rig, limits: PublicationLimits | None = None, **bundles: Any) -> Publisher:
    snapshots, directory = rig.home / "snapshots", rig.home / "skills"
    directory.mkdir(exist_ok=True)
    store = LocalBundles(Snapshots(snapshots), rig.home / "uploads", **bundles)
    store.prepare()
    publications = rig.extra["publications"]
    publications.limits = limits or PublicationLimits()
    if isinstance(rig.skills, Catalogue):
        await rig.skills.close()
    skills = Catalogue([directory], snapshots, publications=publications, guide=None, check_every_s=0)
    await skills.start()
    rig.skills = skills  # type: ignore[assignment]
    rig.extra["bundles"] = store
    rig.app = make_app(rig, rig.app.config)
    rig.app.backends.admit(rig.backend, rig.extra["probe"])
    return Publisher(rig, skills, snapshots, directory)
