"""``skills.read_artifact``: pages of a file, its name, and whose it is."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from skillyard.domain.errors import BlobNotFound, Forbidden, InvalidInput
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import SkillKind
from tests.unit.engine.commands.test_run_cmd import DONE, file
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill

pytestmark = pytest.mark.anyio
SCOPES = frozenset({Scope.RUN_CODE, Scope.BLOBS})
ANNA = Principal("anna", SCOPES, project="crm", agent="crawler")
OTHERS = (
    Principal("bob", SCOPES, project="crm"),
    Principal("bob", SCOPES, project="shop", agent="crawler"),
    Principal("bob", SCOPES),
)
TEXT = "é" * 10


@pytest.fixture
async def artifact(rig: Rig) -> str:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.backend.script = playing(file(1, "0/skill/out.txt", TEXT.encode()), DONE)
    outputs = [{"path": "out.txt", "save_as": "report.txt"}]
    asked = {"skill_name": "acme.notes", "command": "ls", "outputs": outputs}
    ran = await rig.call("skills.run_cmd", ANNA, **asked)
    made: str = ran["created_artifacts"][0]["artifact_id"]
    return made


async def read(rig: Rig, who: Principal, artifact: str, **asked: Any) -> dict[str, Any]:
    return await rig.call("skills.read_artifact", who, artifact_id=artifact, **asked)


async def test_it_has_its_name_and_its_owner(rig: Rig, artifact: str) -> None:
    found = await read(rig, ANNA, artifact)
    assert (found["filename"], found["path"], found["mime"]) == ("report.txt", "skill/out.txt", "text/plain")
    assert (found["project"], found["agent"]) == ("crm", "crawler")
    assert (found["content"], found["encoding"], found["size"], found["next_offset"]) == (TEXT, "utf-8", 20, None)


async def test_pages_end_between_characters(rig: Rig, artifact: str) -> None:
    whole, offset = "", 0
    for _ in range(20):
        page = await read(rig, ANNA, artifact, offset=offset, max_bytes=5)
        assert page["encoding"] == "utf-8"
        whole += page["content"]
        if page["next_offset"] is None:
            break
        offset = page["next_offset"]
    assert whole == TEXT
    inside = await read(rig, ANNA, artifact, offset=1, max_bytes=1)
    assert (base64.b64decode(inside["content"]), inside["next_offset"]) == (TEXT.encode()[1:2], 2)
    assert (await read(rig, ANNA, artifact, offset=20))["content"] == ""
    with pytest.raises(InvalidInput, match="offset: must be at most the size, 20"):
        await read(rig, ANNA, artifact, offset=21)


async def test_every_token_of_the_agent_reads_it(rig: Rig, artifact: str) -> None:
    same = Principal("carl", SCOPES, project="crm", agent="crawler")
    several = Principal("dora", SCOPES, project="crm", agents=("crawl*",))
    assert (await read(rig, same, artifact))["content"] == TEXT
    assert (await read(rig, several, artifact))["content"] == TEXT
    assert (await read(rig, several, artifact, agent="crawler"))["content"] == TEXT
    with pytest.raises(BlobNotFound):
        await read(rig, several, artifact, agent="crawling")


@pytest.mark.parametrize("who", OTHERS, ids=lambda who: f"{who.project}-{who.agent}")
async def test_for_others_it_does_not_exist(rig: Rig, artifact: str, who: Principal) -> None:
    with pytest.raises(BlobNotFound) as real:
        await read(rig, who, artifact)
    with pytest.raises(BlobNotFound) as made_up:
        await read(rig, who, "blob:" + "0" * 32)
    assert str(real.value).replace(artifact, "") == str(made_up.value).replace("blob:" + "0" * 32, "")
    with pytest.raises(Forbidden, match="agent"):
        await read(rig, who, artifact, agent="crawler-9")


async def test_a_blob_of_its_owner_is_an_artifact_without_a_name(rig: Rig, artifact: str) -> None:
    blob = (await rig.call("create_blob", ANNA, content="x", kind="text/csv"))["blob_id"]
    found = await read(rig, ANNA, blob)
    assert (found["content"], found["filename"], found["run_id"], found["agent"]) == ("x", "", None, "")
    with pytest.raises(BlobNotFound):
        await read(rig, OTHERS[0], blob)


async def test_every_token_of_the_agent_gives_it_to_a_command(rig: Rig, artifact: str) -> None:
    asked: dict[str, Any] = {
        "skill_name": "acme.notes", "command": "ls", "inputs": [{"artifact_id": artifact, "mount_path": "in.txt"}],
    }  # fmt: skip
    second = Principal("second", SCOPES, project="crm", agent="crawler")
    chief = Principal("chief", SCOPES, project="crm", agents=("craw*",))
    rig.backend.script = playing(DONE)
    for who in (ANNA, second, chief):
        assert (await rig.call("skills.run_cmd", who, **asked))["status"] == "succeeded"
    for who in OTHERS:
        for method in ("skills.run_cmd", "skills.run_cmd_async"):
            with pytest.raises(BlobNotFound, match=r"inputs\[0\]"):
                await rig.call(method, who, **asked)
    with pytest.raises(BlobNotFound):
        await rig.call("run_code", second, language="python", code="def main(args): return {}", input_blobs=[artifact])
