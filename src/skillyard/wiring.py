"""The composition root: makes stores, backends, the gate and the jailed processes.

No other file of the product knows a store or a backend. Each function imports the classes that it makes, so that a
command of the command line loads only the stores that it uses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.secrets import SecretSettings
    from skillyard.config.settings import Settings
    from skillyard.data_dir import DataDir
    from skillyard.domain.secret import Secret
    from skillyard.domain.skill.skill import Finding
    from skillyard.engine.app import Ports
    from skillyard.engine.secrets.service import SecretBook
    from skillyard.gate.client import ProcessGate
    from skillyard.jailed.pool import JailedPool
    from skillyard.ports.gate import Plug, SessionStore
    from skillyard.ports.sandbox import Backend
    from skillyard.ports.secrets import SecretReader
    from skillyard.ports.tokens import TokenStore
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.files.tokens import FileTokens
    from skillyard.stores.seal.keys import KeySource
    from skillyard.stores.seal.secrets import SealedSecrets
    from skillyard.stores.seal.sessions import SealedSessions
    from skillyard.stores.skills.bundles import LocalBundles
    from skillyard.stores.skills.catalogue import Catalogue
    from skillyard.stores.sqlite.database import Database
    from skillyard.stores.sqlite.publications import SqlitePublications

Kind = Literal["action", "instruction"]
Form = Literal["skills-protocol", "agent-skills"]
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class AtRest:
    """The stores that need no server: they can be used before the engine has started."""

    clock: SystemClock
    tokens: FileTokens
    secrets: SealedSecrets
    sessions: SealedSessions


def at_rest(settings: Settings, places: DataDir) -> AtRest:
    """Returns the stores that need no server. Raises InvalidInput and StoreFault as :func:`make_sealed_stores` does."""
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.files.tokens import FileTokens

    clock = SystemClock()
    secrets, sessions = make_sealed_stores(settings.secrets, places)
    return AtRest(clock, FileTokens(places.tokens, clock), secrets, sessions)


async def open_ports(
    settings: Settings, places: DataDir, rest: AtRest, stack: AsyncExitStack, backend: Backend | None = None
) -> Ports:
    """Returns the engine's ports, which ``stack`` closes. Raises StoreFault, OSError.

    ``backend`` takes the place of the backends that the settings name.
    """
    from skillyard.engine.app import Ports
    from skillyard.mcp_servers.connecting import SdkToolServers
    from skillyard.stores.clock import SystemIds
    from skillyard.stores.files.blobs import LocalBlobs
    from skillyard.stores.files.environments import LocalEnvironments
    from skillyard.stores.sqlite.approvals import SqliteApprovals
    from skillyard.stores.sqlite.callbacks import SqliteCallbacks
    from skillyard.stores.sqlite.database import Database
    from skillyard.stores.sqlite.jobs import SqliteJobs
    from skillyard.stores.sqlite.records import SqliteRecords
    from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit
    from skillyard.stores.sqlite.sessions import SqliteSessions
    from skillyard.stores.sqlite.tools import SqliteTools

    durable = settings.records.durable
    database = await Database.open(places.database, durable=durable)
    stack.push_async_callback(database.close)
    ids = SystemIds()
    blobs = LocalBlobs(database, places.blobs, rest.clock, ids, limits=settings.blobs.limits, sync=durable)
    await blobs.prepare()
    stores = await make_skill_stores(settings, places, database)
    stack.push_async_callback(stores.skills.close)
    gate, jailed = make_gate(settings, places.run, rest.sessions), make_jailed_pool(settings)
    stack.push_async_callback(jailed.close)
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
        sessions=SqliteSessions(database),
        jobs=SqliteJobs(database),
        callbacks=SqliteCallbacks(database),
        secrets=rest.secrets,
        secret_audit=SqliteSecretAudit(database),
        approvals=SqliteApprovals(database),
        publications=stores.publications,
        bundles=stores.bundles,
        clock=rest.clock,
        ids=ids,
        environments=LocalEnvironments(places.environments, rest.clock),
        jailed=jailed,
        tools=SqliteTools(database),
        tool_servers=SdkToolServers(),
        gate=gate,
        secret_readers=readers,
    )


def make_gate(settings: Settings, run_dir: Path, sessions: SessionStore | None = None) -> ProcessGate:
    """Returns the gate, the only way out of sandboxes.

    Its process has a user id of its own below those of sandboxes, and starts when it is first needed. Without
    ``sessions`` no session of it outlives its server.
    """
    from skillyard.gate.client import ProcessGate

    uid, ca_file = settings.native.uid_base - 1, settings.network.ca_file
    return ProcessGate(run_dir / "gate", uid=uid, ca_file=ca_file, sessions=sessions)


def make_jailed_pool(settings: Settings) -> JailedPool:
    """Returns the pool of processes for hostile input.

    They have a user id of their own below the gate's, and start when they are first needed.
    """
    from skillyard.jailed.pool import JailedPool

    return JailedPool(settings.native.uid_base - 2, settings.schemas)


def make_backends(settings: Settings, run_dir: Path, plug: Plug | None = None) -> dict[str, Backend]:
    """Returns every backend that policy may give a run, by name.

    ``auto`` may give those with a rank. ``run_dir`` holds the files of running sandboxes, and ``plug`` connects their
    networks. The best backend with a network is always there: packages are built in it where the others have none.
    Nothing starts before it is needed.
    """
    from skillyard.domain.sandbox.guarantees import AUTO
    from skillyard.sandbox import registry

    policy = settings.policy
    ruled = {rule.isolation for rule in policy.rules if rule.isolation}
    wanted = {policy.isolation, *policy.isolations, *ruled, registry.best_with_network()}
    by_itself = AUTO in wanted
    names = [n for n in registry.BACKENDS if n in wanted or (by_itself and registry.nature(n).rank is not None)]
    return {name: make_backend(name, settings, run_dir, plug) for name in names}


def make_backend(name: str, settings: Settings, run_dir: Path, plug: Plug | None = None) -> Backend:
    """Returns the backend of that name as the settings say. Raises KeyError for an unknown name."""
    from skillyard.sandbox import registry

    place = registry.Place(settings.data_dir, run_dir, settings, plug, _secret_finder(settings))
    return registry.kind(name).make(place)


def _secret_finder(settings: Settings) -> Callable[[str, str, str], Awaitable[Secret | None]]:
    """Returns a finder of sealed secrets, which opens their store when it is first asked."""
    from skillyard.data_dir import DataDir

    opened: list[SealedSecrets] = []

    async def find(name: str, project: str, skill: str) -> Secret | None:
        if not opened:
            opened.append(make_sealed_stores(settings.secrets, DataDir(settings.data_dir))[0])
        return await opened[0].find(name, project, skill)

    return find


def keepers_of_other_versions(settings: Settings, run_dir: Path) -> dict[str, str]:
    """Returns living keepers of another version: their directories, each with a sentence."""
    from skillyard.sandbox.native.backend import NativeBackend

    found: dict[str, str] = {}
    for backend in make_backends(settings, run_dir).values():
        if isinstance(backend, NativeBackend):
            found |= backend.keepers_of_other_versions()
    return found


def isolations() -> tuple[str, ...]:
    """Returns the names by which a run may ask for an isolation."""
    from skillyard.sandbox.registry import choices

    return tuple(choices())


@dataclass(frozen=True, slots=True)
class SkillStores:
    skills: Catalogue
    publications: SqlitePublications
    bundles: LocalBundles


async def make_skill_stores(settings: Settings, places: DataDir, database: Database) -> SkillStores:
    """Returns the stores of skills, loaded, without the remains of a crash. Raises OSError, StoreFault.

    The caller closes ``skills``.
    """
    import asyncio

    from skillyard.stores.skills.bundles import LocalBundles
    from skillyard.stores.skills.catalogue import Catalogue
    from skillyard.stores.skills.snapshots import Snapshots
    from skillyard.stores.sqlite.publications import SqlitePublications

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


def make_sealed_stores(settings: SecretSettings, places: DataDir) -> tuple[SealedSecrets, SealedSessions]:
    """Returns the stores of sealed secrets and of network sessions, which have one key.

    Raises InvalidInput for a key in several places, and StoreFault for a variable without a key.
    """
    from skillyard.stores.seal.secrets import SealedSecrets
    from skillyard.stores.seal.sessions import SealedSessions

    keys = make_secret_keys(settings, places.home)
    sessions = SealedSessions(places.run / "sessions", keys)
    return SealedSecrets(places.home, keys, keep=settings.versions, sessions=sessions), sessions


def make_secret_keys(settings: SecretSettings, home: Path) -> KeySource:
    """Returns the source of the keys of secrets.

    Raises InvalidInput for a key in several places, and StoreFault for a variable without a key.
    """
    from skillyard.stores.seal.keys import KEY_VARIABLE, key_source

    variable = os.environ.get(KEY_VARIABLE)
    return key_source(home, variable=variable, file=settings.key_file, keyring=settings.keyring)


def make_secret_readers(settings: SecretSettings) -> tuple[SecretReader, ...]:
    """Returns the readers of secrets in their order. Raises InvalidInput for a reader that lacks a setting."""
    from skillyard.stores.seal.readers import Binding, Narrowed

    bindings = {name: Binding(given.delivery, given.hosts) for name, given in settings.deliveries.items()}
    found: list[SecretReader] = []
    for name in settings.readers:
        section = getattr(settings, name)
        found.append(Narrowed(_MAKERS[name](settings), section.projects, section.skills, bindings))
    return tuple(found)


def _environment(settings: SecretSettings) -> SecretReader:
    from skillyard.stores.seal.readers import EnvironmentSecrets

    return EnvironmentSecrets(settings.environment.prefix)


def _files(settings: SecretSettings) -> SecretReader:
    from skillyard.stores.seal.readers import FileSecrets

    return FileSecrets(settings.files.directory)


def _vault(settings: SecretSettings) -> SecretReader:
    from skillyard.stores.seal.vault import VaultSecrets

    return VaultSecrets(settings.vault)


_MAKERS: dict[str, Callable[[SecretSettings], SecretReader]] = {
    "environment": _environment,
    "files": _files,
    "vault": _vault,
}


def local_tokens(places: DataDir) -> TokenStore:
    """Returns the tokens of a data directory; a server may run on it meanwhile."""
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.files.tokens import FileTokens

    return FileTokens(places.tokens, SystemClock())


@asynccontextmanager
async def local_secrets(settings: Settings, places: DataDir) -> AsyncIterator[SecretBook]:
    """Opens the secrets of a data directory; a server may run on it meanwhile. Raises InvalidInput, StoreFault."""
    from skillyard.engine.secrets.service import SecretBook
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.sqlite.database import Database
    from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit

    store, _ = make_sealed_stores(settings.secrets, places)
    database = await Database.open(places.database, durable=settings.records.durable)
    try:
        yield SecretBook(store, SqliteSecretAudit(database), SystemClock())
    finally:
        await database.close()


def new_secrets_key() -> str:
    """Returns the text of a new random key for secrets."""
    from skillyard.stores.seal.keys import new_key

    return new_key().text()


def keyring_text(text: str) -> bytes:
    """Returns the keys in ``text`` as the kernel's keyring holds them. Raises StoreFault for text without a key."""
    from skillyard.stores.seal.keys import parse_keys

    return ",".join(key.text() for key in parse_keys(text, "standard input")).encode()


