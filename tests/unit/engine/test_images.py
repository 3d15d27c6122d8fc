"""Images that skills and requests name: by digest, where policy admits them and the isolation takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import IdempotencyConflict, InvalidInput, ProtectionMissing
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.domain.skill.skill import Skill
from skillyard.domain.work.record import RunKind
from skillyard.engine.app import App
from skillyard.engine.runs.request import RunRequest, from_stored
from skillyard.engine.sessions.sandbox import fit_of
from skillyard.sandbox.registry import nature
from skillyard.testing.twin_sandbox import TwinBackend
from skillyard.testing.twin_sandbox.backend import TwinSandbox
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill, succeed
from tests.unit.engine.skills.needing import needs_of, rows
from tests.unit.engine.test_isolation import engine_over, named

pytestmark = pytest.mark.anyio
ONE, TWO = f"sha256:{'1' * 64}", f"reg.test:5000/team/py@sha256:{'2' * 64}"
BY_LANGUAGE = {"bash": "shells:1"}


class Imaging(TwinBackend):
    """A backend of images, whose sandboxes tell the digest of theirs."""

    def __init__(self) -> None:
        super().__init__(succeed)
        self.name, self.nature = "oci", nature("oci")

    def image_of(self, spec: SandboxSpec) -> str:
        return spec.image or BY_LANGUAGE.get(spec.language, "usual:1")

    async def create(self, spec: SandboxSpec, key: str) -> TwinSandbox:
        sandbox = await super().create(replace(spec, image=""), key)
        sandbox.spec = spec
        vars(sandbox)["image"] = f"sha256:{self.image_of(spec)[-64:]}"
        return sandbox


async def over(rig: Rig, *backends: TwinBackend, **policy: Any) -> App:
    return await engine_over(rig, *backends, **{"isolation": backends[0].name, "images": (ONE, TWO), **policy})


def in_image(name: str, image: str) -> Skill:
    skill = a_skill(name)
    assert skill.runtime is not None
    return replace(skill, runtime=replace(skill.runtime, image=image))


async def test_a_request_gets_the_image_that_it_names_and_the_record_its_digest(rig: Rig) -> None:
    backend = Imaging()
    await over(rig, backend)
    run = await rig.run(image=TWO)
    assert (await rig.record(run)).digests["image"] == f"sha256:{'2' * 64}"
    assert backend.started[0].spec.image == TWO
    assert (await rig.record(await rig.run())).digests["image"] == "sha256:usual:1"


@pytest.mark.parametrize("image", ["usual:1", "sha256:1", f"../../containers/x@{ONE}", f"{ONE}/json?x=", "", ONE[:-1]])
async def test_an_image_that_is_not_named_by_digest_is_refused(rig: Rig, image: str) -> None:
    await over(rig, Imaging())
    with pytest.raises(InvalidInput, match="image: must name the image by digest"):
        await rig.run(image=image)


async def test_an_image_that_policy_does_not_admit_is_refused(rig: Rig) -> None:
    await over(rig, Imaging(), images=(TWO,))
    with pytest.raises(InvalidInput, match=r"image: must be one that policy\.images admits"):
        await rig.run(image=ONE)
    rig.skills.skills["s"] = [in_image("s", ONE)]
    with pytest.raises(InvalidInput, match=r"image: must be one that policy\.images admits"):
        await rig.call("execute_skill", name="s", args={})
    assert await rig.app.ports.records.list(None) == []


async def test_policy_admits_images_by_digest_alone(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match=r"policy\.images.*must name the image by digest"):
        await over(rig, Imaging(), images=("usual:1",))


async def test_a_skill_gets_its_image_and_the_record_says_so(rig: Rig) -> None:
    backend = Imaging()
    rig.skills.skills["s"] = [in_image("s", ONE)]
    await over(rig, backend)
    run = await rig.call("execute_skill", name="s", args={})
    assert rows(await needs_of(rig, run)) == [("image", ONE, ONE, "")]
    await rig.run(mount_skills=["s"])
    await rig.run(mount_skills=["s"], image=ONE)
    assert [started.spec.image for started in backend.started] == [ONE] * 3


async def test_two_images_for_one_sandbox_are_refused_by_name(rig: Rig) -> None:
    rig.skills.skills |= {"a": [in_image("a", ONE)], "b": [in_image("b", TWO)]}
    await over(rig, Imaging())
    with pytest.raises(InvalidInput, match=rf"image: must be one: 'b' needs {TWO}, 'a' needs {ONE}"):
        await rig.run(mount_skills=["a", "b"])
    with pytest.raises(InvalidInput, match="the request names"):
        await rig.run(mount_skills=["a"], image=TWO)


async def test_an_isolation_that_makes_sandboxes_of_images_is_found(rig: Rig) -> None:
    oci = Imaging()
    await over(rig, named("native"), oci, isolations=frozenset({"oci"}))
    assert (await rig.run(image=ONE))["isolation"] == "oci"
    assert (await rig.run())["isolation"] == "native"
    with pytest.raises(InvalidInput, match="image: the isolation 'native' takes none"):
        await rig.run(image=ONE, isolation="native")


async def test_where_no_isolation_takes_images_the_run_is_refused(rig: Rig) -> None:
    await over(rig, named("native"), Imaging())
    with pytest.raises(ProtectionMissing, match=r"has images; name one in policy\.isolations"):
        await rig.run(image=ONE)


async def test_the_language_of_a_command_decides_about_the_image(rig: Rig) -> None:
    backend = Imaging()
    rig.skills.skills["s"] = [a_skill("s")]
    await over(rig, backend)
    await rig.call("skills.run_cmd", skill_name="s", command="true")
    await rig.call("skills.run_cmd", skill_name="s", command="pass", language="python", image=ONE)
    assert [(each.spec.language, backend.image_of(each.spec)) for each in backend.started] == [
        ("bash", "shells:1"),
        ("python", ONE),
    ]


async def test_a_session_needs_another_sandbox_for_another_image_alone(rig: Rig) -> None:
    offer = (await over(rig, Imaging())).backends.default
    assert offer is not None
    python, node, bash = (SandboxSpec(language=language) for language in ("python", "javascript", "bash"))
    assert fit_of(offer, python) == fit_of(offer, node)
    assert fit_of(offer, python) != fit_of(offer, bash)
    assert fit_of(offer, python) != fit_of(offer, replace(python, image=ONE))


async def test_the_image_is_part_of_what_an_idempotency_key_is_bound_to(rig: Rig) -> None:
    await over(rig, Imaging())
    await rig.run(idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="other parameters"):
        await rig.run(idempotency_key="k", image=ONE)


@pytest.mark.parametrize("image", [None, ONE])
def test_a_stored_request_keeps_its_image(image: str | None) -> None:
    request = RunRequest(RunKind.CODE, code="pass", image=image)
    assert from_stored(request.stored()) == request
