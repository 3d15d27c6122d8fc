"""A backup holds one moment of a data directory, and restoring takes nothing that is not a backup."""

from __future__ import annotations

import fcntl
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import Settings, load_settings
from skillyard.data_dir import DataDir, DataDirInUse, DataDirUnusable
from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import OWNER
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.record import Outcome, RunKind, RunRecord, RunStatus
from skillyard.ports.secrets import SecretStore
from skillyard.stores.backup import making as making_module
from skillyard.stores.backup.manifest import BadBackup
from skillyard.stores.clock import SystemClock, SystemIds
from skillyard.stores.disk import remove_tree
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.files.tokens import FileTokens
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.wiring import back_up, make_sealed_stores, restore

pytestmark = pytest.mark.anyio
LARGE = os.urandom(200_000)


class Yard:
    """A data directory with something of everything that needs no sandbox."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = DataDir(root / "data")
        self.backup = root / "backup.tar"
        self.keys = root / "keys"
        self.blobs: dict[str, bytes] = {}

    @property
    def settings(self) -> Settings:
        return load_settings(data_dir=self.places.home)

    @property
    def secrets(self) -> SecretStore:
        return make_sealed_stores(self.settings.secrets, self.places)[0]

    async def fill(self) -> None:
        with self.places.owned():
            database = await Database.open(self.places.database)
            blobs = LocalBlobs(database, self.places.blobs, SystemClock(), SystemIds())
            await blobs.prepare()
            for content in (b"small", LARGE, LARGE[1:]):
                self.blobs[(await blobs.create("ann", "text/plain", content)).blob_id] = content
            await SqliteRecords(database).insert(live_record(), None)
            await database.close()
        await self.secrets.set("KEY", "a secret value")
        tokens = FileTokens(self.places.tokens, SystemClock())
        token = await tokens.create(OWNER)
        (self.places.home / "token").write_text(f"{token}\n")
        (self.places.home / "token").chmod(0o600)
        (self.places.skills / "deep").mkdir()
        (self.places.skills / "deep" / "run.sh").write_text("echo\n")
        (self.places.skills / "deep" / "run.sh").chmod(0o755)
        (self.places.home / "config.toml").write_text("[records]\n")

    async def back_up(self, keys: bool = True) -> dict[str, Any]:
        return await back_up(self.settings, self.places, self.backup, self.keys if keys else None)

    async def restore(self, keys: bool = True, to: str = "data") -> dict[str, Any]:
        return await restore(DataDir(self.root / to), self.backup, self.keys if keys else None)

    def lose(self) -> None:
        remove_tree(self.places.home)


def live_record() -> RunRecord:
    return RunRecord("run_live", RunKind.CODE, "ann", RunStatus.RUNNING, 1.0, owner=Owner.TASK)


@pytest.fixture
async def filled(tmp_path: Path) -> Yard:
    made = Yard(tmp_path)
    await made.fill()
    return made


async def test_all_of_it_comes_back(filled: Yard) -> None:
    token = (filled.places.home / "token").read_bytes()
    told = await filled.back_up()
    assert (told["runs_lost"], told["lacks"]) == (1, [])
    filled.lose()
    told = await filled.restore()
    assert (told["lacks"], told["owner_token"]) == ([], "kept")
    assert (filled.places.home / "token").read_bytes() == token
    assert (filled.places.skills / "deep" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (filled.places.home / "config.toml").read_text() == "[records]\n"
    found = await filled.secrets.find("KEY", "default", "any")
    assert found is not None
    assert found.value == "a secret value"
    with filled.places.owned():
        database = await Database.open(filled.places.database)
        blobs = LocalBlobs(database, filled.places.blobs, SystemClock(), SystemIds())
        await blobs.prepare()
        for blob_id, content in filled.blobs.items():
            assert b"".join([piece async for piece in blobs.read(blob_id)]) == content
        record = await SqliteRecords(database).get("run_live")
        await database.close()
    assert record is not None
    assert (record.status, record.outcome) == (RunStatus.FAILED, Outcome.LOST)
    assert "backup" in record.reason


async def test_keys_are_apart(filled: Yard) -> None:
    key = (filled.places.home / "secrets.key").read_bytes().strip()
    token = (filled.places.home / "token").read_bytes().strip()
    await filled.back_up()
    held = filled.backup.read_bytes()
    assert key not in held
    assert token not in held
    assert (filled.backup.stat().st_mode & 0o777, filled.keys.stat().st_mode & 0o777) == (0o600, 0o600)


async def test_what_is_missing_without_keys_is_named(filled: Yard) -> None:
    old = (filled.places.home / "token").read_text().strip()
    await filled.back_up(keys=False)
    filled.lose()
    told = await filled.restore(keys=False)
    assert told["owner_token"] == "new"
    [lack] = told["lacks"]
    assert "the key of the secrets" in lack
    tokens = FileTokens(filled.places.tokens, SystemClock())
    assert await tokens.verify(old) is None
    assert await tokens.verify((filled.places.home / "token").read_text().strip()) == OWNER


async def test_other_keys_are_refused(filled: Yard) -> None:
    await filled.back_up()
    told = json.loads(filled.keys.read_text())
    told["secrets_keys"] = ["A" * 43 + "="]
    filled.keys.write_text(json.dumps(told))
    filled.lose()
    with pytest.raises(InvalidInput, match="keys of this backup"):
        await filled.restore()
    assert not filled.places.home.exists()


async def test_a_blob_that_is_removed_meanwhile(filled: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the copy of the database and that of the files."""
    real = making_module.copy_database

    def copied(source: Path, target: Path) -> None:
        real(source, target)
        with closing(sqlite3.connect(source)) as live:
            [key] = live.execute("SELECT content_key FROM blobs WHERE size = ?", (len(LARGE),)).fetchone()
            live.execute("DELETE FROM blobs WHERE content_key = ?", (key,))
            live.commit()
        (filled.places.blobs / "sha256" / key[:2] / key).unlink()

    monkeypatch.setattr(making_module, "copy_database", copied)
    told = await filled.back_up()
    assert told["lacks"] == []
    await filled.restore(to="again")
    with closing(sqlite3.connect(filled.root / "again" / "skillyard.db")) as database:
        sizes = {row[0] for row in database.execute("SELECT size FROM blobs")}
        assert sizes == {5, len(LARGE) - 1}
        assert database.execute("SELECT count, bytes FROM blob_owners").fetchall() == [(2, len(LARGE) + 4)]


