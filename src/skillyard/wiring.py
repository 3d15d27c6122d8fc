"""The composition root: stores, backends, the gate and the validators, made as the settings want them.

Only this file knows stores, and backends by their registry.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skillyard.domain.sandbox.guarantees import AUTO
from skillyard.engine.app import Ports
from skillyard.sandbox import registry
from skillyard.stores.clock import SystemClock, SystemIds
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.files.environments import LocalEnvironments
from skillyard.stores.files.tokens import FileTokens
from skillyard.stores.seal.keys import KEY_VARIABLE, key_source
from skillyard.stores.seal.readers.local import EnvironmentSecrets, FileSecrets
from skillyard.stores.seal.readers.narrowed import Binding, Narrowed
from skillyard.stores.seal.secrets import SealedSecrets
from skillyard.stores.skills.bundles import LocalBundles
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.sqlite.approvals import SqliteApprovals
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.publications import SqlitePublications
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit

if TYPE_CHECKING:
    from skillyard.config.secrets import SecretSettings
    from skillyard.config.settings import Settings
    from skillyard.data_dir import DataDir
    from skillyard.gate.client import ProcessGate
    from skillyard.ports.gate import Plug
    from skillyard.ports.sandbox import Backend
    from skillyard.ports.secrets import SecretReader
    from skillyard.schemas.pool import SchemaPool


@dataclass(frozen=True, slots=True)
class AtRest:
    """The stores that need no server: they can be used before the engine has started."""

    clock: SystemClock
    tokens: FileTokens
    secrets: SealedSecrets


def at_rest(settings: Settings, places: DataDir) -> AtRest:
    """Raises what :func:`make_secret_store` raises."""
    clock = SystemClock()
    return AtRest(clock, FileTokens(places.tokens, clock), make_secret_store(settings.secrets, places.home))


async def open_ports(
    settings: Settings, places: DataDir, rest: AtRest, stack: AsyncExitStack, backend: Backend | None = None
) -> Ports:
    """Returns what the engine works with; ``stack`` closes it. ``backend`` takes the place of those that the settings
    name. Raises StoreFault, OSError."""
    durable = settings.records.durable
    database = await Database.open(places.database, durable=durable)
    stack.push_async_callback(database.close)
    ids = SystemIds()
    blobs = LocalBlobs(database, places.blobs, rest.clock, ids, limits=settings.blobs.limits, sync=durable)
    await blobs.prepare()
    stores = await make_skill_stores(settings, places, database)
    stack.push_async_callback(stores.skills.close)
    gate, schemas = make_gate(settings, places.run), make_schema_pool(settings)
    stack.push_async_callback(schemas.close)
    stack.push_async_callback(gate.close)  # after the backends, whose sandboxes use it
    backends = {backend.name: backend} if backend else make_backends(settings, places.run, gate)
    for each in backends.values():
        stack.push_async_callback(each.close)
    readers = make_secret_readers(settings.secrets)
    for reader in readers:
        stack.push_async_callback(reader.close)
    return Ports(
        backends=backends,
        blobs=blobs,
        skills=stores.skills,
        records=SqliteRecords(database),
        secrets=rest.secrets,
        secret_audit=SqliteSecretAudit(database),
        approvals=SqliteApprovals(database),
        publications=stores.publications,
        bundles=stores.bundles,
        clock=rest.clock,
        ids=ids,
        environments=LocalEnvironments(places.environments, rest.clock),
        schemas=schemas,
        gate=gate,
        secret_readers=readers,
    )


def make_gate(settings: Settings, run_dir: Path) -> ProcessGate:
    """The way out of sandboxes. Its process, with a user id of its own below those of sandboxes, is started when it
    is first needed."""
    from skillyard.gate.client import ProcessGate

    return ProcessGate(run_dir / "gate", uid=settings.native.uid_base - 1, ca_file=settings.network.ca_file)


def make_schema_pool(settings: Settings) -> SchemaPool:
    """Returns the pool of validators of skills' schemas. Its processes have a user id of their own below the gate's,
    and start when they are first needed."""
    from skillyard.schemas.pool import SchemaPool

    return SchemaPool(settings.native.uid_base - 2, settings.schemas)


def make_backends(settings: Settings, run_dir: Path, plug: Plug | None = None) -> dict[str, Backend]:
    """Returns every backend that policy may give a run, by name; ``auto`` may give any of them. ``run_dir`` is where
    they keep what belongs to running sandboxes; those with a network are plugged into ``plug``. The best one with a
    network is there in any case: packages are built behind it where the others have none. Nothing is started before
    it is needed."""
    wanted = {settings.policy.isolation, *settings.policy.isolations, registry.best_with_network()}
    names = [name for name in registry.BACKENDS if name in wanted or AUTO in wanted]
    return {name: make_backend(name, settings, run_dir, plug) for name in names}


def make_backend(name: str, settings: Settings, run_dir: Path, plug: Plug | None = None) -> Backend:
    """Returns the backend of that name, as the settings want it. Raises KeyError for one that there is not."""
    return registry.kind(name).make(registry.Place(run_dir, settings, plug))


@dataclass(frozen=True, slots=True)
class SkillStores:
    skills: Catalogue
    publications: SqlitePublications
    bundles: LocalBundles


async def make_skill_stores(settings: Settings, places: DataDir, database: Database) -> SkillStores:
    """Loaded, and swept of what a crash left; the skills are to be closed. Raises OSError, StoreFault."""
    publications = SqlitePublications(database, settings.skills.limits)
    snapshots = Snapshots(places.snapshots, sync=settings.records.durable)
    bundles = LocalBundles(
        snapshots,
        places.uploads,
        max_bytes=settings.skills.upload_bytes,
        lenient=settings.skills.publish == "lenient",
    )
    await asyncio.to_thread(bundles.prepare)
    roots = [*settings.skills_dirs, places.skills]
    skills = Catalogue(roots, snapshots, index=places.catalogue, publications=publications)
    try:
        await skills.start()
    except BaseException:
        await skills.close()
        raise
    return SkillStores(skills, publications, bundles)


def make_secret_store(settings: SecretSettings, home: Path) -> SealedSecrets:
    """Raises InvalidInput for a key in several places, StoreFault for a variable that holds none."""
    variable = os.environ.get(KEY_VARIABLE)
    keys = key_source(home, variable=variable, file=settings.key_file, keyring=settings.keyring)
    return SealedSecrets(home, keys, keep=settings.versions)


def make_secret_readers(settings: SecretSettings) -> tuple[SecretReader, ...]:
    """In their order. Raises InvalidInput for a reader that lacks a setting."""
    bindings = {name: Binding(given.delivery, given.hosts) for name, given in settings.deliveries.items()}
    found: list[SecretReader] = []
    for name in settings.readers:
        section = getattr(settings, name)
        found.append(Narrowed(_MAKERS[name](settings), section.projects, section.skills, bindings))
    return tuple(found)


def _environment(settings: SecretSettings) -> SecretReader:
    return EnvironmentSecrets(settings.environment.prefix)


def _files(settings: SecretSettings) -> SecretReader:
    return FileSecrets(settings.files.directory)


def _vault(settings: SecretSettings) -> SecretReader:
    from skillyard.stores.seal.readers.vault import VaultSecrets

    return VaultSecrets(settings.vault)


_MAKERS: dict[str, Callable[[SecretSettings], SecretReader]] = {
    "environment": _environment,
    "files": _files,
    "vault": _vault,
}
