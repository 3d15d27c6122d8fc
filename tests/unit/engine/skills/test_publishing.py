"""Publishing: what becomes a version, what does not, and what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import (
    BundleRefused,
    Busy,
    Forbidden,
    QuotaExceeded,
    SkillNotFound,
    VersionTaken,
)
from skillyard.domain.principal import Scope
from skillyard.domain.skill.name import GUIDE
from skillyard.engine.observer import CatalogueChanged
from skillyard.ports.skills import ArchiveForm
from tests.bundles import a_skill, note_files, skill_files, tar, unpacked, zipped
from tests.unit.engine.conftest import Rig
from tests.unit.engine.skills.publisher import ANN, BOB, EVE, ROOT, Publisher, publisher

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]

NAME = "acme.words.say"


@pytest.fixture
async def yard(rig: Rig) -> AsyncIterator[Publisher]:
    yield await publisher(rig)
    await rig.skills.close()  # type: ignore[attr-defined]


async def test_what_is_published_is_served_at_once(yard: Publisher) -> None:
    told = await yard.publish(a_skill())
    assert told.created
    stored = told.publication
    assert (stored.name, stored.version, stored.project, stored.published_by) == (NAME, "1.0.0", "crm", "ann")
    assert stored.files == 3
    rows = (await yard.rig.call("list_skills", ANN))["skills"]
    assert rows == [{"name": NAME, "version": "1.0.0"}]
    skill = await yard.skills.get(NAME)
    assert skill.digest == stored.digest
    assert (skill.root / "code/main.py").read_bytes() == skill_files()["code/main.py"]
    run = await yard.rig.call("execute_skill", ANN, name=NAME, args={})
    assert run["status"] == "completed"
    assert yard.rig.of(CatalogueChanged) == [
        CatalogueChanged("published", NAME, "1.0.0", stored.digest, "ann", "crm"),
    ]


@pytest.mark.parametrize("mode", ["w", "w:gz", "zip"])
@pytest.mark.parametrize("prefix", ["", "words-main/"])
async def test_one_bundle_is_one_version_however_it_is_packed(yard: Publisher, mode: str, prefix: str) -> None:
    first = await yard.publish(a_skill())
    files = skill_files()
    again = await yard.publish(zipped(files, prefix=prefix) if mode == "zip" else tar(files, mode=mode, prefix=prefix))
    assert not again.created
    assert again.publication == first.publication


async def test_the_same_bytes_again_change_nothing(yard: Publisher) -> None:
    first = await yard.publish(a_skill(), ANN)
    yard.rig.events.clear()
    again = await yard.publish(a_skill(), BOB)
    assert (again.created, again.publication) == (False, first.publication)
    assert yard.rig.of(CatalogueChanged) == []


async def test_other_bytes_under_a_version_are_refused_with_both_digests(yard: Publisher) -> None:
    first = (await yard.publish(a_skill())).publication
    before = yard.stored()
    with pytest.raises(VersionTaken) as refusal:
        await yard.publish(a_skill(word="other"))
    facts = refusal.value.details
    assert facts["stored_digest"] == first.digest != facts["offered_digest"]
    assert first.digest in refusal.value.message
    assert facts["offered_digest"] in refusal.value.message
    assert yard.stored() == before
    assert (await yard.skills.get(NAME)).digest == first.digest


async def test_of_two_at_once_exactly_one_wins(yard: Publisher) -> None:
    words = [f"word {n}" for n in range(4)]
    outcomes = await asyncio.gather(*(yard.publish(a_skill(word=word)) for word in words), return_exceptions=True)
    won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert len(won) == 1
    assert all(isinstance(o, VersionTaken) for o in outcomes if isinstance(o, BaseException))
    assert (await yard.skills.get(NAME)).digest == won[0].publication.digest
    assert yard.stored() == {won[0].publication.digest}


@pytest.mark.parametrize("served", ["1.0.0", "0.9.0"])
async def test_a_name_that_a_directory_serves_is_no_longer_its_first_publishers(yard: Publisher, served: str) -> None:
    """Whose higher version would else be the latest of the operator's skill."""
    await yard.publish(a_skill())
    put(yard, skill_files(version=served))
    for change in (
        yard.publish(a_skill(version="2.0.0")),
        yard.call("pin", name=NAME, version="1.0.0"),
        yard.call("withdraw", name=NAME, version="1.0.0"),
    ):
        with pytest.raises(Forbidden, match="operator's"):
            await change
    assert (await yard.publish(a_skill(version="2.0.0"), ROOT)).created


