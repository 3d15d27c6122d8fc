"""``skills.run_cmd`` over the sandbox twin: the request to the sandbox, and the answer to the caller."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.config.commands import CommandSettings
from skillyard.domain.errors import BlobNotFound, Forbidden, InvalidInput, QuotaExceeded, SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Needs, SecretNeed, SkillKind
from skillyard.domain.work.record import Ending, Outcome, RunKind, RunStatus
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, frame, js, result

pytestmark = pytest.mark.anyio
DONE = result({"exit_code": 0})
BOB = Principal("bob")


@pytest.fixture(autouse=True)
def skill(rig: Rig) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))


async def run_cmd(rig: Rig, script: Any = None, /, **params: Any) -> dict[str, Any]:
    rig.backend.script = script or playing(DONE)
    return await rig.call("skills.run_cmd", **{"skill_name": "acme.notes", "command": "ls", **params})


def file(n: int, path: str, data: bytes) -> bytes:
    piece = frame(b"D", n.to_bytes(4, "big") + data) if data else b""
    end = frame(b"E", js({"n": n, "size": len(data)}))
    return frame(b"B", js({"n": n, "kind": "text/plain", "path": path})) + piece + end


async def test_a_command_is_a_run_with_streams_apart(rig: Rig) -> None:
    ran = await run_cmd(rig, playing(DONE, log=b"out\n\x002err\n\x001more\n"))
    assert (ran["status"], ran["reason"], ran["exit_code"]) == ("succeeded", "exit", 0)
    assert (ran["stdout"], ran["stderr"]) == ("out\nmore\n", "err\n")
    assert (ran["stdout_truncated"], ran["stderr_truncated"], ran["error_message"]) == (False, False, "")
    assert (ran["workdir"], ran["skill_root"]) == ("skill", "/skills/acme.notes")
    assert ran["version_hash"] == "sha256-of-acme.notes-1.0.0"
    assert ran["usage"]["cpu_ms"] == 1.0
    record = await rig.record(ran)
    assert (record.kind, record.skill, record.version) == (RunKind.COMMAND, "acme.notes", "1.0.0")
    assert set(record.digests) == {"args", "command", "environment", "skill", "skills"}
    assert record.limits["timeout_ms"] == 60_000
    assert record.logs_preview == "out\nerr\nmore\n"
    logs = await rig.call("runs.logs", run_id=ran["run_id"])
    assert logs["content"] == "out\nerr\nmore\n"
    assert rig.backend.held == {}


async def test_the_sandbox_gets_the_command_as_it_is(rig: Rig) -> None:
    odd = {"ODD": "$(id) `id` \\"}
    await run_cmd(rig, command="echo $ODD", env=odd, workdir="data", outputs=[{"path": "a/*.txt"}], timeout_sec=2.5)
    spec, request, timeout = rig.backend.started[0]
    assert timeout == 2500
    assert [mount.target for mount in spec.mounts] == ["/skills/acme.notes"]
    assert (request["op"], request["code"]) == ("command", None)
    assert request["command"] == {
        "skill": "acme.notes", "view": True, "language": "bash", "text": "echo $ODD", "workdir": "data", "env": odd,
        "inputs": [],
        "outputs": ["data/a/*.txt"],
    }  # fmt: skip
    assert request["files"] == {"count": 100, "each_bytes": 20 << 20, "bytes": 50 << 20}


@pytest.mark.parametrize("code", [1, 42, 255])
async def test_an_exit_code_is_an_answer_with_the_same_fields(rig: Rig, code: int) -> None:
    good = await run_cmd(rig, playing(DONE, log=b"said"))
    ran = await run_cmd(rig, playing(result({"exit_code": code}), log=b"said"))
    assert (ran["status"], ran["reason"], ran["exit_code"], ran["stdout"]) == ("failed", "exit", code, "said")
    assert ran["error_message"] == f"the command ended with exit code {code}"
    assert ran.keys() == good.keys()
    assert (await rig.record(ran)).status is RunStatus.FAILED


async def test_a_timeout_keeps_the_output_so_far(rig: Rig) -> None:
    async def script(process: TwinProcess) -> None:
        process.log(b"begun\x002late")
        process.end(Ending(Outcome.TIMEOUT))

    rig.backend.left = playing(file(1, "0/skill/part", b"half"), result({}))
    ran = await run_cmd(rig, script, outputs=[{"path": "part"}, {"path": "none"}])
    assert (ran["status"], ran["reason"], ran["exit_code"]) == ("failed", "timeout", -1)
    assert (ran["stdout"], ran["stderr"]) == ("begun", "late")
    assert "timeout_sec" in ran["error_message"]
    assert [made["path"] for made in ran["created_artifacts"]] == ["skill/part"]
    assert ran["output_errors"] == [{"path": "skill/none", "error": "not found"}]


async def test_a_command_killed_for_memory_says_so(rig: Rig) -> None:
    async def script(process: TwinProcess) -> None:
        process.write(result({"exit_code": 137, "signal": 9}))
        process.end(Ending(Outcome.EXIT, code=0, hits=frozenset({"memory"})))

    ran = await run_cmd(rig, script)
    assert (ran["status"], ran["reason"], ran["exit_code"]) == ("failed", "memory", 137)


@pytest.mark.parametrize("said", [{}, {"exit_code": True}, {"exit_code": -1}, {"exit_code": 256}, {"exit_code": "0"}])
async def test_an_end_in_no_known_form_is_no_success(rig: Rig, said: dict[str, Any]) -> None:
    ran = await run_cmd(rig, playing(result(said)))
    assert (ran["status"], ran["exit_code"]) == ("failed", -1)


async def test_a_program_that_says_nothing_is_no_success(rig: Rig) -> None:
    ran = await run_cmd(rig, playing(log=b"x"))
    assert (ran["status"], ran["exit_code"], ran["stdout"]) == ("failed", -1, "x")


async def test_the_answer_has_the_true_end_of_each_stream(rig: Rig) -> None:
    rig.configure(commands={"stdout_bytes": 10, "stderr_bytes": 5})
    ran = await run_cmd(rig, playing(DONE, log=b"0123456789abc" * 1000 + b"\x002error"))
    assert (ran["stdout"], ran["stdout_truncated"]) == ("3456789abc", True)
    assert (ran["stderr"], ran["stderr_truncated"]) == ("error", False)
    assert len(await rig.content(ran["logs_blob"])) > 13_000


async def test_artifacts_have_their_names_and_errors_their_reasons(rig: Rig) -> None:
    skipped = [["2/skill/link", "kind"], ["3/skill/big", "size"]]
    notes = frame(b"N", js({"skipped": skipped}))
    files = file(1, "0/skill/a.csv", b"x,y") + file(2, "1/skill/p/q.txt", b"") + file(3, "99/odd", b"?")
    asked = [
        {"path": "a.csv", "save_as": "report.csv"}, {"path": "p/*", "save_as": "all/"}, {"path": "link"},
        {"path": "big"}, {"path": "none"},
    ]  # fmt: skip
    ran = await run_cmd(rig, playing(files + notes + DONE), outputs=asked)
    named = [(made["path"], made["filename"], made["mime"], made["size"]) for made in ran["created_artifacts"]]
    assert named == [("skill/a.csv", "report.csv", "text/csv", 3), ("skill/p/q.txt", "all/q.txt", "text/plain", 0)]
    assert await rig.content(ran["created_artifacts"][0]["artifact_id"]) == b"x,y"
    errors = {error["path"]: error["error"] for error in ran["output_errors"]}
    assert errors["skill/none"] == "not found"
    assert errors["skill/link"] == "it is not a regular file"
    assert "larger" in errors["skill/big"]


async def test_limits_above_their_maximum_are_refused_by_name(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match=r"timeout_sec: must be at most 120, .*commands\.max_timeout_s"):
        await run_cmd(rig, timeout_sec=121)
    with pytest.raises(InvalidInput, match=r"limits\.memory_mb"):
        await run_cmd(rig, limits={"memory_mb": 1 << 20})
    assert rig.backend.started == []
    with pytest.raises(InvalidInput, match="max_timeout_s"):
        CommandSettings(timeout_s=121)


async def test_inputs_are_the_callers_and_bounded(rig: Rig) -> None:
    mine = (await rig.call("create_blob", content="a,b", kind="text/csv"))["blob_id"]
    theirs = (await rig.call("create_blob", BOB, content="secret", kind="text/csv"))["blob_id"]
    ran = await run_cmd(rig, inputs=[{"artifact_id": mine, "mount_path": "in/data.csv"}])
    spec, request, _ = rig.backend.started[-1]
    assert request["command"]["inputs"] == [[mine, "skill/in/data.csv"]]
    assert f"/blobs/{mine}" in [mount.target for mount in spec.mounts]
    assert (await rig.record(ran)).digests["blobs"].keys() == {mine}
    alice = Principal("alice", frozenset({Scope.RUN_CODE, Scope.BLOBS}))
    for blob_id in (theirs, "blob:none"):
        with pytest.raises(BlobNotFound, match=r"inputs\[0\]\.artifact_id"):
            await rig.call(
                "skills.run_cmd", alice, skill_name="acme.notes", command="ls",
                inputs=[{"artifact_id": blob_id, "mount_path": "x"}],
            )  # fmt: skip
    rig.configure(commands={"input_bytes": 2})
    with pytest.raises(QuotaExceeded, match=r"commands\.input_bytes allows 2"):
        await run_cmd(rig, inputs=[{"artifact_id": mine, "mount_path": "x"}])
    rig.configure(commands={"input_bytes": 4, "inputs_bytes": 5})
    with pytest.raises(QuotaExceeded, match=r"commands\.inputs_bytes allows 5"):
        await run_cmd(rig, inputs=[{"artifact_id": mine, "mount_path": path} for path in ("x", "y")])


async def test_outputs_are_held_to_their_limits_by_the_host_too(rig: Rig) -> None:
    rig.configure(commands={"output_bytes": 2})
    ran = await run_cmd(rig, playing(file(1, "0/skill/a", b"abc"), DONE), outputs=[{"path": "a"}])
    assert (ran["status"], ran["created_artifacts"]) == ("failed", [])


async def test_a_command_is_code_and_gets_what_policy_leaves_to_code(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = "tok-0123456789"
    rig.skills.add(a_skill("acme.crm", needs=Needs(secrets=(SecretNeed("TOKEN"),))))
    await run_cmd(rig, skill_name="acme.crm")
    assert rig.backend.started[-1][1]["env"] == {}
    rig.configure(policy={"run_code_secrets": "mounted"})
    ran = await run_cmd(rig, playing(DONE, log=b"tok-01\x002x\x00123456789"), skill_name="acme.crm")
    assert rig.backend.started[-1][1]["env"] == {"TOKEN": "tok-0123456789"}
    assert "tok-" not in str(ran)
    hidden = await run_cmd(rig, skill_name="acme.crm", env={"TOKEN": "mine"})
    assert (hidden["status"], hidden["exit_code"]) == ("failed", -1)
    assert "TOKEN would hide" in hidden["error_message"]


async def test_secrets_are_taken_out_across_streams_and_pieces(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = "tok-0123456789"
    rig.skills.add(a_skill("acme.crm", needs=Needs(secrets=(SecretNeed("TOKEN"),))))
    rig.configure(policy={"run_code_secrets": "mounted"})

    async def script(process: TwinProcess) -> None:
        for piece in (b"a tok-01", b"\x002noise\x001", b"234", b"56789 z"):
            process.log(piece)
        process.write(DONE)

    ran = await run_cmd(rig, script, skill_name="acme.crm")
    assert (ran["stdout"], ran["stderr"]) == ("a [redacted] z", "noise")
    assert b"tok-" not in await rig.content(ran["logs_blob"])


async def test_who_may_not_run_code_runs_no_command(rig: Rig) -> None:
    with pytest.raises(Forbidden):
        await rig.call(
            "skills.run_cmd", Principal("eve", frozenset({Scope.EXECUTE})), skill_name="acme.notes", command="ls"
        )
    with pytest.raises(SkillNotFound, match="skill_name"):
        await rig.call("skills.run_cmd", Principal("eve", skills=("other.*",)), skill_name="acme.notes", command="ls")


async def test_a_command_belongs_to_an_agent_of_its_token(rig: Rig) -> None:
    crawler = Principal("alice", agent="crawler", agents=("crawler-*",))
    for named, agent in ((None, "crawler"), ("crawler-2", "crawler-2")):
        params = {"skill_name": "acme.notes", "command": "ls"} | ({"agent": named} if named else {})
        ran = await rig.call("skills.run_cmd", crawler, **params)
        assert (await rig.record(ran)).agent == agent
    plain = Principal("bob", frozenset({Scope.RUN_CODE}))
    with pytest.raises(Forbidden, match="agent"):
        await rig.call("skills.run_cmd", plain, skill_name="acme.notes", command="ls", agent="crawler")


async def test_a_repeated_call_with_its_key_gets_the_first_answer(rig: Rig) -> None:
    first = await run_cmd(rig, playing(DONE, log=b"once"), idempotency_key="k1")
    again = await run_cmd(rig, playing(DONE, log=b"twice"), idempotency_key="k1")
    assert (again["run_id"], again["stdout"]) == (first["run_id"], "once")
    assert len(rig.backend.started) == 1
