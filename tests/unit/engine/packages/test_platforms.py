"""Packages for sandboxes that have another interpreter, or another platform, than this server."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.errors import InvalidInput, SandboxFault
from skillyard.domain.package.environment import Wanted
from skillyard.domain.package.platforms import Platform, own
from skillyard.domain.sandbox.spec import EnvironmentRef, SandboxSpec, Stream
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.packages.build import BuildLog
from skillyard.engine.packages.building import SandboxBuilder
from skillyard.engine.packages.environment import BuildFailed, platform_name
from skillyard.engine.packages.steps import explained
from skillyard.testing.twin_sandbox.process import TwinProcess
from tests.unit.engine.conftest import CODE, Rig
from tests.unit.engine.packages.fake_builder import VERSION
from tests.unit.engine.packages.test_approved_packages import approved, executed, given

pytestmark = pytest.mark.anyio

MACHINE = own().machine
THERE, MUSL = (Platform("3.13", MACHINE, glibc, patch=2) for glibc in (36, 0))


@pytest.fixture
def code(rig: Rig) -> Rig:
    """A rig whose code may have packages."""
    rig.configure(
        packages=PackagesSettings(run_code=("*",), source=("numpy",)),
        environments={"base": EnvironmentSettings(), "mine": EnvironmentSettings(packages=("rich",))},
    )
    return rig


def environment(rig: Rig) -> EnvironmentRef:
    return rig.backend.started[-1].spec.environment


async def run(rig: Rig, **params: Any) -> EnvironmentRef:
    done = await rig.run(None, **params)
    assert "error" not in done, done["error"]
    return environment(rig)


async def test_each_platform_has_an_environment_of_its_own(code: Rig) -> None:
    seen = []
    for there in (None, THERE, MUSL, THERE, None):
        code.backend.platform = there
        seen.append(await run(code, packages=["numpy"]))
        assert seen[-1].platform == there
    assert seen[0].digest == seen[4].digest
    assert seen[1].digest == seen[3].digest
    assert len({ref.digest for ref in seen}) == 3
    assert code.builder.platforms == [None, THERE, MUSL]
    assert len(code.builder.resolved) == 3


async def test_a_named_environment_is_built_for_the_sandbox(code: Rig) -> None:
    code.backend.platform = THERE
    named, more = await run(code, environment="mine"), await run(code, environment="mine", packages=["numpy"])
    assert {named.platform, more.platform} == {THERE}
    assert (await run(code, environment="mine", packages=["rich"])).digest == named.digest
    assert (await run(code, environment="base")).packages is None
    assert code.builder.platforms == [THERE, THERE]


async def test_methods_show_and_build_what_runs_get(code: Rig) -> None:
    code.backend.platform = THERE
    built = (await code.call("environments.build", environment="mine"))["environment"]
    assert built["platform"] == THERE.name
    assert (await run(code, environment="mine")).digest == built["digest"]
    listed = await code.call("environments.list")
    assert [one["digest"] for one in listed["named"] if one["name"] == "mine"] == [built["digest"]]
    code.backend.platform = None
    assert (await code.call("environments.show", environment="mine"))["environment"]["state"] == "absent"
    assert (await code.call("environments.build", environment="mine"))["environment"]["platform"] == platform_name()


async def test_an_approval_holds_its_packages_on_every_platform(rig: Rig) -> None:
    await approved(rig, "acme.asks", "numpy")
    assert await given(rig, await executed(rig)) == {"numpy": VERSION}
    rig.backend.platform, rig.builder.version = THERE, "6.6.6"
    assert await given(rig, await executed(rig)) == {"numpy": VERSION}
    assert environment(rig).platform == THERE
    rig.builder.deaf = True
    rig.backend.platform = MUSL
    assert "was approved as" in (await executed(rig))["error"]["message"]


async def test_names_that_are_denied_are_denied_on_every_platform(code: Rig) -> None:
    code.configure(packages=PackagesSettings(run_code=("*",), allow=("*", "!torch")))
    code.backend.platform, code.builder.draws = THERE, {"learns": "torch"}
    for package in ("torch", "learns"):
        refused = await code.run(None, packages=[package])
        assert refused["error"]["type"] == "PolicyRefused"
    assert code.backend.started == []


@pytest.mark.parametrize("fault", [InvalidInput("packages", "are had for CPython"), SandboxFault("it is gone")])
async def test_who_cannot_have_them_is_told_why(code: Rig, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    async def refuse(_: SandboxSpec) -> None:
        raise fault

    monkeypatch.setattr(code.backend, "platform_of", refuse)
    with pytest.raises(type(fault), match=re.escape(str(fault))):
        await code.run(None, packages=["numpy"])
    assert code.builder.resolved == []
    await run(code)  # nobody asks where no packages are wanted


@pytest.mark.parametrize(
    ("sandbox", "wanted", "told"),
    [
        (None, None, None),
        (None, THERE, ["3.13", f"{MACHINE}-manylinux_2_36"]),
        (THERE, MUSL, ["3.13", f"{MACHINE}-unknown-linux-musl"]),
        (THERE, THERE, ["3.13", f"{MACHINE}-manylinux_2_36"]),
        (THERE, None, [own().python, own().uv]),
    ],
)
async def test_uv_is_told_of_each_other_platform(
    rig: Rig, tmp_path: Path, sandbox: Platform | None, wanted: Platform | None, told: list[str] | None
) -> None:
    """And builds nothing from source for it, whatever the setting says."""
    asked: dict[str, Any] = {}

    async def program(process: TwinProcess) -> None:
        text = b""
        while piece := await process.read():
            text += piece
        asked.update(json.loads(text))
        process.write(f"numpy==1.0 --hash=sha256:{'0' * 64}\n".encode(), Stream.STDOUT)

    rig.configure(packages=PackagesSettings(wheels=tmp_path, offline=True, source=("numpy",)))
    rig.backend.platform, rig.backend.script = sandbox, program
    lock = await SandboxBuilder(rig.app.steps).resolve(Wanted(("numpy",), platform=wanted), BuildLog())
    assert asked["other"] == told
    assert asked["source"] == ([] if told else ["numpy"])
    assert lock.platform == (f"{platform_name()} source:numpy" if wanted is None else wanted.name)


async def test_no_build_works_where_uv_does_not_run(rig: Rig, tmp_path: Path) -> None:
    rig.configure(packages=PackagesSettings(wheels=tmp_path, offline=True))
    rig.backend.platform = MUSL
    with pytest.raises(BuildFailed, match="'twin' has another processor or C library than this server's uv"):
        await SandboxBuilder(rig.app.steps).resolve(Wanted(("numpy",)), BuildLog())
    assert rig.backend.started == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Because a==1.0 has no usable wheels and you require a, we",
            "only wheels are taken for Python 3.13 on ",
        ),
        (
            "Because a==1.0 has no wheels with a matching Python ABI tag (e.g., `cp313`)",
            "no wheel for Python 3.13 on ",
        ),
    ],
)
def test_a_package_without_a_wheel_is_refused_with_the_remedy(text: str, said: str) -> None:
    told = explained(PackagesSettings(), Ending(Outcome.EXIT, code=1), text, {}, THERE)
    assert said in told
    assert "packages.source" not in told


async def test_an_image_that_was_replaced_meanwhile_gets_no_packages_of_the_other(code: Rig) -> None:
    ref = await run(code, packages=["numpy"])
    code.backend.platform = THERE
    with pytest.raises(InvalidInput, match=r"are for this server's Python, and the sandbox has Python 3\.13 on "):
        await code.backend.create(SandboxSpec(environment=ref), "other")


@pytest.mark.parametrize(("wants", "fits"), [("==3.13.2", True), (">=3.14", False)])
async def test_code_that_wants_a_python_is_held_to_that_of_its_sandbox(rig: Rig, wants: str, fits: bool) -> None:
    script = f'# /// script\n# requires-python = "{wants}"\n# ///\n{CODE}'
    rig.backend.platform = THERE
    if fits:
        await run(rig, code=script)
        rig.backend.platform, wants = None, f"Python {platform.python_version()}"
    with pytest.raises(InvalidInput, match="its sandbox has Python 3.13.2" if not fits else wants):
        await rig.run(None, code=script)


def test_a_lock_names_its_platform() -> None:
    digests = {Wanted(("a",), platform=platform).digest for platform in (None, THERE, MUSL, own())}
    assert len(digests) == 4