async def test_a_directory_keeps_its_version(yard: Publisher) -> None:
    put(yard, skill_files())
    with pytest.raises(VersionTaken) as refusal:
        await yard.publish(a_skill(word="other"), ROOT)
    assert "directory" in refusal.value.message
    assert refusal.value.details["stored_digest"] == (await yard.skills.get(NAME)).digest
    same = await yard.publish(a_skill(), ROOT)
    assert same.created
    higher = await yard.publish(a_skill(version="1.1.0"), ROOT)
    assert (await yard.skills.get(NAME)).version == higher.publication.version
    assert list(await yard.skills.versions(NAME)) == ["1.1.0", "1.0.0"]


async def test_names_in_directories_are_the_operators(yard: Publisher) -> None:
    put(yard, skill_files())
    with pytest.raises(Forbidden, match="operator"):
        await yard.publish(a_skill(version="9.0.0"), ANN)
    assert (await yard.skills.get(NAME)).version == "1.0.0"


async def test_a_name_belongs_to_its_first_project(yard: Publisher) -> None:
    await yard.publish(a_skill(), ANN)
    for archive in (a_skill(), a_skill(word="other"), a_skill(version="2.0.0")):
        with pytest.raises(Forbidden, match="another project"):
            await yard.publish(archive, EVE)
    await yard.publish(a_skill(version="2.0.0"), BOB)
    by_root = await yard.publish(a_skill(version="3.0.0"), ROOT)
    assert by_root.publication.project == "crm"
    assert by_root.publication.published_by == ROOT.name


async def test_patterns_and_scopes_of_tokens_hold(yard: Publisher) -> None:
    with pytest.raises(Forbidden, match="patterns"):
        await yard.publish(a_skill(), replace(ANN, skills=("sales.*",)))
    await yard.publish(a_skill(), replace(ANN, skills=("acme.*",)))

    read = []

    async def watched() -> AsyncIterator[bytes]:
        read.append(True)
        yield a_skill(version="2.0.0")

    with pytest.raises(Forbidden, match="publish"):
        await yard.rig.app.publisher.publish(
            replace(ANN, scopes=frozenset(Scope) - {Scope.PUBLISH, Scope.ADMIN}), watched()
        )
    assert read == [], "nothing is read of what nobody may send"


async def test_the_guide_stays(yard: Publisher) -> None:
    with pytest.raises(Forbidden, match="built in"):
        await yard.publish(tar(skill_files(GUIDE)), ROOT)


async def test_a_bundle_that_is_no_skill_is_refused_with_its_findings(yard: Publisher) -> None:
    files = skill_files() | {"skill.toml": b'name = "acme.words.say"\nversion = "one"\n'}
    with pytest.raises(BundleRefused) as refusal:
        await yard.publish(tar(files))
    found = refusal.value.details["findings"]
    assert {"level", "file", "line", "rule", "message", "mend"} <= found[0].keys()
    assert any(finding["file"] == "skill.toml" and finding["line"] == 2 for finding in found)
    assert "skill.toml" in refusal.value.message
    assert yard.stored() == set()


@pytest.mark.parametrize("archive", [b"", b"PK\3\4", b"\x1f\x8b\x08", b"not an archive at all" * 100])
async def test_what_is_no_archive_is_refused(yard: Publisher, archive: bytes) -> None:
    with pytest.raises(BundleRefused) as refusal:
        await yard.publish(archive)
    assert refusal.value.details["findings"][0]["rule"].startswith("archive-")
    assert yard.stored() == set()


async def test_uploads_are_strict_unless_the_operator_says_otherwise(yard: Publisher) -> None:
    files = {"SKILL.md": b"---\nname: Some_Note\ndescription: Not in the alphabet.\n---\n"}
    with pytest.raises(BundleRefused, match="name-alphabet"):
        await yard.publish(tar(files))
    lenient = await publisher(yard.rig, lenient=True)
    told = await lenient.publish(tar(files))
    assert told.publication.name == "Some_Note"
    assert any(finding.rule == "name-alphabet" for finding in told.findings)


async def test_an_archive_is_bounded_before_it_is_read(rig: Rig) -> None:
    yard = await publisher(rig, max_bytes=4096)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1000
            yield bytes(1000)

    with pytest.raises(QuotaExceeded):
        await rig.app.publisher.publish(ANN, endless())
    assert taken == 5000
    assert list((rig.home / "uploads").iterdir()) == []
    await yard.publish(a_skill())


async def test_an_agent_skill_has_the_version_of_its_metadata(yard: Publisher) -> None:
    told = await yard.publish(tar(note_files("some-note", "1.2.0"), prefix="any-directory/"))
    assert (told.publication.name, told.publication.version) == ("some-note", "1.2.0")
    with pytest.raises(VersionTaken):
        await yard.publish(tar(note_files("some-note", "1.2.0", text="changed")))
    await yard.publish(tar(note_files("some-note", "1.3.0", text="changed")))
    assert (await yard.skills.get("some-note")).version == "1.3.0"


