"""What a request means: skills, versions, requirements, blobs, limits, environments (skills-protocol §4, §6, §8)."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.errors import (
    BlobNotFound,
    InvalidInput,
    NotExecutable,
    SkillNotFound,
    UnsupportedLanguage,
)
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.content import Content
from skillyard.domain.skill.skill import Needs, SkillKind
from tests.unit.engine.conftest import CODE, Rig
from tests.unit.engine.fakes import a_skill

pytestmark = pytest.mark.anyio

STRANGER = Principal("stranger", skills=("public.*",))


def mounted(rig: Rig) -> dict[str, str]:
    spec, _, _ = rig.backend.started[-1]
    return {mount.target: mount.source.digest for mount in spec.mounts if isinstance(mount.source, Content)}


async def test_execute_skill_calls_the_export_of_the_latest_version(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", version="1.0.0"))
    rig.skills.add(a_skill("a.b", version="2.0.0"))
    run = await rig.call("execute_skill", name="a.b", args={"x": 1})
    _, request, _ = rig.backend.started[0]
    assert (request["skill"], request["entrypoint"], request["code"]) == ("a.b", "main", None)
    assert request["skills"] == {"a.b": {"root": "/skills/a.b", "entry": "code/main.py"}}
    assert mounted(rig) == {"/skills/a.b": "sha256-of-a.b-2.0.0"}
    record = await rig.record(run)
    assert (record.skill, record.version, run["version"]) == ("a.b", "2.0.0", "2.0.0")
    await rig.call("execute_skill", name="a.b", version="1.0.0")
    assert mounted(rig) == {"/skills/a.b": "sha256-of-a.b-1.0.0"}


@pytest.mark.parametrize("params", [{"name": "no.such"}, {"name": "a.b", "version": "9.9.9"}])
async def test_a_skill_or_version_that_is_not_there(rig: Rig, params: dict[str, Any]) -> None:
    rig.skills.add(a_skill("a.b"))
    with pytest.raises(SkillNotFound) as caught:
        await rig.call("execute_skill", **params)
    assert (caught.value.code, caught.value.type) == (-32602, "SkillNotFound")
    assert await rig.app.ports.records.list(None) == []


async def test_an_instruction_skill_cannot_be_executed(rig: Rig) -> None:
    rig.skills.add(a_skill("how.to", kind=SkillKind.INSTRUCTION))
    with pytest.raises(NotExecutable) as caught:
        await rig.call("execute_skill", name="how.to")
    assert (caught.value.code, caught.value.type) == (-32602, "NotExecutable")


async def test_an_instruction_skill_can_be_mounted(rig: Rig) -> None:
    rig.skills.add(a_skill("how.to", kind=SkillKind.INSTRUCTION))
    await rig.run(mount_skills=["how.to"])
    assert rig.backend.started[0][1]["skills"] == {"how.to": {"root": "/skills/how.to", "entry": None}}


async def test_only_python_runs(rig: Rig) -> None:
    rig.skills.add(a_skill("a.js", language="javascript"))
    with pytest.raises(UnsupportedLanguage) as caught:
        await rig.call("run_code", language="javascript", code="x")
    assert (caught.value.code, caught.value.type) == (-32602, "UnsupportedLanguage")
    with pytest.raises(UnsupportedLanguage):
        await rig.call("execute_skill", name="a.js")


async def test_mounted_skills_are_importable_once_each(rig: Rig) -> None:
    for name in ("a.b", "a.b.c", "my-skill"):
        rig.skills.add(a_skill(name))
    await rig.run(mount_skills=["a.b", "my-skill", "a.b.c", "a.b"])
    assert sorted(mounted(rig)) == ["/skills/a.b", "/skills/a.b.c", "/skills/my-skill"]
    assert set(rig.backend.started[0][1]["skills"]) == {"a.b", "a.b.c", "my_skill"}


async def test_an_unknown_mount_is_named_with_its_place(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b"))
    with pytest.raises(SkillNotFound, match=r"mount_skills\[1\]"):
        await rig.run(mount_skills=["a.b", "no.such"])


async def test_two_skills_with_one_import_name(rig: Rig) -> None:
    rig.skills.add(a_skill("my-skill"))
    rig.skills.add(a_skill("my_skill"))
    with pytest.raises(InvalidInput, match="both be imported as"):
        await rig.run(mount_skills=["my-skill", "my_skill"])


async def test_required_skills_are_mounted_in_a_fitting_version(rig: Rig) -> None:
    rig.skills.add(a_skill("top", needs=Needs(requires=("lib >=1.2,<2",))))
    for version in ("1.0.0", "1.2.0", "1.9.0", "2.0.0"):
        rig.skills.add(a_skill("lib", version=version, needs=Needs(requires=("base.x",))))
    rig.skills.add(a_skill("base.x", needs=Needs(requires=("top",))))  # a circle ends
    await rig.call("execute_skill", name="top")
    assert mounted(rig) == {
        "/skills/top": "sha256-of-top-1.0.0",
        "/skills/lib": "sha256-of-lib-1.9.0",
        "/skills/base.x": "sha256-of-base.x-1.0.0",
    }


async def test_a_requirement_that_cannot_be_met(rig: Rig) -> None:
    rig.skills.add(a_skill("top", needs=Needs(requires=("lib >=3",))))
    rig.skills.add(a_skill("other", needs=Needs(requires=("missing",))))
    rig.skills.add(a_skill("lib"))
    with pytest.raises(SkillNotFound, match=r"'top' 1\.0\.0 requires 'lib >=3"):
        await rig.call("execute_skill", name="top")
    with pytest.raises(SkillNotFound, match=r"'other' 1\.0\.0 requires 'missing'"):
        await rig.call("execute_skill", name="other")
    with pytest.raises(InvalidInput, match=r"requires 'lib >=3.*version 1\.0\.0 is mounted"):
        await rig.run(mount_skills=["lib", "top"])


async def test_a_skill_that_the_caller_may_not_use_does_not_exist(rig: Rig) -> None:
    rig.skills.add(a_skill("private.x"))
    rig.skills.add(a_skill("public.x", needs=Needs(requires=("private.x",))))
    unknown = await _error(rig, "execute_skill", name="private.nothing")
    for params in ({"name": "private.x"}, {"name": "private.x", "version": "1.0.0"}):
        error = await _error(rig, "execute_skill", **params)
        assert error.data.keys() == unknown.data.keys()
    with pytest.raises(SkillNotFound):
        await rig.call("run_code", STRANGER, language="python", code=CODE, mount_skills=["private.x"])
    with pytest.raises(SkillNotFound):
        await rig.call("execute_skill", STRANGER, name="public.x")
    assert rig.backend.started == []


async def _error(rig: Rig, method: str, **params: Any) -> SkillNotFound:
    with pytest.raises(SkillNotFound) as caught:
        await rig.call(method, STRANGER, **params)
    return caught.value


async def test_input_blobs_show_under_both_names(rig: Rig) -> None:
    blob_id = (await rig.call("create_blob", content="hi", kind="text/plain"))["blob_id"]
    await rig.run(input_blobs=[blob_id, blob_id])
    spec, request, _ = rig.backend.started[0]
    [mount] = spec.mounts
    assert (mount.target, mount.aliases) == (f"/blobs/{blob_id}", (f"/blobs/{blob_id.removeprefix('blob:')}",))
    assert mount.source.path is not None
    assert mount.source.path.read_bytes() == b"hi"
    assert request["blobs"] == {blob_id: {"kind": "text/plain", "size": 2}}


async def test_blobs_of_others_do_not_exist(rig: Rig) -> None:
    mine = (await rig.call("create_blob", content="hi", kind="text/plain"))["blob_id"]
    for blob_id in (mine, "blob:nothing", "blob:.."):
        with pytest.raises(BlobNotFound, match=r"input_blobs\[0\]") as caught:
            await rig.call(
                "run_code",
                Principal("other", frozenset({"run_code"})),  # type: ignore[arg-type]
                language="python",
                code=CODE,
                input_blobs=[blob_id],
            )
        assert caught.value.code == -32602


async def test_a_timeout_in_both_places_must_agree(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b"))
    await rig.run(timeout_ms=5, limits={"timeout_ms": 5})
    await rig.call("execute_skill", name="a.b", timeout_ms=6)
    await rig.call("execute_skill", name="a.b", limits={"timeout_ms": 7})
    assert [timeout for _, _, timeout in rig.backend.started] == [5, 6, 7]
    with pytest.raises(InvalidInput, match="timeout_ms: must equal"):
        await rig.run(timeout_ms=5, limits={"timeout_ms": 6})
    with pytest.raises(InvalidInput, match="timeout_ms: must equal"):
        await rig.call("execute_skill", name="a.b", timeout_ms=5, limits={"timeout_ms": 6})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"timeout_ms": 3_600_001}, "limits.timeout_ms: must be from 1 to 3600000"),
        ({"timeout_ms": 0}, "limits.timeout_ms: must be from 1"),
        ({"timeout_ms": 1.5}, "timeout_ms: must be an integer"),
        ({"timeout_ms": True}, "timeout_ms: must be an integer"),
        ({"limits": {"memory_mb": 10**9}}, "limits.memory_mb: must be from 16 to 8192"),
        ({"limits": {"cpus": "2"}}, "limits.cpus: must be a number"),
        ({"limits": {"memory": 5}}, "limits.memory: unknown parameter; did you mean 'memory_mb'"),
        ({"limits": [1]}, "limits: must be an object"),
    ],
)
async def test_limits_are_refused_by_name_never_clamped(rig: Rig, params: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        await rig.run(**params)
    assert rig.backend.started == []
    assert await rig.app.ports.records.list(None) == []


async def test_a_manifests_limits_are_requests_capped_by_policy(rig: Rig) -> None:
    declared = {"timeout_ms": 10**9, "memory_mb": 1024, "pids": 1}
    rig.skills.add(a_skill("a.b", needs=Needs(limits=declared)))
    await rig.call("execute_skill", name="a.b", limits={"memory_mb": 100})
    limits = rig.backend.started[0][0].limits
    assert (limits.timeout_ms, limits.memory_mb, limits.pids, limits.disk_mb) == (3_600_000, 100, 4, 512)


async def test_the_environment_comes_from_the_request_the_skill_or_the_mounts(rig: Rig) -> None:
    rig.skills.add(a_skill("plain"))
    rig.skills.add(a_skill("table", environment="data"))

    def environment() -> str:
        return rig.backend.started[-1][0].environment.name

    await rig.run()
    assert environment() == "base"
    await rig.run(environment="data")
    assert environment() == "data"
    await rig.call("execute_skill", name="table")
    assert environment() == "data"
    run = await rig.run(mount_skills=["plain", "table"])
    assert (environment(), run["environment"]) == ("data", "data")
    await rig.run(mount_skills=["table"], environment="base")
    assert environment() == "base"
    with pytest.raises(InvalidInput, match="known are base, data"):
        await rig.run(environment="nothing")


async def test_mounted_skills_that_need_different_environments(rig: Rig) -> None:
    rig.skills.add(a_skill("table", environment="data"))
    rig.skills.add(a_skill("other", environment="ml"))
    with pytest.raises(InvalidInput, match="'table' needs data, 'other' needs ml; name one"):
        await rig.run(mount_skills=["table", "other"])


async def test_one_interpreter_for_each_principal_where_policy_says_so(rig: Rig) -> None:
    await rig.run()
    assert rig.backend.started[-1][0].group == ""
    rig.configure(policy={"separate_principals": True})
    await rig.run()
    assert rig.backend.started[-1][0].group == "local"
