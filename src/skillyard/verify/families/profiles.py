"""Attacks by a token whose profile allows few tools, few skills and little of everything."""

from __future__ import annotations

from typing import Any

from skillyard.domain.errors import Forbidden, SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, broken, escaped
from skillyard.verify.home import CALLER, NARROW, SKILL
from skillyard.verify.site import Site

PROFILES = Family("profiles", invariants=(9,))

_WHO = Principal("verify-narrow", frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.DISCOVER}), profile=NARROW)
_CODE = "def main(args):\n    return {}"


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
        for method, params in (("list_skills", {}), ("run_code", {"language": "python", "code": _CODE})):
            try:
                await site.call_as(known, method, params)
            except Forbidden:
                continue
            return escaped(f"{method} was called with the profile {who.profile}")
    return CONTAINED


PROFILES.steps("lacking", "Act with a profile that the settings do not have.", _lacking, needs=[Need.IN_PROCESS])


async def _widening(site: Site) -> Judgement:
    """Asks for skills, limits, hosts and isolations beyond the profile."""
    code = {"language": "python", "code": _CODE}
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