def load_keyring(name: str, text: bytes) -> None:
    """Puts keys into the kernel's keyring. Raises StoreFault."""
    from skillyard.stores.seal.keys import load_key

    load_key(name, text)


def new_skill(directory: Path, name: str, kind: Kind | None, form: Form) -> list[Path]:
    """Writes a skill to start from and returns its files. Raises InvalidInput."""
    from skillyard.stores.skills.scaffold import new_skill

    return new_skill(directory, name, kind, form)


def validate_skill(path: str, profile: Literal["strict", "lenient"]) -> list[Finding]:
    """Returns the findings about the skill in a directory."""
    from skillyard.stores.skills.validation.bundle import validate

    return validate(path, profile)


def review_skill(path: Path) -> dict[str, Any]:
    """Returns the review of the skill in a directory or an archive. Raises OSError for an unreadable archive."""
    from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
    from skillyard.stores.skills.review import review_source

    async def made() -> dict[str, Any]:
        pool = JailedPool(NO_ACCOUNT)
        try:
            return await review_source(path, pool)
        finally:
            await pool.close()

    return asyncio.run(made())


def pack_skill(source: Path, inner: str) -> tuple[bytes, list[Finding]]:
    """Returns the archive of a skill and the findings about it.

    The skill is a directory, a checkout or an archive. Raises OSError for a source that cannot be read, and
    BundleRefused when a finding is an error.
    """
    from skillyard.stores.skills.archives import packed_tree, tar_gz
    from skillyard.stores.skills.bundles import refusal
    from skillyard.stores.skills.sources import read_source

    unpacked, findings = read_source(source, inner)
    if unpacked is None:
        raise refusal(findings)
    return b"".join(tar_gz(packed_tree(unpacked.tree))), findings


