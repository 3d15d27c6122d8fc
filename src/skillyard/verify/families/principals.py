"""Attacks on the objects of another principal, and by scopes and tools that a token lacks."""

from __future__ import annotations

from typing import Any

from skillyard.domain.errors import Forbidden, SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, NotShown, broken, escaped
from skillyard.verify.home import CALLER, NARROW, SKILL
from skillyard.verify.site import Site

PRINCIPALS = Family("principals", invariants=(9,))

_SCOPES = frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.BLOBS, Scope.DISCOVER})
_OWNER, _THIEF = Principal("verify-owner", _SCOPES), Principal("verify-thief", _SCOPES)
_CODE = {"language": "python", "code": "def main(args):\n    print('private words')\n    return {}"}


def _named(run: str, blob: str) -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "record": ("runs.show", {"run_id": run}),
        "log": ("runs.logs", {"run_id": run}),
        "end": ("runs.cancel", {"run_id": run}),
        "runs after it": ("runs.list", {"cursor": run}),
        "everybody's runs": ("runs.list", {"all": True}),
        "blob": ("read_blob", {"blob_id": blob}),
        "facts of the blob": ("blobs.stat", {"blob_id": blob}),
        "deletion": ("blobs.delete", {"blob_id": blob}),
        "blobs after it": ("blobs.list", {"cursor": blob}),
        "everybody's blobs": ("blobs.list", {"all": True}),
        "blob as an input": ("run_code", {**_CODE, "input_blobs": [blob]}),
    }


async def _stealing(site: Site) -> Judgement:
    own = await site.call_as(_OWNER, "run_code", _CODE)
    run, blob = own["run_id"], own.get("logs_blob")
    if not blob:
        raise NotShown("the owner's run kept no log")
    for what, (method, params) in _named(run, blob).items():
        try:
            answer = await site.call_as(_THIEF, method, params)
        except SkillyardError:
            continue
        if answer.get("deleted") is not False and answer.get("cancelled") is not False:
            return escaped(f"{what}: {str(answer)[:120]}")
    listed = str(await site.call_as(_THIEF, "runs.list", {})) + str(await site.call_as(_THIEF, "blobs.list", {}))
    if run in listed or blob in listed:
        return escaped("another's objects are listed")
    kept = await site.call_as(_OWNER, "read_blob", {"blob_id": blob})
    return CONTAINED if kept["preview"] == "private words\n" else escaped("another's blob was changed")


PRINCIPALS.steps(
    "stealing", "Read, end, delete, list and mount another principal's run, log and blob by naming them.", _stealing,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _oracle(site: Site) -> Judgement:
    own = await site.call_as(_OWNER, "run_code", _CODE)
    real = _named(own["run_id"], own["logs_blob"])
    made_up = _named("run_" + "0" * 32, "blob:" + "0" * 32)
    for what in real:
        answers = []
        for method, params in (real[what], made_up[what]):
            try:
                answers.append(f"{type(await site.call_as(_THIEF, method, params))}")
            except SkillyardError as error:
                answers.append(f"{error.type} {error.code}")
        if answers[0] != answers[1]:
            return escaped(f"{what}: {answers[0]} for what exists, {answers[1]} for what does not")
    return CONTAINED


PRINCIPALS.steps(
    "oracle", "Learn whether another's object exists from the kind of refusal.", _oracle, needs=[Need.IN_PROCESS]
)


async def _same_key(site: Site) -> Judgement:
    params = {**_CODE, "idempotency_key": "verify-same-key"}
    own = await site.call_as(_OWNER, "run_code", params)
    theirs = await site.call_as(_THIEF, "run_code", params)
    return escaped("an idempotency key gave another's run") if own["run_id"] == theirs["run_id"] else CONTAINED


PRINCIPALS.steps("same-key", "Get another's run by using its idempotency key.", _same_key, needs=[Need.IN_PROCESS])


async def _scopes(site: Site) -> Judgement:
    """Tries everything else as a principal that may only read blobs."""
    poor = Principal("verify-poor", frozenset({Scope.BLOBS}))
    for method, params in (
        ("run_code", _CODE),
        ("execute_skill", {"name": "verify.keeper"}),
        ("runs.list", {"all": True}),
        ("list_skills", {}),
    ):
        try:
            answer = await site.call_as(poor, method, params)
        except SkillyardError:
            continue
        return escaped(f"{method}: {str(answer)[:120]}")
    return CONTAINED


PRINCIPALS.steps("scopes", "Call what a token's scopes do not hold.", _scopes, needs=[Need.IN_PROCESS])


async def _guessing(site: Site) -> Judgement:
    """Compares the blob ids of two runs: nothing of one may follow from the other's."""
    code = {
        "language": "python",
        "code": "from runtime import blobs\ndef main(args):\n    return {'ids': [blobs.write_text(x) for x in 'ab']}",
    }
    one, two = [await site.call_as(_OWNER, "run_code", code) for _ in range(2)]
    if not (one.get("output_blobs") and two.get("output_blobs")):
        raise NotShown("no blobs were written")
    prefixes = {blob.rpartition("-")[0] for run in (one, two) for blob in run["output_blobs"]}
    if len(prefixes) != 2 or any(len(prefix) < 32 for prefix in prefixes):
        return escaped(f"ids of blobs can be guessed: {sorted(prefixes)}")
    return CONTAINED


PRINCIPALS.steps("guessing", "Guess the blob ids of one run from those of another.", _guessing, needs=[Need.IN_PROCESS])


PROFILES = Family("profiles", invariants=(9,))

_WHO = Principal("verify-narrow", frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.DISCOVER}), profile=NARROW)
_EMPTY = "def main(args):\n    return {}"