async def test_an_agent_skill_without_a_version_is_one_version(yard: Publisher) -> None:
    told = (await yard.publish(tar(note_files()))).publication
    assert told.version == f"0.0.0+{told.digest[:12]}"
    assert not (await yard.publish(tar(note_files()))).created
    with pytest.raises(VersionTaken, match="raise the version"):
        await yard.publish(tar(note_files(text="changed")))
    await yard.publish(tar(note_files(version="0.1.0", text="changed")))


async def test_a_projects_quota_leaves_nothing_behind(yard: Publisher) -> None:
    await yard.publish(a_skill())
    before = yard.stored()
    full = await yard.restarted(count=1)
    with pytest.raises(QuotaExceeded, match="1 published"):
        await full.publish(a_skill(version="2.0.0"))
    assert yard.stored() == before


async def test_few_arrive_at_once(yard: Publisher) -> None:
    arrived, go = asyncio.Semaphore(0), asyncio.Event()

    async def waiting(archive: bytes) -> AsyncIterator[bytes]:
        arrived.release()
        await go.wait()
        yield archive

    def begin(n: int, who: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(yard.rig.app.publisher.publish(who, waiting(a_skill(version=f"{n}.0.0"))))

    mine = [begin(n, ANN) for n in range(1, 5)]
    for _ in mine:
        await arrived.acquire()
    with pytest.raises(Busy):
        await begin(5, ANN)
    other = begin(6, BOB)
    await arrived.acquire()
    go.set()
    await asyncio.gather(*mine, other)
    assert len(await yard.skills.versions(NAME)) == 5


async def test_a_caller_that_goes_away_while_it_is_stored_leaves_a_whole_version(yard: Publisher) -> None:
    task = asyncio.create_task(yard.publish(a_skill()))
    keeping = asyncio.Event()
    bundles = yard.rig.extra["bundles"]
    snapshots = bundles._snapshots
    plain, loop = snapshots.store, asyncio.get_running_loop()

    def store(tree: Any) -> Any:
        loop.call_soon_threadsafe(keeping.set)
        return plain(tree)

    snapshots.store = store
    await keeping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await yard.rig.app.tasks.drain()
    assert (await yard.skills.get(NAME)).version == "1.0.0"


async def test_a_source_that_breaks_off_leaves_nothing(yard: Publisher) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield a_skill()[:100]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await yard.rig.app.publisher.publish(ANN, broken())
    assert list((yard.rig.home / "uploads").iterdir()) == []
    with pytest.raises(SkillNotFound):
        await yard.skills.get(NAME)


@pytest.mark.parametrize("form", list(ArchiveForm))
async def test_an_export_is_the_exact_bundle(yard: Publisher, form: ArchiveForm) -> None:
    files = skill_files() | {"docs/leer.txt": b"", "data/any.bin": bytes(range(256)) * 300}
    first = (await yard.publish(tar(files))).publication
    archive = await yard.export(NAME, form=form)
    assert unpacked(archive) == files
    assert await yard.export(NAME, "1.0.0", form) == archive
    again = await yard.publish(archive)
    assert (again.created, again.publication.digest) == (False, first.digest)


async def test_published_versions_outlive_the_sweep_of_a_start(yard: Publisher) -> None:
    kept = (await yard.publish(a_skill())).publication
    gone = (await yard.publish(a_skill(version="2.0.0"))).publication
    await yard.call("withdraw", name=NAME, version="2.0.0")
    (yard.snapshots / ("0" * 64)).mkdir()
    (yard.rig.home / "uploads" / "left").write_bytes(b"half")
    again = await yard.restarted()
    assert again.stored() == {kept.digest, gone.digest}
    assert list((yard.rig.home / "uploads").iterdir()) == []
    assert (await again.skills.get(NAME)).digest == kept.digest


async def test_a_damaged_snapshot_is_not_served_and_mended_by_publishing_it_again(yard: Publisher) -> None:
    digest = (await yard.publish(a_skill())).publication.digest
    file = yard.snapshots / digest / "code" / "main.py"
    file.chmod(0o644)
    file.write_text("def main(args): return 'something else'\n")
    again = await yard.restarted()
    with pytest.raises(SkillNotFound):
        await again.skills.get(NAME)
    assert "publish the same bundle again" in (await again.skills.problems())[0].mend
    assert not (await again.publish(a_skill())).created
    assert (await again.skills.get(NAME)).digest == digest


def put(yard: Publisher, files: dict[str, bytes], directory: str = NAME) -> None:
    """As an operator puts a skill into a directory that is served."""
    for path, data in files.items():
        target = yard.directory / directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
