"""The tools ``skills.*`` of the catalogue (skills-service §2, §7)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import (
    BlobNotFound,
    BundleRefused,
    Busy,
    FileNotFound,
    Forbidden,
    InvalidInput,
    SandboxFault,
    SkillNotFound,
    VersionTaken,
)
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Needs, SkillFile, SkillKind, SkillSource
from skillyard.engine.observer import CatalogueChanged
from skillyard.engine.packages.environment import BuildFailed
from skillyard.engine.skills.tools import MOST_LOADED, TABLE
from tests.bundles import a_skill as archive
from tests.bundles import skill_files, zipped
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.skills.publisher import ANN, BOB, EVE, ROOT, publisher

pytestmark = pytest.mark.anyio

NAME = "acme.words.say"


def on_disk(home: Path, **files: bytes) -> tuple[SkillFile, ...]:
    """The files of a skill below ``home``; ``__`` in a name is a dot."""
    found = []
    for name, data in files.items():
        path = name.replace("__", ".")
        (home / path).write_bytes(data)
        found.append(SkillFile(path, len(data), hashlib.sha256(data).hexdigest()))
    return tuple(found)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
async def test_every_tool_refuses_an_agent_that_the_token_does_not_allow(rig: Rig, row: Any) -> None:
    ann = Principal("ann", frozenset(Scope) - {Scope.ADMIN}, agents=("crawler-*",))
    params = {**row.example, "agent": "bob"}
    with pytest.raises(Forbidden, match="acts for the agent 'ann'"):
        await rig.call(row.name, ann, **params)
    with pytest.raises(InvalidInput, match="agent: must be a letter"):
        await rig.call(row.name, ann, **{**params, "agent": "*"})
    try:
        await rig.call(row.name, ann, **{**params, "agent": "crawler-7"})
    except InvalidInput as error:
        assert error.field != "agent"  # noqa: PT017


async def test_load_gives_the_file_with_its_digest_and_the_skills(rig: Rig, tmp_path: Path) -> None:
    files = on_disk(tmp_path, SKILL__md="# Käse".encode(), logo__png=b"\x89PNG\0", odd__txt=b"\xff\xfe")
    rig.skills.add(a_skill("a.b", tmp_path, files=files))
    text = await rig.call("skills.load", skill_name="a.b")
    assert (text["path"], text["content"], text["encoding"]) == ("SKILL.md", "# Käse", "utf-8")
    assert (text["bytes"], text["sha256"]) == (7, hashlib.sha256("# Käse".encode()).hexdigest())
    assert (text["version"], text["version_hash"]) == ("1.0.0", "sha256-of-a.b-1.0.0")
    for path in ("logo.png", "./odd.txt"):
        other = await rig.call("skills.load", skill_name="a.b", path=path)
        assert other["encoding"] == "base64"
        assert base64.b64decode(other["content"]) == (tmp_path / path).read_bytes()


async def test_load_refuses_what_is_not_there_and_what_is_elsewhere(rig: Rig, tmp_path: Path) -> None:
    large = (SkillFile("large.bin", MOST_LOADED + 1, "0" * 64), SkillFile("link.txt", 3, "0" * 64))
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    rig.skills.add(a_skill("a.b", tmp_path, files=(*on_disk(tmp_path, SKILL__md=b"x"), *large)))
    for path, error, said in (
        ("other.md", FileNotFound, "has no file 'other.md'"),
        ("../SKILL.md", InvalidInput, "path: must not hold '..'"),
        ("/SKILL.md", InvalidInput, "path: must be relative"),
        ("link.txt", InvalidInput, "path: must stay inside"),
        ("large.bin", InvalidInput, f"has {MOST_LOADED + 1} bytes.*read_skill_file"),
    ):
        with pytest.raises(error, match=said):
            await rig.call("skills.load", skill_name="a.b", path=path)
    with pytest.raises(SkillNotFound) as unknown:
        await rig.call("skills.load", skill_name="a.c")
    assert unknown.value.field == "skill_name"


async def test_activate_builds_the_packages_and_makes_an_interpreter_ready(rig: Rig) -> None:
    rig.configure(packages={"run_code": ("*",)})
    rig.skills.add(a_skill("a.b", needs=Needs(dependencies=("a-pkg",))))
    done = await rig.call("skills.activate", skill_name="a.b")
    assert done | {"environment": ""} == {
        "mode": "local",
        "skill_name": "a.b",
        "version": "1.0.0",
        "version_hash": "sha256-of-a.b-1.0.0",
        "local_dir": "/skills/a.b",
        "active_path": "skill",
        "dest_dir": "/workspace/skill",
        "environment": "",
    }
    assert rig.builder.resolved == [("a-pkg",)]
    assert rig.backend.prepared[-1].environment.digest == done["environment"] != ""
    run = await rig.run(mount_skills=["a.b"])
    assert (await rig.record(run)).digests["environment"] == done["environment"], "what commands get"
    assert len(rig.builder.installed) == 1


async def test_activate_takes_skills_without_packages_and_without_code(rig: Rig) -> None:
    for name, kind in (("a.b", SkillKind.ACTION), ("a.note", SkillKind.INSTRUCTION)):
        rig.skills.add(a_skill(name, kind=kind))
        done = await rig.call("skills.activate", skill_name=name)
        assert (done["skill_name"], rig.builder.resolved) == (name, [])


async def test_an_activation_that_takes_too_long_leaves_the_build_at_work(rig: Rig) -> None:
    rig.builder.gate = asyncio.Event()
    rig.skills.add(a_skill("a.b", needs=Needs(dependencies=("a-pkg",))))
    with pytest.raises(Busy, match=r"timeout_sec: the packages of 'a\.b' are still being built after 1 s") as busy:
        await rig.call("skills.activate", skill_name="a.b", timeout_sec=1)
    assert busy.value.retry_after_ms > 0
    rig.builder.gate.set()
    assert (await rig.call("skills.activate", skill_name="a.b"))["environment"]
    assert len(rig.builder.installed) == 1
    for seconds, said in ((121, "timeout_sec: must be at most 120"), (0, "timeout_sec: must be at least 1")):
        with pytest.raises(InvalidInput, match=said):
            await rig.call("skills.activate", skill_name="a.b", timeout_sec=seconds)


async def test_activate_says_why_runs_would_be_refused(rig: Rig) -> None:
    rig.skills.add(a_skill("a.wild", needs=Needs(dependencies=("a-pkg",)), source=SkillSource.PUBLISHED))
    with pytest.raises(Forbidden, match="asks for the packages 'a-pkg'"):
        await rig.call("skills.activate", skill_name="a.wild")
    rig.builder.fault = BuildFailed("no space")
    rig.skills.add(a_skill("a.b", needs=Needs(dependencies=("b",))))
    with pytest.raises(SandboxFault, match="no space"):
        await rig.call("skills.activate", skill_name="a.b")


async def test_an_upload_is_published_and_pinned(rig: Rig) -> None:
    yard = await publisher(rig)
    first = await rig.call("skills.upload", ANN, content=encoded(archive()))
    assert (first["skill_name"], first["version"], first["active_version"]) == (NAME, "1.0.0", "1.0.0")
    newer = zipped(skill_files(version="2.0.0"))
    second = await rig.call("skills.upload", ANN, content=encoded(newer), activate=False)
    assert (second["created"], second["active_version"]) == (True, "1.0.0")
    assert (await rig.call("skills.upload", ANN, content=encoded(newer)))["active_version"] == "2.0.0"
    assert (await yard.call("versions", name=NAME))["pin"]["version"] == "2.0.0"
    chosen = await rig.call("skills.set_version", ANN, skill_name=NAME, version="1.0.0")
    assert (chosen["version_hash"], chosen["changed"]) == (first["version_hash"], True)
    assert (await rig.call("skills.load", ANN, skill_name=NAME))["version"] == "1.0.0"


async def test_a_blob_is_uploaded_by_its_owner_alone(rig: Rig) -> None:
    await publisher(rig)
    info = await rig.app.ports.blobs.create("ann", "application/gzip", archive())
    assert (await rig.call("skills.upload", ANN, blob_id=info.blob_id))["skill_name"] == NAME
    for blob_id in (info.blob_id, "blob:none"):
        with pytest.raises(BlobNotFound, match=f"no blob '{blob_id}'"):
            await rig.call("skills.upload", BOB, blob_id=blob_id)


async def test_a_bad_upload_is_refused(rig: Rig) -> None:
    await publisher(rig)
    await rig.call("skills.upload", ANN, content=encoded(archive()))
    for params, error, said in (
        ({}, InvalidInput, "content: must be given, or blob_id"),
        ({"content": "eA==", "blob_id": "blob:x"}, InvalidInput, "content: must be given, or blob_id"),
        ({"content": "%"}, InvalidInput, "content: must be base64"),
        ({"content": encoded(b"no archive")}, BundleRefused, "archive"),
        ({"content": encoded(archive(word="other"))}, VersionTaken, "raise the version"),
    ):
        with pytest.raises(error, match=said):
            await rig.call("skills.upload", ANN, **params)
    with pytest.raises(Forbidden, match="another project"):
        await rig.call("skills.upload", EVE, content=encoded(archive(version="9.0.0")))


async def test_a_disabled_skill_is_found_by_no_method(rig: Rig) -> None:
    yard = await publisher(rig)
    await yard.publish(archive())
    await yard.publish(archive("acme.words.more"))
    assert await rig.call("skills.disable", ANN, skill_name=NAME) == {
        "skill_name": NAME,
        "project": "crm",
        "enabled": False,
        "changed": True,
    }
    assert not (await rig.call("skills.disable", BOB, skill_name=NAME))["changed"]
    used: tuple[tuple[str, dict[str, Any]], ...] = (
        ("describe_skill", {"name": NAME}),
        ("read_skill_file", {"name": NAME, "path": "SKILL.md"}),
        ("execute_skill", {"name": NAME}),
        ("skills.load", {"skill_name": NAME}),
        ("skills.activate", {"skill_name": NAME}),
        ("environments.build", {"skill": NAME}),
    )
    for method, params in used:
        with pytest.raises(SkillNotFound, match=f"'{NAME}' is disabled in the project 'crm'; skills.disable with"):
            await rig.call(method, BOB, **params)
    with pytest.raises(SkillNotFound, match="disabled"):
        await yard.export(NAME)
    assert [row["name"] for row in (await rig.call("list_skills", BOB))["skills"]] == ["acme.words.more"]
    rows = (await rig.call("skills.list", BOB))["skills"]
    assert [(row["skill_name"], row["enabled"]) for row in rows] == [("acme.words.more", True), (NAME, False)]
    assert len((await rig.call("skills.list", BOB, enabled_only=True))["skills"]) == 1
    assert all(len(row["version_hash"]) == 64 for row in rows)
    assert (await rig.call("skills.load", EVE, skill_name=NAME))["version"] == "1.0.0", "another project uses it"
    assert (await rig.call("skills.disable", BOB, skill_name=NAME, enabled=True))["changed"]
    assert (await rig.call("skills.load", BOB, skill_name=NAME))["version"] == "1.0.0"
    acts = [(event.act, event.principal) for event in rig.of(CatalogueChanged)][-2:]
    assert acts == [("disabled", "ann"), ("enabled", "bob")]


async def test_a_disabled_skill_is_not_drawn_in_as_a_requirement(rig: Rig) -> None:
    rig.skills.add(a_skill("a.base"))
    rig.skills.add(a_skill("a.top", needs=Needs(requires=("a.base",))))
    await rig.call("skills.disable", skill_name="a.base")
    with pytest.raises(SkillNotFound, match=r"requires 'a\.base', which is not available"):
        await rig.call("execute_skill", name="a.top")


async def test_only_a_skill_that_the_caller_may_use_is_disabled(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b"))
    narrow = Principal("narrow", frozenset({Scope.PUBLISH}), ("x.*",))
    for principal, name in ((narrow, "a.b"), (ROOT, "a.none")):
        with pytest.raises(SkillNotFound, match=f"skill_name: no skill '{name}'"):
            await rig.call("skills.disable", principal, skill_name=name)
    with pytest.raises(Forbidden, match="publish"):
        await rig.call("skills.disable", Principal("p", frozenset({Scope.EXECUTE})), skill_name="a.b")


async def test_delete_withdraws_one_version_or_all(rig: Rig) -> None:
    yard = await publisher(rig)
    for version in ("1.0.0", "2.0.0", "3.0.0"):
        await yard.publish(archive(version=version))
    one = await rig.call("skills.delete", ANN, skill_name=NAME, version="3.0.0", reason="it leaks")
    assert ([gone["version"] for gone in one["deleted"]], one["active_version"]) == (["3.0.0"], "2.0.0")
    assert (await rig.call("skills.delete", ANN, skill_name=NAME, version="3.0.0"))["deleted"] == []
    with pytest.raises(SkillNotFound, match="it leaks"):
        await rig.call("skills.load", ANN, skill_name=NAME, version="3.0.0")
    with pytest.raises(Forbidden, match="another project"):
        await rig.call("skills.delete", EVE, skill_name=NAME)
    rest = await rig.call("skills.delete", ANN, skill_name=NAME)
    assert ([gone["version"] for gone in rest["deleted"]], rest["active_version"]) == (["2.0.0", "1.0.0"], None)
    with pytest.raises(SkillNotFound, match="skill_name: no published version"):
        await rig.call("skills.delete", ANN, skill_name=NAME)
