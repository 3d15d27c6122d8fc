"""``catalogue.diff``: of two versions that are served, from their snapshots."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skillyard.domain.errors import Forbidden, SkillNotFound, StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import SkillFile
from skillyard.engine.skills.inspection import Diffs
from tests.bundles import skill_files, tar
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.fifo import fifo_writer
from tests.unit.engine.skills.publisher import ANN, Publisher, publisher

pytestmark = pytest.mark.anyio

NAME = "acme.words.say"


@pytest.fixture
async def yard(rig: Rig) -> Publisher:
    made = await publisher(rig)
    old = skill_files()
    new = {**skill_files(version="1.1.0"), "code/main.py": old["code/main.py"] + b"# more\n", "data.bin": b"\0\1"}
    new["skill.toml"] += b'\n[permissions]\nnetwork = ["api.example.com"]\n'
    await made.publish(tar(old))
    await made.publish(tar(new))
    return made


async def test_what_a_version_asks_for_comes_first(yard: Publisher) -> None:
    found = await yard.call("diff", ANN, **{"name": NAME, "from": "1.0.0"})
    assert (found["from"]["version"], found["to"]["version"]) == ("1.0.0", "1.1.0")
    assert found["from"]["digest"] != found["to"]["digest"]
    assert (found["same"], found["widens"]) == (False, True)
    assert [(change["need"], change["name"], change["widens"]) for change in found["needs"]] == [
        ("network", "api.example.com", True)
    ]
    changes = {change["path"]: change for change in found["files"]}
    assert list(changes) == ["code/main.py", "data.bin", "skill.toml"]
    assert changes["code/main.py"]["diff"].endswith("+# more\n")
    assert (changes["data.bin"]["change"], changes["data.bin"]["reason"]) == ("added", "binary")


async def test_back_again_it_asks_for_less(yard: Publisher) -> None:
    found = await yard.call("diff", ANN, **{"name": NAME, "from": "1.1.0", "to": "1.0.0"})
    assert not found["widens"]
    assert [change["change"] for change in found["needs"]] == ["removed"]


async def test_a_version_beside_itself_is_the_same(yard: Publisher) -> None:
    found = await yard.call("diff", ANN, **{"name": NAME, "from": "1.1.0", "to": "1.1.0"})
    assert found["same"]
    assert not found["files"]


async def test_who_may_not_use_a_skill_does_not_compare_it(yard: Publisher) -> None:
    stranger = Principal("s", frozenset({Scope.DISCOVER}), skills=("other.*",))
    with pytest.raises(SkillNotFound):
        await yard.call("diff", stranger, **{"name": NAME, "from": "1.0.0"})
    with pytest.raises(Forbidden):
        await yard.call("diff", Principal("s", frozenset({Scope.BLOBS})), **{"name": NAME, "from": "1.0.0"})
    with pytest.raises(SkillNotFound, match=r"9\.9\.9"):
        await yard.call("diff", ANN, **{"name": NAME, "from": "9.9.9"})


async def test_a_snapshot_that_is_gone_is_a_fault_of_the_store(yard: Publisher) -> None:
    skill = await yard.skills.get(NAME, "1.0.0")
    (skill.root / "code").chmod(0o755)
    (skill.root / "code/main.py").unlink()
    with pytest.raises(StoreFault, match="snapshot"):
        await yard.call("diff", ANN, **{"name": NAME, "from": "1.0.0"})


async def test_who_goes_away_leaves_no_second_thread_behind(tmp_path: Path) -> None:
    """The first reads a FIFO, and so waits for its writer."""
    os.mkfifo(tmp_path / "SKILL.md")
    slow = a_skill("a.b", tmp_path, files=(SkillFile("SKILL.md", 1, "1"),))
    quick = a_skill("a.b", tmp_path, files=())
    diffs = Diffs()
    first = asyncio.create_task(diffs.of(quick, slow))
    writer = await asyncio.to_thread(fifo_writer, tmp_path / "SKILL.md")
    second = asyncio.create_task(diffs.of(quick, quick))
    for _ in range(2):
        first.cancel()
        done, _ = await asyncio.wait([first, second], timeout=0.1)
    os.close(writer)
    assert not done
    assert (await second).same
    with pytest.raises(asyncio.CancelledError):
        await first
