"""``catalogue.review``: of a version that is served, from its snapshot."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import Forbidden, SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Finding, Skill, SkillFile
from skillyard.engine.skills.inspection import KEPT, Reviews
from tests.unit.domain.review.corpus import ReaderHere
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.fifo import fifo_writer

pytestmark = pytest.mark.anyio


def stored(root: Path, files: dict[str, bytes], name: str = "a.b") -> Skill:
    """A skill whose files lie in a directory of its own."""
    for path, data in files.items():
        (root / path).write_bytes(data)
    listed = tuple(SkillFile(path, len(data), "0") for path, data in files.items())
    return a_skill(name, root, files=listed)


async def test_a_served_version_is_reviewed(rig: Rig, tmp_path: Path) -> None:
    skill = stored(tmp_path, {"SKILL.md": b"# x\n<!-- y -->\n", "tool": b"\x7fELF" + bytes(9)})
    (tmp_path / "tool").chmod(0o555)
    told = Finding("warning", "SKILL.md", 1, "invisible", "x")
    rig.skills.add(replace(skill, findings=(told,)))
    found = await rig.call("catalogue.review", name="a.b")
    assert (found["name"], found["version"], found["digest"]) == ("a.b", "1.0.0", skill.digest)
    assert [(f["rule"], f["file"], f["line"]) for f in found["findings"]] == [
        ("program", "tool", 0),
        ("hidden-comment", "SKILL.md", 2),
    ]
    assert found["counts"] == {"danger": 1, "warning": 1, "note": 0}
    assert [f["rule"] for f in found["validation"]] == ["invisible"]


async def test_who_may_not_use_a_skill_does_not_review_it(rig: Rig, tmp_path: Path) -> None:
    rig.skills.add(stored(tmp_path, {"SKILL.md": b""}))
    stranger = Principal("s", frozenset({Scope.DISCOVER}), skills=("other.*",))
    with pytest.raises(SkillNotFound):
        await rig.call("catalogue.review", principal=stranger, name="a.b")
    with pytest.raises(SkillNotFound):
        await rig.call("catalogue.review", name="a.b", version="9.9.9")
    with pytest.raises(Forbidden):
        await rig.call("catalogue.review", principal=Principal("s", frozenset({Scope.BLOBS})), name="a.b")


async def test_a_review_is_made_once(tmp_path: Path) -> None:
    reviews = Reviews(ReaderHere())
    first = await reviews.of(stored(tmp_path, {"SKILL.md": b"x"}))
    (tmp_path / "SKILL.md").unlink()
    assert await reviews.of(stored(tmp_path, {})) is first
    for number in range(KEPT + 1):
        await reviews.of(stored(tmp_path, {}, f"n{number}.x"))
    again: Any = await reviews.of(stored(tmp_path, {"SKILL.md": b"x"}))
    assert again is not first


async def test_one_review_at_a_time_also_when_who_asked_goes_away(tmp_path: Path) -> None:
    slow, quick = (stored(_made(tmp_path / name), {}, f"a.{name}") for name in ("slow", "quick"))
    fifo = tmp_path / "slow" / "SKILL.md"
    os.mkfifo(fifo)
    slow = replace(slow, digest="1" * 64, files=(SkillFile("SKILL.md", 0, "0"),))
    reviews = Reviews(ReaderHere())
    first = asyncio.create_task(reviews.of(slow))
    writer = await asyncio.to_thread(fifo_writer, fifo)
    second = asyncio.create_task(reviews.of(quick))
    for _ in range(2):
        first.cancel()
        done, _ = await asyncio.wait([first, second], timeout=0.1)
    os.close(writer)
    assert not done
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