def unpack_tar(archive: BinaryIO, directory: Path) -> None:
    """Unpacks a tar archive within the bounds of archives. Raises InvalidInput for one that breaks a rule."""
    from skillyard.domain.archive.names import ArchiveRefused
    from skillyard.domain.errors import InvalidInput
    from skillyard.tar_receiver import TarReceiver

    try:
        with TarReceiver(directory) as receiver:
            while piece := archive.read(_PIECE):
                receiver.feed(piece)
            receiver.finish()
    except ArchiveRefused as error:
        raise InvalidInput(error.entry or "the archive", error.message) from None


async def back_up(settings: Settings, places: DataDir, destination: Path, keys_file: Path | None) -> dict[str, Any]:
    """Writes a backup of a data directory, and returns the facts about it.

    A server may run on the directory meanwhile. Work that has not ended is recorded as lost there, since a backup holds
    no sandbox. Raises InvalidInput, StoreFault, OSError.
    """
    from skillyard.stores.backup.making import making
    from skillyard.stores.clock import SystemClock

    keys = make_secret_keys(settings.secrets, places.home)
    clock = SystemClock()
    with making(places.home, destination, keys_file) as backup:
        lost = await _end_live(backup.database, clock)
        facts, files, size = backup.finish(keys, keys_file, clock.now())
    return {
        "backup": str(destination),
        "files": files,
        "size": size,
        "runs_lost": lost,
        "lacks": list(facts.lacks),
        "left_out": [*facts.left_out, *([] if keys_file else ["the key of the secrets and the owner's token: --keys"])],
    }


