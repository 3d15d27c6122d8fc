"""Programs that need skills, blobs or environments of an installation."""

from __future__ import annotations

from collections.abc import Callable

from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.ports.sandbox import Backend
from skillyard.testing.attacks.attack import (
    CONTAINED,
    WORKS,
    Family,
    Judgement,
    Need,
    NotShown,
    not_applicable,
    too_tight,
)
from skillyard.testing.attacks.leftovers import DRAWS, alike
from skillyard.verify.home import SKILL, WARM, WARM_MODULES
from skillyard.verify.site import Report, Site

RANDOMNESS = Family("randomness", invariants=(3, 8))
BENIGN = Family("benign")


def _backend(site: Site) -> Backend:
    assert site.runtime is not None
    offer = site.runtime.app.backends.default
    assert offer is not None
    return offer.backend


async def _after_imports(site: Site) -> Judgement:
    """Draws in an environment whose interpreter has drawn before."""
    assert site.runtime is not None
    if not site.runtime.app.config.native.preloads:
        return not_applicable("native.preload_mb is 0: nothing is imported ahead")
    if await _backend(site).prepare(SandboxSpec()) is None:
        return not_applicable("this isolation imports nothing ahead")
    (await site.run_code({"code": "def main(args): pass", "environment": WARM})).given()
    await site.runtime.app.ahead.settled()
    for children in (False, True):
        params = {"code": DRAWS, "args": {"children": children}, "environment": WARM}
        told = [(await site.run_code(params)).given() for _ in range(4)]
        if not all(set(WARM_MODULES) <= set(one["here"]) for one in told):
            raise NotShown("nothing was imported ahead")
        if (judgement := alike(told)) is not CONTAINED:
            return judgement
    return CONTAINED


RANDOMNESS.steps(
    "ahead", "Foretell what a later run draws, or its keys, after its modules drew before both.", _after_imports,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


def _gave(report: Report, wanted: Callable[[], bool]) -> Judgement:
    if not report.ok:
        return too_tight(report.why)
    return WORKS if wanted() else too_tight(str(report.output)[:160])


async def _blobs(site: Site) -> Judgement:
    code = """
from runtime import blobs, log
def main(args):
    log.info("writing")
    with blobs.writer("text/csv") as writer:
        for n in range(1000):
            writer.write(f"{n},{n * n}\\n".encode())
    return {"ids": [blobs.write_text("words"), blobs.write_json({"a": 1}), writer.blob_id]}
"""
    report = await site.run(code)
    return _gave(report, lambda: sorted(report.output["ids"]) == sorted(report.run.output_blobs))


BENIGN.steps("blobs", "Write blobs of text, JSON and a stream.", _blobs, benign=True)


async def _blob_inputs(site: Site) -> Judgement:
    made = await site.caller.call("create_blob", {"content": "a,b\n1,2\n", "kind": "text/csv"})
    code = """
from runtime import blobs
def main(args):
    return {"text": blobs.read_text(args["id"]), "path": open(blobs.path(args["id"])).read()}
"""
    report = await site.run_code({"code": code, "args": {"id": made["blob_id"]}, "input_blobs": [made["blob_id"]]})
    return _gave(report, lambda: set(report.output.values()) == {"a,b\n1,2\n"})


BENIGN.steps(
    "blob-inputs", "Read a blob that it was given, by the library and as a file.", _blob_inputs,
    benign=True, needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _skill(site: Site) -> Judgement:
    report = await site.call_run("execute_skill", {"name": SKILL, "args": {"how": "leave"}})
    return _gave(report, lambda: report.output == {"had": True})


BENIGN.steps(
    "skill", "Execute a skill that declares a secret and gets it.", _skill, benign=True, needs=[Need.IN_PROCESS]
)
