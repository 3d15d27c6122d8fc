"""``policy.explain`` and ``policy.show``: what a run would get, without running one."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from skillyard.domain.errors import Forbidden, InvalidInput, SkillNotFound
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.principal import ALL_SCOPES, Principal, Scope
from skillyard.domain.skill.skill import Needs
from skillyard.engine.network import service as resolve
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill

pytestmark = pytest.mark.anyio


def rules(*texts: str) -> Any:
    return tuple(map(parse_rule, texts))


async def explained(rig: Rig, *targets: str, **params: Any) -> dict[str, Any]:
    return await rig.call("policy.explain", targets=list(targets), **params)


async def test_the_operators_rules_alone(rig: Rig) -> None:
    rig.with_network(rules=rules("*.x.com"))
    found = await explained(rig, "a.x.com:443", "y.com")
    assert found["layers"] == [{"name": "operator", "rules": ["*.x.com"]}]
    assert [target["allowed"] for target in found["targets"]] == [True, False]
    assert "refused" not in found


async def test_as_a_skill_gets_it(rig: Rig) -> None:
    rig.with_network()
    rig.skills.add(a_skill("a.b", needs=Needs(network=("x.com", "y.com"))))
    found = await explained(rig, "x.com", "z.com", skill="a.b", network=["y.com"])
    assert [layer["name"] for layer in found["layers"]] == ["operator", "skill", "request"]
    assert [t["reason"] for t in found["targets"]] == ["no request rule allows x.com", "no skill rule allows z.com"]
    assert "refused" not in found


async def test_as_code_gets_it(rig: Rig) -> None:
    rig.with_network(run_code="mounted")
    rig.skills.add(a_skill("a.b", needs=Needs(network=("x.com",))))
    found = await explained(rig, "x.com", code=True, mount_skills=["a.b"])
    assert found["targets"][0]["allowed"]
    assert found["layers"][1] == {"name": "code", "rules": ["x.com"]}


async def test_why_such_a_run_is_refused(rig: Rig) -> None:
    rig.with_network()
    rig.skills.add(a_skill("open", needs=Needs(network=("*",))))
    found = await explained(rig, "x.com", skill="open")
    assert "the operator has not consented" in found["refused"]
    assert "gives code none" in (await explained(rig, "x.com", code=True, network=["x.com"]))["refused"]
    rig.skills.add(a_skill("some", needs=Needs(network=("x.com",))))
    rig.gate = None
    rig.configure()
    assert "this server has no gate" in (await explained(rig, "x.com", skill="some"))["refused"]


async def test_addresses_that_the_operator_gives_are_judged_and_others_when_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def known(name: str, _field: str) -> Any:
        asked.append(name)
        return (ipaddress.ip_address("10.0.0.7"), ipaddress.ip_address("93.184.216.34"))

    monkeypatch.setattr("skillyard.engine.network.service.resolve", known)
    rig.with_network(run_code=rules("db.x.com", "x.com"), hosts={"db.x.com": (ipaddress.ip_address("10.0.0.5"),)})
    found = await explained(rig, "db.x.com", "x.com", "y.com", code=True)
    assert [[a["address"] for a in t["addresses"]] for t in found["targets"]] == [["10.0.0.5"], [], []]
    assert found["targets"][0]["allowed"]
    found = await explained(rig, "db.x.com", "x.com", "y.com", code=True, resolve=True)
    assert asked == ["x.com"], "neither what the operator knows nor what is refused"
    assert [a["allowed"] for a in found["targets"][1]["addresses"]] == [False, True]


async def test_only_an_admin_asks_the_hosts_name_servers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's rules allow every name, also those that nobody outside may know of."""

    async def known(_name: str, _field: str) -> Any:
        raise AssertionError("it was asked")

    monkeypatch.setattr("skillyard.engine.network.service.resolve", known)
    rig.with_network()
    tenant = Principal("somebody", ALL_SCOPES - {Scope.ADMIN})
    params = {"targets": ["db.internal.example"]}
    assert not (await rig.call("policy.explain", principal=tenant, **params))["targets"][0]["addresses"]
    with pytest.raises(Forbidden):
        await rig.call("policy.explain", principal=tenant, resolve=True, **params)


async def test_what_cannot_be_looked_up_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_args: Any, **_options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", none)
    rig.with_network()
    with pytest.raises(InvalidInput, match=r"targets: 'x\.com' has no address here"):
        await explained(rig, "x.com", resolve=True)


async def test_the_hosts_own_addresses_are_known(rig: Rig) -> None:
    assert resolve.is_own(ipaddress.ip_address("127.0.0.1"))
    assert not resolve.is_own(ipaddress.ip_address("203.0.113.7"))


async def test_what_is_wrong_is_named(rig: Rig) -> None:
    rig.with_network()
    rig.skills.add(a_skill("a.b"))
    with pytest.raises(InvalidInput, match=r"targets\[1\]: must be 'host:port' without a scheme"):
        await explained(rig, "x.com", "http://y.com")
    with pytest.raises(SkillNotFound):
        await explained(rig, "x.com", skill="none.such")
    with pytest.raises(InvalidInput, match="skill: does not go with code"):
        await explained(rig, "x.com", skill="a.b", code=True)
    narrow = Principal("narrow", ALL_SCOPES, skills=("c.*",))
    with pytest.raises(SkillNotFound):
        await rig.call("policy.explain", narrow, targets=["x.com"], skill="a.b")


async def test_show_is_the_operators(rig: Rig) -> None:
    rig.with_network(run_code="mounted", rules=rules("*.x.com"), hosts={"a": (ipaddress.ip_address("::1"),)})
    found = await rig.call("policy.show")
    assert (found["rules"], found["run_code"], found["open"]) == (["*.x.com"], "mounted", False)
    assert found["hosts"] == {"a": ["::1"]}
    assert found["limits"]["connections"] == 128
    assert found["trust"] == {"directories": True, "approve": []}
    assert found["isolations"] == [{"isolation": "twin", "egress": "kernel", "by": "a fake", "why": "", "mend": ""}]
    with pytest.raises(Forbidden):
        await rig.call("policy.show", Principal("alice", ALL_SCOPES - {Scope.ADMIN}))