async def _call(site: Site, who: Principal, method: str, params: dict[str, Any]) -> dict[str, Any]:
    assert site.runtime is not None
    return await site.call_as(site.runtime.bound(who), method, params)


async def _tools(site: Site) -> Judgement:
    """Calls every method that the profile does not name, with all scopes."""
    from skillyard.engine.table import METHODS

    mighty = Principal("verify-mighty", profile=NARROW)
    listed = {row["name"] for row in (await _call(site, mighty, "rpc.discover", {}))["methods"]}
    if listed - {"run_code", "skills.run_cmd", "rpc.discover"}:
        return escaped(f"methods are listed: {', '.join(sorted(listed))[:120]}")
    for name in METHODS:
        if name in listed or name == "rpc.discover":
            continue
        try:
            await _call(site, mighty, name, {})
        except Forbidden as refusal:
            if NARROW not in refusal.message or name not in refusal.message:
                return broken(f"{name} was refused without the profile's name: {refusal.message}")
            continue
        except SkillyardError as error:
            return escaped(f"{name} was let through: {error.message[:80]}")
        return escaped(f"{name} was called")
    return CONTAINED


PROFILES.steps("tools", "Call and list methods that the profile does not name.", _tools, needs=[Need.IN_PROCESS])


async def _lacking(site: Site) -> Judgement:
    """A token whose profile the settings lack may do nothing."""
    for who in (Principal("verify-lost", profile="verify-gone"), Principal("verify-unbound", profile=NARROW)):
        assert site.runtime is not None
        known = site.runtime.bound(who) if who.profile != NARROW else who
        for method, params in (("list_skills", {}), ("run_code", {"language": "python", "code": _EMPTY})):
            try:
                await site.call_as(known, method, params)
            except Forbidden:
                continue
            return escaped(f"{method} was called with the profile {who.profile}")
    return CONTAINED


PROFILES.steps("lacking", "Act with a profile that the settings do not have.", _lacking, needs=[Need.IN_PROCESS])


async def _widening(site: Site) -> Judgement:
    """Asks for skills, limits, hosts and isolations beyond the profile."""
    code = {"language": "python", "code": _EMPTY}
    allowed = await _call(site, _WHO, "run_code", code)
    if allowed["status"] != "completed":
        return broken(f"the profile's own tool failed: {allowed['summary']}")
    beyond: dict[str, tuple[str, dict[str, Any]]] = {
        "a skill": ("skills.run_cmd", {"skill_name": CALLER, "command": "true"}),
        "a mounted skill": ("run_code", {**code, "mount_skills": [CALLER]}),
        "memory": ("run_code", {**code, "limits": {"memory_mb": 129}}),
        "time": ("skills.run_cmd", {"skill_name": SKILL, "command": "true", "timeout_sec": 31}),
        "time of code": ("run_code", {**code, "limits": {"timeout_ms": 30_001}}),
        "hosts": ("run_code", {**code, "network": ["example.com"]}),
    }
    for what, (method, params) in beyond.items():
        try:
            answer = await _call(site, _WHO, method, params)
        except SkillyardError:
            continue
        if answer["status"] not in ("failed", "canceled"):
            return escaped(f"{what} beyond the profile was given")
    return CONTAINED


PROFILES.steps("widening", "Use skills, limits and hosts beyond the profile's.", _widening, needs=[Need.IN_PROCESS])
