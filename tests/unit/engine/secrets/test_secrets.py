"""Secrets by project and skill, how they reach a run, what is written down, and the methods that change them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given

from skillyard.domain.errors import Forbidden, InvalidInput, QuotaExceeded, SecretNotFound, SkillyardError, StoreFault
from skillyard.domain.principal import LOCAL, Principal, Scope
from skillyard.domain.secret import Delivery, Secret
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.domain.work.record import RunKind
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.plan import Plan
from skillyard.engine.runs.request import from_params
from skillyard.engine.secrets.methods import call
from skillyard.engine.secrets.service import GivenSecret, RunSecrets, SecretBook, secret_versions
from skillyard.engine.table import METHODS
from skillyard.testing.memory_secrets import MemorySecretAudit, MemorySecrets
from tests.attacks.front_door.methods import CANARY, params_of
from tests.unit.engine.conftest import ManualClock, Rig, StoredRig
from tests.unit.engine.fakes import a_skill

pytestmark = pytest.mark.anyio

VALUE = "hunter2-hunter2"
CRM = Principal("ann", project="crm")
BARE = frozenset(Scope) - {Scope.ADMIN}


async def put(rig: Rig, name: str, value: str, **params: Any) -> dict[str, Any]:
    shown: dict[str, Any] = (await rig.call("secrets.set", name=name, value=value, **params))["secret"]
    return shown


def needing(rig: Rig, name: str, *needs: SecretNeed) -> None:
    rig.skills.add(a_skill(name, needs=Needs(secrets=needs)))


async def plan_of(rig: Rig, principal: Principal, method: str, **params: Any) -> Plan:
    row = METHODS[method]
    return await rig.app.planner.plan(principal, from_params(RunKind(method), row.bind(params)))


async def granted(rig: Rig, plan: Plan) -> tuple[GivenSecret, ...]:
    return await RunSecrets(rig.app.secrets, code_may=rig.app.config.policy.run_code_secrets == "mounted").give(plan)


async def given_to(rig: Rig, skill: str = "sales.leads", principal: Principal = CRM) -> dict[str, GivenSecret]:
    plan = await plan_of(rig, principal, "execute_skill", name=skill)
    return {secret.name: secret for secret in await granted(rig, plan)}


async def refused(rig: Rig, type_: str, said: str, skill: str = "sales.leads", principal: Principal = CRM) -> None:
    with pytest.raises(Refused) as caught:
        await given_to(rig, skill, principal)
    assert caught.value.type == type_
    assert said in caught.value.message
    assert VALUE not in caught.value.message


async def audited(rig: Rig, **params: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = (await rig.call("secrets.audit", **params))["events"]
    return events


async def test_a_run_sees_what_its_scope_admits(rig: Rig) -> None:
    for skill in ("sales.leads", "other"):
        needing(rig, skill, SecretNeed("A"))
    await put(rig, "A", "of sales", project="crm", skills="sales.*")
    assert (await given_to(rig))["A"].value == "of sales"
    for skill, principal in (("other", CRM), ("sales.leads", Principal("bob"))):
        await refused(rig, "MissingSecret", f"project '{principal.project}' and skill '{skill}': A", skill, principal)
    await put(rig, "A", "everybody's", skills="*")
    assert (await given_to(rig))["A"].value == "of sales"
    assert (await given_to(rig, "other", Principal("bob")))["A"].value == "everybody's"


async def test_the_run_of_a_token_gets_its_projects_secret(rig: Rig) -> None:
    needing(rig, "sales.leads", SecretNeed("A"))
    await put(rig, "A", VALUE, project="crm")
    await put(rig, "A", VALUE, project="crm")
    run = await rig.call("execute_skill", CRM, name="sales.leads")
    assert rig.backend.started[0][1]["env"] == {"A": VALUE}
    record = await rig.record(run)
    assert (record.project, record.digests["secrets"]) == ("crm", {"A": "store:2"})
    assert VALUE not in json.dumps(record.as_dict())
    run = await rig.call("execute_skill", name="sales.leads")
    assert run["error"]["type"] == "MissingSecret"


@pytest.mark.parametrize(
    ("stored", "declared", "delivery", "hosts"),
    [
        (("env", []), (Delivery.ENV, ()), Delivery.ENV, []),
        (("env", ["a.x.com"]), (Delivery.ENV, ("b.x.com",)), Delivery.ENV, []),
        (("gate", ["a.x.com"]), (Delivery.ENV, ()), Delivery.GATE, ["a.x.com:443"]),
        (("gate", ["a.x.com:8443"]), (Delivery.GATE, ("b.x.com",)), Delivery.GATE, ["a.x.com:8443"]),
        (("env", []), (Delivery.GATE, ("b.x.com", "*.y.com")), Delivery.GATE, ["b.x.com:443", "*.y.com:443"]),
        (("env", ["a.x.com"]), (Delivery.GATE, ("b.x.com",)), Delivery.GATE, ["a.x.com:443"]),
        (("gate", []), (Delivery.ENV, ("b.x.com",)), Delivery.GATE, ["b.x.com:443"]),
    ],
)
async def test_the_gate_when_either_says_so_and_the_operators_hosts_first(
    rig: Rig, stored: Any, declared: Any, delivery: Delivery, hosts: list[str]
) -> None:
    needing(rig, "sales.leads", SecretNeed("A", False, *declared))
    await put(rig, "A", VALUE, delivery=stored[0], hosts=stored[1])
    secret = (await given_to(rig))["A"]
    assert (secret.value, secret.delivery, [rule.text for rule in secret.hosts]) == (VALUE, delivery, hosts)
    assert secret_versions([secret]) == {"A": "store:1"}
    assert VALUE not in repr(secret)
    assert (await audited(rig))[0]["delivery"] == delivery


async def test_a_gate_secret_without_a_host_is_refused(rig: Rig) -> None:
    needing(rig, "sales.leads", SecretNeed("A"))
    await put(rig, "A", VALUE, delivery="gate")
    await refused(rig, "PolicyRefused", "no host is bound to it: skillyard secret bind A")
    await rig.call("secrets.bind", name="A", delivery="gate", hosts=["api.x.com"])
    assert (await given_to(rig))["A"].delivery is Delivery.GATE


async def test_a_gate_secret_that_reads_like_any_text_is_refused(rig: Rig) -> None:
    needing(rig, "sales.leads", SecretNeed("A"))
    await put(rig, "A", "1234567", delivery="gate", hosts=["api.x.com"])
    await refused(rig, "PolicyRefused", "shorter than 8 characters")
    await put(rig, "A", "12345678", delivery="gate", hosts=["api.x.com"])
    assert (await given_to(rig))["A"].delivery is Delivery.GATE


async def test_code_gets_what_its_mounted_skills_may_have(rig: Rig) -> None:
    rig.configure(policy={"run_code_secrets": "mounted"})
    needing(rig, "sales.leads", SecretNeed("A"), SecretNeed("B", True))
    needing(rig, "sales.deals", SecretNeed("A", True, Delivery.GATE, ("a.x.com",)))
    needing(rig, "hr", SecretNeed("A"))
    await put(rig, "A", "of sales", skills="sales.*")
    params = {"language": "python", "code": "x", "mount_skills": ["sales.leads", "sales.deals"]}
    plan = await plan_of(rig, CRM, "run_code", **params)
    [secret] = await granted(rig, plan)
    assert (secret.value, secret.delivery, [rule.name for rule in secret.hosts]) == (
        *("of sales", Delivery.GATE),
        ["a.x.com"],
    )
    await put(rig, "A", "everybody's")
    params["mount_skills"] = ["sales.leads", "hr"]
    with pytest.raises(Refused, match="mean different secrets by 'A'"):
        await granted(rig, await plan_of(rig, CRM, "run_code", **params))


class Reader:
    """Has what it is given, or fails."""

    def __init__(self, label: str, **values: str) -> None:
        self.label = label
        self.values = values
        self.asked: list[str] = []
        self.broken = False

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        self.asked.append(name)
        if self.broken:
            raise StoreFault(f"{self.label} cannot be reached")
        return Secret(name, self.values[name], self.label) if name in self.values else None

    async def close(self) -> None:
        return None


async def test_readers_are_asked_in_order_for_what_the_store_lacks(rig: Rig) -> None:
    first, second = Reader("first", A="1", B="1"), Reader("second", A="2", B="2", C="2")
    object.__setattr__(rig.app.secrets, "readers", (first, second))
    needing(rig, "sales.leads", *(SecretNeed(name) for name in "ABC"))
    await put(rig, "A", "stored")
    found = await given_to(rig)
    assert secret_versions(found.values()) == {"A": "store:1", "B": "first", "C": "second"}
    assert (first.asked, second.asked) == (["B", "C"], ["C"])


async def test_a_source_that_cannot_tell_ends_the_search(rig: Rig) -> None:
    first, second = Reader("first"), Reader("second", A=VALUE)
    object.__setattr__(rig.app.secrets, "readers", (first, second))
    needing(rig, "sales.leads", SecretNeed("A", optional=True))
    first.broken = True
    await refused(rig, "MissingSecret", "the secret 'A' cannot be read: first cannot be reached")
    assert second.asked == []
    [event] = await audited(rig)
    assert (event["act"], event["reason"]) == ("denied", "first cannot be reached")


async def test_every_use_is_written_down_before_it_happens(rig: Rig) -> None:
    needing(rig, "sales.leads", SecretNeed("A"), SecretNeed("B", optional=True))
    await refused(rig, "MissingSecret", "A")
    await put(rig, "A", VALUE, project="crm")
    run = await rig.call("execute_skill", CRM, name="sales.leads")
    used, changed, denied = await audited(rig)
    assert {key: used[key] for key in used if key != "at"} == {
        **{"act": "used", "name": "A", "principal": "ann", "project": "crm", "skill": "sales.leads"},
        **{"run_id": run["run_id"], "scope": "crm/*", "version": "store:1", "delivery": "env", "reason": ""},
    }
    assert (changed["act"], changed["principal"], changed["scope"]) == ("set", "local", "crm/*")
    assert (denied["act"], denied["name"], denied["skill"], denied["version"]) == ("denied", "A", "sales.leads", "")
    [shown] = (await rig.call("secrets.list"))["secrets"]
    assert shown["used_at"] == used["at"]


async def test_what_cannot_be_written_down_is_not_given(stored_rig: StoredRig) -> None:
    rig = stored_rig
    needing(rig, "sales.leads", SecretNeed("A"))
    await put(rig, "A", VALUE)
    await rig.database.write(
        lambda c: c.execute("CREATE TRIGGER no BEFORE INSERT ON secret_audit BEGIN SELECT RAISE(ABORT, 'x'); END")
    )
    run = await rig.call("execute_skill", name="sales.leads")
    assert run["error"]["type"] == "MissingSecret"
    assert "cannot be written down" in run["error"]["message"]
    assert rig.backend.started == []


async def test_the_audit_is_not_rewritten(stored_rig: StoredRig) -> None:
    rig = stored_rig
    await put(rig, "A", VALUE)
    with pytest.raises((sqlite3.Error, SkillyardError), match="append-only"):
        await rig.database.write(lambda c: c.execute("UPDATE secret_audit SET principal = 'nobody'"))


async def test_the_audit_is_kept_for_its_time(rig: Rig) -> None:
    rig.configure(secrets={"audit_ttl_s": 100.0})
    await put(rig, "A", VALUE)
    rig.clock.time += 99
    await put(rig, "B", VALUE)
    await rig.app.reaper.sweep()
    assert [event["name"] for event in await audited(rig)] == ["B", "A"]
    rig.clock.time += 2
    await rig.app.reaper.sweep()
    assert [event["name"] for event in await audited(rig)] == ["B"]


async def test_what_is_told_of_a_secret(rig: Rig) -> None:
    await put(rig, "A", "first", project="crm", skills="sales.*", delivery="gate", hosts=["api.x.com"])
    at = rig.clock.time
    rig.clock.time += 5
    shown = await put(rig, "A", VALUE, project="crm", skills="sales.*")
    assert shown == {
        **{"name": "A", "project": "crm", "skills": "sales.*", "delivery": "gate", "hosts": ["api.x.com"]},
        **{"version": 2, "created_at": at + 5, "created_by": "local", "used_at": None},
        "versions": [
            {"version": 1, "created_at": at, "created_by": "local"},
            {"version": 2, "created_at": at + 5, "created_by": "local"},
        ],
    }
    assert (await rig.call("secrets.list"))["secrets"] == [shown]


async def test_pages_of_secrets(rig: Rig) -> None:
    names = [f"S{number:02}" for number in range(7)]
    for name in names:
        await put(rig, name, VALUE)
        await put(rig, name, VALUE, project="crm")
    seen, cursor = [], None
    while True:
        page = await rig.call("secrets.list", limit=3, cursor=cursor)
        seen += [(row["name"], row["project"]) for row in page["secrets"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [(name, project) for name in names for project in (None, "crm")]
    for method in ("secrets.list", "secrets.audit"):
        with pytest.raises(InvalidInput):
            await rig.call(method, cursor="x")
    assert [e["name"] for e in await audited(rig, limit=2, name="S03")] == ["S03", "S03"]


async def test_versions_are_rolled_back_and_secrets_deleted(rig: Rig) -> None:
    needing(rig, "sales.leads", SecretNeed("A"))
    for value in ("one", "two"):
        await put(rig, "A", value)
    shown = (await rig.call("secrets.rollback", name="A", version=1))["secret"]
    assert shown["version"] == 1
    found = await given_to(rig)
    assert (found["A"].value, found["A"].version) == ("one", "store:1")
    assert await rig.call("secrets.delete", name="A") == {"deleted": True}
    assert await rig.call("secrets.delete", name="A") == {"deleted": False}
    assert [event["act"] for event in await audited(rig)] == ["deleted", "used", "rolled_back", "set", "set"]
    for method, params in (("secrets.rollback", {"version": 1}), ("secrets.bind", {"delivery": "env"})):
        with pytest.raises(SecretNotFound):
            await rig.call(method, name="A", **params)


@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith("secrets.")])
async def test_only_an_admin_may(rig: Rig, method: str) -> None:
    params = {"name": "A", "value": VALUE, "version": 1, "delivery": "env"}
    asked = {name: value for name, value in params.items() if name in METHODS[method].params["required"]}
    with pytest.raises(Forbidden):
        await rig.call(method, Principal("ann", BARE), **asked)


WRONG: list[dict[str, Any]] = [
    *({"name": name} for name in ("", "A-B", VALUE + "-", "PATH", "x" * 129, "\ud800", 5, None)),
    *({"value": value} for value in ("", VALUE + "\0", VALUE * 5000, VALUE + "\ud800", [VALUE], {"x": VALUE}, 5, None)),
    *({"project": project} for project in (VALUE + "/", 5, "x" * 65)),
    *({"skills": skills} for skills in (VALUE + "?", "*a", 5)),
    *({"delivery": delivery} for delivery in (VALUE, "")),
    *({"hosts": hosts} for hosts in ([VALUE + "/"], ["10.0.0.1"], ["*"], VALUE, [5], ["x.com"] * 33)),
    {"vlaue": VALUE},
    {VALUE: "x"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=[str(number) for number in range(len(WRONG))])
async def test_refusals_tell_no_value(rig: Rig, wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, QuotaExceeded)) as caught:
        await rig.call("secrets.set", **{"name": "A", "value": "v", **wrong})
    said = f"{caught.value!r} {caught.value.data}"
    assert VALUE not in said
    assert (await rig.call("secrets.list"))["secrets"] == []
    assert await audited(rig) == []


@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith("secrets.")])
def test_any_parameters_get_an_answer_or_a_listed_error(method: str) -> None:
    row, clock = METHODS[method], ManualClock()
    listed: tuple[type[SkillyardError], ...] = (InvalidInput, *row.errors)
    book = SecretBook(MemorySecrets(clock), MemorySecretAudit(), clock)

    @given(params=params_of(row))
    def hold(params: dict[str, Any]) -> None:
        try:
            answer: dict[str, Any] | None = runner.run(call(book, LOCAL, method, params))
        except listed as error:
            answer = None
            said = error.message
        if answer is None:
            assert CANARY not in said or CANARY in (params.get("name"), params.get("project"), params.get("skills"))
        else:
            assert set(row.result["required"]) <= set(answer)
            json.dumps(answer)

    with asyncio.Runner() as runner:
        hold()


async def test_no_answer_event_or_row_holds_a_value(stored_rig: StoredRig) -> None:
    rig = stored_rig
    needing(rig, "sales.leads", SecretNeed("A"))
    answers = [await put(rig, "A", VALUE)]
    answers.append(await rig.call("execute_skill", name="sales.leads"))
    answers.append(await rig.call("secrets.rollback", name="A", version=1))
    answers += [await rig.call(method) for method in ("secrets.list", "secrets.audit", "runs.list")]
    answers.append(await rig.call("secrets.bind", name="A", delivery="gate", hosts=["api.x.com"]))
    await asyncio.sleep(0)
    assert VALUE not in json.dumps(answers)
    assert VALUE not in repr(rig.events)
    for table in ("secret_audit", "runs", "secret_uses"):
        assert VALUE not in repr(await rig.database.fetch(f"SELECT * FROM {table}"))