async def test_a_blob_that_was_damaged_before_is_named(filled: Yard) -> None:
    for file in filled.places.blobs.glob("sha256/*/*"):
        file.chmod(0o600)
        file.write_bytes(b"other")
    told = await filled.back_up()
    assert len(told["lacks"]) == 2
    assert (await filled.restore(to="again"))["lacks"] == told["lacks"]


@pytest.mark.parametrize("where", ["data/backup.tar", "there", "link"])
async def test_places_of_a_backup(filled: Yard, where: str) -> None:
    (filled.root / "there").write_text("mine")
    (filled.root / "link").symlink_to("nowhere")
    with pytest.raises(InvalidInput):
        await back_up(filled.settings, filled.places, filled.root / where, None)
    assert (filled.root / "there").read_text() == "mine"
    assert not (filled.root / "nowhere").exists()


@pytest.mark.parametrize("where", ["data/keys", "there", "backup.tar"])
async def test_places_of_keys(filled: Yard, where: str) -> None:
    (filled.root / "there").write_text("mine")
    with pytest.raises(InvalidInput, match="--keys"):
        await back_up(filled.settings, filled.places, filled.backup, filled.root / where)
    assert not filled.backup.exists()


async def test_a_directory_in_use_is_refused(filled: Yard) -> None:
    await filled.back_up()
    with filled.places.owned(), pytest.raises(DataDirInUse):
        await filled.restore()
    with pytest.raises(DataDirUnusable, match="not empty"):
        await filled.restore()
    (filled.root / "other").mkdir()
    (filled.root / "other" / "mine").write_text("mine")
    with pytest.raises(DataDirUnusable, match="not empty"):
        await filled.restore(to="other")
    (filled.root / "empty").mkdir()
    await filled.restore(to="empty")