async def _end_live(database_file: Path, clock: SystemClock) -> int:
    """Records work that has not ended as lost. Returns how much there was."""
    from skillyard.domain.work.record import Outcome
    from skillyard.engine.runs.failure import Failure
    from skillyard.engine.runs.record import ended
    from skillyard.stores.sqlite.database import Database
    from skillyard.stores.sqlite.records import SqliteRecords

    why = Failure("SandboxLost", "the run was at work when this backup was made: no sandbox is in it", Outcome.LOST)
    database = await Database.open(database_file, durable=True)
    try:
        records = SqliteRecords(database)
        live = await records.unfinished()
        for record in live:
            await records.finish(ended(record, why, clock.now()))
        return len(live)
    finally:
        await database.close()


async def restore(places: DataDir, source: Path, keys_file: Path | None) -> dict[str, Any]:
    """Makes a data directory, new or empty, of a backup, and returns the facts about it.

    Nobody can use the directory before all of it is there. Raises InvalidInput for another archive or other keys,
    DataDirUnusable, DataDirInUse, OSError.
    """
    from skillyard.stores.backup.restoring import restoring

    with places.restored() as tree, restoring(source, places.home, tree, keys_file) as found:
        token = await _restore_owner(tree, found.facts.owner, found.keys.owner_token if found.keys else "")
        found.commit()
    return {
        "data_dir": str(places.home),
        "files": found.files,
        "created_at": found.facts.created_at,
        "skillyard": found.facts.skillyard,
        "owner_token": token,
        "lacks": found.lacks,
        "left_out": list(found.facts.left_out),
    }


async def _restore_owner(tree: Path, had_token: bool, text: str) -> Literal["kept", "new", "none"]:
    """Puts the owner's token into its file. One that is not at hand ends, and a new one takes its place."""
    import secrets

    from skillyard.domain.principal import OWNER
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.files.state_file import StateFile
    from skillyard.stores.files.tokens import FileTokens

    tokens = FileTokens(tree / "tokens.json", SystemClock())
    kept = bool(text) and await tokens.verify(text) == OWNER
    if not kept:
        if not had_token:
            return "none"
        await tokens.revoke(OWNER.name)
        text = await tokens.create(OWNER, f"sky_{secrets.token_urlsafe(32)}")
    StateFile(tree / "token").replace(f"{text}\n".encode())
    return "kept" if kept else "new"
