"""The judge: evidence that is missing or odd is no containment, and walls that nobody claims are no escape."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.client.run import Run
from skillyard.domain.errors import InvalidInput
from skillyard.testing.attacks.attack import (
    CONTAINED,
    Attack,
    Family,
    Judgement,
    Verdict,
    broken,
    escaped,
    held_to_its_claims,
    judged,
    within_its_means,
)
from skillyard.verify.battery import chosen, face
from skillyard.verify.main import as_dict, failed
from skillyard.verify.site import Report, Site, report_of


def ran(output: Any = None, *, status: str = "completed", log: str = "", **more: Any) -> Report:
    raw = {"status": status, "run_id": "run_1", "summary": "", "output": output, "logs_preview": log, **more}
    return report_of(Run.of(raw))


def evidence(**changes: Any) -> dict[str, Any]:
    return {"got": [], "tried": 3, "wrong": [], **changes}


@pytest.mark.parametrize(
    ("run", "ends", "verdict"),
    [
        (ran(evidence()), (), Verdict.CONTAINED),
        (ran(evidence(got=["a secret"])), (), Verdict.ESCAPED),
        (ran(evidence(got=["a secret"], wrong=["odd"])), (), Verdict.ESCAPED),
        (ran(evidence(wrong=["open: EMFILE"])), (), Verdict.BROKEN),
        (ran(evidence(tried=0)), (), Verdict.BROKEN),
        (ran(evidence(elsewhere="told nothing")), (), Verdict.NOT_APPLICABLE),
        (ran(evidence(elsewhere="told nothing", got=["a secret"])), (), Verdict.ESCAPED),
        (ran(evidence(elsewhere="told nothing", wrong=["odd"])), (), Verdict.BROKEN),
        (ran({}), (), Verdict.BROKEN),
        (ran({"truncated": True, "blob_id": "blob:1"}), (), Verdict.BROKEN),
        (ran(status="failed", outcome="memory", log="armed\n"), ("memory",), Verdict.CONTAINED),
        (ran(status="failed", outcome="memory", log=""), ("memory",), Verdict.BROKEN),
        (ran(status="failed", outcome="memory", log="armed\n"), (), Verdict.BROKEN),
        (ran(status="failed", outcome="lost", log="armed\n"), ("memory",), Verdict.BROKEN),
        (ran(status="failed", error={"type": "NameError", "message": "x"}), ("memory",), Verdict.BROKEN),
    ],
)
def test_verdicts(run: Report, ends: tuple[str, ...], verdict: Verdict) -> None:
    assert judged(run, ends).verdict is verdict


def attack(judgement: Judgement | Exception, *walls: str, rests_on: tuple[str, ...] = ()) -> Attack:
    async def steps(site: Site) -> Judgement:
        if isinstance(judgement, Exception):
            raise judgement
        return judgement

    family = Family("made-up", walls=walls, invariants=(1,))
    family.steps("one", "Tries nothing.", steps, rests_on=rests_on)
    return family.attacks[0]


def test_what_nobody_claims_is_no_escape() -> None:
    made = attack(CONTAINED, "seccomp", "landlock")
    for enforced, verdict in (
        ({"seccomp": "missing", "landlock": "kernel"}, Verdict.ESCAPED),
        ({"seccomp": "missing", "landlock": "missing"}, Verdict.NOT_APPLICABLE),
        ({}, Verdict.NOT_APPLICABLE),
    ):
        assert held_to_its_claims(escaped("got"), made, enforced).verdict is verdict
    assert held_to_its_claims(escaped("got"), attack(CONTAINED), {}).verdict is Verdict.ESCAPED
    assert held_to_its_claims(CONTAINED, made, {}) is CONTAINED


@pytest.mark.parametrize(
    ("judgement", "enforced", "outcome", "verdict"),
    [
        (broken("no loopback"), {"net_namespace": "missing"}, "", Verdict.NOT_APPLICABLE),
        (broken("no loopback"), {"net_namespace": "missing"}, "exit", Verdict.NOT_APPLICABLE),
        (Judgement(Verdict.TOO_TIGHT, "no loopback"), {"net_namespace": "missing"}, "", Verdict.NOT_APPLICABLE),
        (broken("no loopback"), {"net_namespace": "kernel"}, "", Verdict.BROKEN),
        (broken("[Errno 1] Operation not permitted"), {"ipc_namespace": "missing"}, "", Verdict.BROKEN),
        (broken("no loopback"), {}, "", Verdict.BROKEN),
        (broken("lost"), {"net_namespace": "missing"}, "lost", Verdict.BROKEN),
        (Judgement(Verdict.TOO_TIGHT, "memory"), {"net_namespace": "missing"}, "memory", Verdict.TOO_TIGHT),
        (escaped("a secret"), {"net_namespace": "missing"}, "", Verdict.ESCAPED),
        (CONTAINED, {"net_namespace": "missing"}, "", Verdict.CONTAINED),
    ],
)
def test_only_what_the_record_says_is_missing_excuses(
    judgement: Judgement, enforced: dict[str, str], outcome: str, verdict: Verdict
) -> None:
    made = attack(CONTAINED, rests_on=("net_namespace",))
    assert within_its_means(judgement, made, enforced, {outcome}).verdict is verdict


class Server:
    """Answers benign runs, but not the first that it ``fails``."""

    def __init__(self, fails: int = 0) -> None:
        self._fails = fails

    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        self._fails -= 1
        if self._fails >= 0:
            raise OSError("nobody listens")
        return {"status": "completed", "run_id": "r", "summary": "", "output": {"echo": params["args"]["word"]}}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_is_gone_afterwards_was_harmed(anyio_backend: str) -> None:
    for fails, verdict in ((0, Verdict.CONTAINED), (1, Verdict.BROKEN), (100, Verdict.ESCAPED)):
        finding = await face(Site(Server(fails)), attack(CONTAINED))  # type: ignore[arg-type]
        assert finding.judgement.verdict is verdict
        assert failed([finding]) is (fails > 0)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_attack_that_cannot_be_made_is_broken(anyio_backend: str) -> None:
    finding = await face(Site(Server()), attack(ValueError("odd")))  # type: ignore[arg-type]
    assert finding.judgement == Judgement(Verdict.BROKEN, "ValueError: odd")
    told = as_dict([finding], {}, "native", 1.0)
    assert not told["passed"]
    assert told["programs"][0]["verdict"] == "broken"


def test_what_is_chosen_keeps_its_order_and_must_exist() -> None:
    one, two = attack(CONTAINED), attack(CONTAINED)
    assert chosen([one, two]) == [one, two]
    assert chosen([one, two], ["made-up"]) == [one, two]
    with pytest.raises(InvalidInput, match="none called"):
        chosen([one], ["nothing"])
    with pytest.raises(InvalidInput, match="none called"):
        chosen([one], [], ["nothing"])