async def test_two_backups_to_one_place(filled: Yard) -> None:
    work = filled.root / ".backup.tar.part"
    work.mkdir()
    handle = os.open(work, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InvalidInput, match="another backup"):
        await filled.back_up()
    os.close(handle)
    (work / "left").write_text("of one that was killed")
    await filled.back_up()
    assert not work.exists()


Member = tuple[tarfile.TarInfo, bytes | None]
Change = Callable[[list[Member]], None]


def rewritten(archive: Path, change: Change) -> None:
    with tarfile.open(archive) as tar:
        members: list[Member] = [(m, f.read() if (f := tar.extractfile(m)) else None) for m in tar]
    change(members)
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in members:
            if data is not None:
                info.size = len(data)
            tar.addfile(info, None if data is None else io.BytesIO(data))


def added(name: str, data: bytes | None = b"x", kind: bytes = tarfile.REGTYPE, target: str = "") -> Change:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return lambda members: members.insert(0, (info, data))


def without(name: str) -> Change:
    def change(members: list[Member]) -> None:
        members[:] = [member for member in members if member[0].name != name]

    return change


def flipped(name: str) -> Change:
    def change(members: list[Member]) -> None:
        for at, (info, data) in enumerate(members):
            if info.name == name and data:
                middle = len(data) // 2
                members[at] = info, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    return change


HOSTILE = {
    "a link": added("skills/link", None, tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": added("skills/link", None, tarfile.LNKTYPE, "skillyard.db"),
    "a device": added("skills/null", None, tarfile.CHRTYPE),
    "an absolute path": added("/tmp/skillyard-escaped"),
    "a path upwards": added("../escaped"),
    "a file besides": added("skills/more"),
    "a key": added("secrets.key"),
    "a directory besides": added("lock", None, tarfile.DIRTYPE),
    "a file twice": added("skillyard.db"),
    "a file less": without("tokens.json"),
    "no database": without("skillyard.db"),
    "no manifest": without("manifest.jsonl"),
    "another database": flipped("skillyard.db"),
    "other tokens": flipped("tokens.json"),
    "another manifest": flipped("manifest.jsonl"),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_archives(filled: Yard, what: str) -> None:
    await filled.back_up()
    rewritten(filled.backup, HOSTILE[what])
    with pytest.raises(BadBackup):
        await filled.restore(to="new/again")
    assert not (filled.root / "new" / "again").exists()
    assert not (filled.root / "escaped").exists()


async def test_rewritten_as_it_was_it_is_taken(filled: Yard) -> None:
    """So that the archives above are refused for what was changed in them."""
    await filled.back_up()
    rewritten(filled.backup, lambda _: None)
    await filled.restore(to="again")


@pytest.mark.parametrize("data", [b"", b"x" * 5000, bytes(10_240)], ids=["empty", "text", "zeros"])
async def test_other_files(filled: Yard, data: bytes) -> None:
    filled.backup.write_bytes(data)
    with pytest.raises(BadBackup):
        await filled.restore(keys=False, to="again")


async def test_a_cut_archive(filled: Yard) -> None:
    await filled.back_up()
    whole = filled.backup.read_bytes()
    for size in range(0, len(whole) - 20_000, len(whole) // 7):
        filled.backup.write_bytes(whole[:size])
        with pytest.raises(BadBackup):
            await filled.restore(to="again")


async def test_a_database_with_a_trigger_of_somebody_else(filled: Yard) -> None:
    real = filled.places.database
    with closing(sqlite3.connect(real)) as database:
        database.execute("CREATE TRIGGER more AFTER INSERT ON runs BEGIN DELETE FROM blobs; END")
        database.commit()
    await filled.back_up()
    with pytest.raises(BadBackup, match="not one of skillyard's"):
        await filled.restore(to="again")


async def test_nobody_takes_a_directory_that_is_being_restored(filled: Yard) -> None:
    places = DataDir(filled.root / "again")
    with places.restored():
        with pytest.raises(DataDirUnusable, match="restore"), places.owned():
            pass
        with pytest.raises(DataDirUnusable, match="restore"), places.restored():
            pass
    assert (filled.root / "again").exists()
