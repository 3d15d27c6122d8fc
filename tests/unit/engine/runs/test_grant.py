"""What a run may have: schemas, network, packages, secrets. Refusals are failed runs with a record."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from skillyard.config.packages import PackagesSettings
from skillyard.domain.skill.skill import Needs, SecretNeed, SkillSource
from skillyard.domain.work.record import RunStatus
from skillyard.engine.observer import RunEnded, SecretsGiven
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, raises, result

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["n"],
    "additionalProperties": False,
}


async def refused(rig: Rig, type_: str, said: str, method: str = "execute_skill", **params: Any) -> None:
    run = await rig.call(method, **params)
    assert (run["status"], run["error"]["type"]) == ("failed", type_)
    assert said in run["error"]["message"]
    assert rig.backend.started == []
    record = await rig.record(run)
    assert (record.status, record.outcome, record.started_at) == (RunStatus.FAILED, None, None)
    assert rig.of(RunEnded)[-1].record == record


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, '"n" is a required property'),
        ({"n": 0}, "args.n: 0 is less than"),
        ({"n": "1"}, 'args.n: "1" is not of type "integer"'),
        ({"n": 1, "x": 2}, "Additional properties"),
        ({"n": 1, "tags": ["a", 5]}, "args.tags[1]: 5 is not of type"),
    ],
)
async def test_args_that_fail_the_input_schema(rig: Rig, args: dict[str, Any], said: str) -> None:
    rig.skills.add(a_skill("a.b", inputs=SCHEMA))
    await refused(rig, "ValidationError", said, name="a.b", args=args)


async def test_args_that_pass_the_input_schema(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", inputs=SCHEMA))
    assert (await rig.call("execute_skill", name="a.b", args={"n": 1, "tags": ["x"]}))["status"] == "completed"


async def test_large_args_are_checked_all_the_same(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", inputs=SCHEMA))
    tags = ["x" * 100] * 1000
    assert (await rig.call("execute_skill", name="a.b", args={"n": 1, "tags": tags}))["status"] == "completed"
    run = await rig.call("execute_skill", name="a.b", args={"n": 1, "tags": [*tags, 5]})
    assert "args.tags[1000]" in run["error"]["message"]
    assert len(run["error"]["message"]) < 1000


async def test_a_schema_that_points_elsewhere_is_not_followed(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", inputs={"$ref": "http://127.0.0.1:1/schema.json"}))
    await refused(rig, "ValidationError", "schema cannot be applied", name="a.b")


async def test_output_that_fails_its_schema(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", outputs=SCHEMA))
    rig.backend.script = playing(result({"n": "many"}))
    run = await rig.call("execute_skill", name="a.b")
    assert (run["status"], run["error"]["type"]) == ("failed", "ValidationError")
    assert "output.n" in run["error"]["message"]
    rig.backend.script = playing(result({"n": 2}))
    assert (await rig.call("execute_skill", name="a.b"))["output"] == {"n": 2}


async def test_network_that_cannot_be_given_is_refused_by_name(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", needs=Needs(network=("api.x.com", "*.y.com:443"))))
    await refused(rig, "PolicyRefused", "api.x.com, *.y.com:443", name="a.b")


async def test_packages_that_the_environment_lacks_are_built(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", needs=Needs(dependencies=("requests>=2", "rich"))))
    for _ in range(2):
        run = await rig.call("execute_skill", name="a.b")
        assert run["status"] == "completed"
    assert rig.builder.resolved == [("requests>=2", "rich")]
    environment = rig.backend.started[-1][0].environment
    assert environment.packages is not None
    packages = environment.packages.path
    assert packages is not None
    assert (packages / "requests" / "__init__.py").is_file()
    assert (await rig.record(run)).digests["environment"] == environment.digest == packages.name


async def test_packages_come_on_top_of_the_named_environment(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", environment="data", needs=Needs(dependencies=("rich",))))
    rig.configure(packages=PackagesSettings(run_code=("rich", "six")))
    await rig.call("execute_skill", name="a.b")
    assert rig.builder.resolved == [("numpy", "pandas", "rich")]
    await rig.run(mount_skills=["a.b"], packages=["six"])
    assert rig.builder.resolved[1:] == [("numpy", "pandas", "rich", "six")]


async def test_packages_that_policy_does_not_admit_are_refused_by_name(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", needs=Needs(dependencies=("requests>=2", "rich"))))
    rig.configure(packages=PackagesSettings(allow=("*", "!requests")))
    await refused(rig, "PolicyRefused", "'a.b' asks for the packages 'requests': packages.allow", name="a.b")
    rig.skills.add(replace(a_skill("c.d", needs=Needs(dependencies=("rich",))), source=SkillSource.PUBLISHED))
    await refused(rig, "PolicyRefused", "'rich': packages.run_code admits none of them, and 'c.d'", name="c.d")
    await refused(rig, "PolicyRefused", "packages.run_code", "run_code", language="python", code="x", packages=["six"])
    assert rig.builder.resolved == []


async def test_what_is_no_requirement_is_not_installed(rig: Rig) -> None:
    for need in ("pandas @ https://x", "-r /etc/passwd", ""):
        rig.skills.add(a_skill("a.b", needs=Needs(dependencies=(need,))))
        await refused(rig, "PolicyRefused", "is not a valid requirement", name="a.b")
    assert rig.builder.resolved == []


@pytest.mark.parametrize(
    ("need", "met"),
    [
        ("numpy", True),
        ("NumPy>=1.2,<2", True),
        ("pandas==1.5.0", True),
        ("pandas~=1.4", True),
        ("pandas==1.*", True),
        ("pandas!=1.5", False),
        ("pandas>=2", False),
        ("pandas[extra]>=1.5", False),
        ("pandas; python_version > '3'", False),
    ],
)
async def test_packages_that_the_environment_has(rig: Rig, need: str, met: bool) -> None:
    """Nothing is resolved for what a ready environment has."""
    rig.skills.add(a_skill("a.b", environment="data", needs=Needs(dependencies=(need,))))
    await rig.call("environments.build", environment="data")
    run = await rig.call("execute_skill", name="a.b")
    assert run["status"] == "completed"
    assert len(rig.builder.resolved) == (1 if met else 2)


def secret_skill(name: str = "a.b", *secrets: str, optional: tuple[str, ...] = ()) -> Any:
    needs = (*(SecretNeed(s) for s in secrets), *(SecretNeed(s, optional=True) for s in optional))
    return a_skill(name, needs=Needs(secrets=needs))


async def test_declared_secrets_reach_the_executed_skill(rig: Rig) -> None:
    rig.skills.add(secret_skill("a.b", "TOKEN", optional=("EXTRA", "ABSENT")))
    rig.secrets.values |= {"TOKEN": "tok-123456", "EXTRA": "more-secret", "OTHER": "not declared"}
    run = await rig.call("execute_skill", name="a.b")
    assert rig.backend.started[0][1]["env"] == {"TOKEN": "tok-123456", "EXTRA": "more-secret"}
    [event] = rig.of(SecretsGiven)
    assert (event.run_id, event.names, event.skill) == (run["run_id"], ("EXTRA", "TOKEN"), "a.b")
    assert "tok-123456" not in repr(rig.events)


async def test_a_missing_secret_is_refused_before_start(rig: Rig) -> None:
    rig.skills.add(secret_skill("a.b", "TOKEN", "SECOND"))
    rig.secrets.values["SECOND"] = "x"
    await refused(rig, "MissingSecret", "TOKEN", name="a.b")


async def test_code_gets_no_secrets_by_default(rig: Rig) -> None:
    rig.skills.add(secret_skill("a.b", "TOKEN"))
    rig.secrets.values["TOKEN"] = "tok-123456"
    run = await rig.run(mount_skills=["a.b"])
    assert run["status"] == "completed"
    assert rig.backend.started[0][1]["env"] == {}


async def test_code_gets_the_secrets_of_its_mounts_where_policy_says_so(rig: Rig) -> None:
    rig.configure(policy={"run_code_secrets": "mounted"})
    rig.skills.add(secret_skill("a.b", "TOKEN"))
    rig.skills.add(secret_skill("c.d", optional=("TOKEN", "OTHER")))
    await refused(rig, "MissingSecret", "TOKEN", "run_code", language="python", code="x", mount_skills=["c.d", "a.b"])
    rig.secrets.values |= {"TOKEN": "tok-123456", "OTHER": "oth-123456"}
    await rig.run(mount_skills=["c.d", "a.b"])
    assert rig.backend.started[0][1]["env"] == {"TOKEN": "tok-123456", "OTHER": "oth-123456"}


async def test_mounting_a_skill_beside_the_executed_one_gives_no_secrets_of_it(rig: Rig) -> None:
    rig.skills.add(secret_skill("a.b", "TOKEN"))
    rig.skills.add(a_skill("plain"))
    rig.secrets.values["TOKEN"] = "tok-123456"
    await rig.call("execute_skill", name="plain", mount_skills=["a.b"])
    assert rig.backend.started[0][1]["env"] == {}


SECRET = "s3cr3t/Value+123"


async def leaky(rig: Rig, script: Any) -> tuple[dict[str, Any], str]:
    """A run of a skill that has the secret, and everything that was kept of it."""
    rig.skills.add(secret_skill("a.b", "TOKEN"))
    rig.secrets.values["TOKEN"] = SECRET
    rig.backend.script = script
    run = await rig.call("execute_skill", name="a.b")
    kept = json.dumps([run, (await rig.record(run)).as_dict()])
    if "logs_blob" in run:
        kept += (await rig.content(run["logs_blob"])).decode()
    return run, kept


async def test_secrets_leave_neither_by_output_nor_summary(rig: Rig) -> None:
    value = {"summary": f"used {SECRET}", "list": [f"x{SECRET}y", {SECRET: 1}], "b64": _b64(SECRET)}
    run, kept = await leaky(rig, playing(result(value)))
    assert run["summary"] == "used [redacted]"
    assert run["output"]["list"] == ["x[redacted]y", {"[redacted]": 1}]
    assert SECRET not in kept
    assert _b64(SECRET) not in kept


async def test_secrets_leave_not_by_a_spilled_output(rig: Rig) -> None:
    run, kept = await leaky(rig, playing(result({"x": SECRET * 800})))
    assert run["output"]["truncated"] is True
    assert SECRET.encode() not in await rig.content(run["output"]["blob_id"])
    assert SECRET not in kept


async def test_secrets_leave_not_by_logs_wherever_they_are_cut(rig: Rig) -> None:
    async def script(process: TwinProcess) -> None:
        import asyncio

        for character in f"token {SECRET}, {_b64('xx' + SECRET + 'yy')} end\n":
            process.log(character.encode())
            await asyncio.sleep(0)
        process.write(result({}))

    run, kept = await leaky(rig, script)
    assert run["logs_preview"].startswith("token [redacted], ")
    assert run["logs_preview"].endswith(" end\n")
    assert SECRET not in kept
    assert _b64("xx" + SECRET + "yy")[4:-6] not in kept


async def test_secrets_leave_not_by_errors(rig: Rig) -> None:
    run, kept = await leaky(rig, playing(raises("ValueError", f"bad {SECRET}", f"File x: {SECRET}\n" * 300)))
    assert run["error"]["message"] == "bad [redacted]"
    assert run["summary"] == "ValueError: bad [redacted]"
    assert SECRET not in kept


async def test_secrets_leave_not_by_the_logs_of_a_working_run(rig: Rig) -> None:
    pages: list[dict[str, Any]] = []

    async def script(process: TwinProcess) -> None:
        process.log(f"{SECRET} and a long line behind it, longer than any form of the secret {'.' * 200}".encode())
        pages.append(await rig.call("runs.logs", run_id=process.id))
        process.write(result({}))

    await leaky(rig, script)
    assert pages[0]["content"].startswith("[redacted] and")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
