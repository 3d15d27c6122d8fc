"""What a failed run's error and summary say of the network: who refused it, what failed, why it had none."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import raises
from tests.unit.engine.network.test_network import connecting, rules

pytestmark = pytest.mark.anyio

HINT = "(network: y.com:443 refused: no code rule allows y.com)"


@pytest.mark.parametrize(
    ("ends", "hinted"),
    [
        (raises("ConnectionRefusedError", "[Errno 111] refused"), True),
        (raises("URLError", "<urlopen error>"), True),
        (raises("gaierror", "[Errno -2] Name or service not known"), True),
        (
            raises("MyError", "it failed", "Traceback ...\nrequests.exceptions.ProxyError: no\n\nMyError: it failed\n"),
            True,
        ),
        (raises("CalledProcessError", "Command '['git', 'clone']' returned 128"), True),
        (raises("ValueError", "ConnectionError is what I say", "ValueError: ConnectionError is what I say\n"), False),
        (raises("KeyError", "'x'"), False),
    ],
)
async def test_a_run_that_failed_to_connect_says_who_was_refused(rig: Rig, ends: bytes, hinted: bool) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    run = await rig.run(connecting(gate, ("y.com", 443), ends=ends))
    assert run["error"]["message"].endswith(HINT) == hinted
    assert run["summary"].endswith(HINT) == hinted
    record = await rig.record(run)
    assert record.reason.endswith(HINT) == hinted
    assert record.network is not None
    assert record.network["connections"][0]["reason"] == "no code rule allows y.com"


async def test_the_last_refusal_is_told_and_the_others_are_counted(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    ends = raises("ConnectError", "m" * 5000)
    run = await rig.run(connecting(gate, ("z.com", 80), ("192.0.2.7", 80), ("2001:db8::1", 443), ends=ends))
    said = "(network: [2001:db8::1]:443 refused: no code rule allows 2001:db8::1; 2 more in the record)"
    assert run["error"]["message"].endswith(said)
    assert len(run["error"]["message"].encode()) <= 2048
    assert run["summary"].endswith(said)
    assert len(run["summary"]) <= 280


@pytest.mark.parametrize(
    ("setting", "params", "why"),
    [
        ((), {}, "the operator gives code none (network.run_code)"),
        ("mounted", {}, "no mounted skill declares any (network.run_code = 'mounted')"),
        (rules("x.com"), {"network": []}, "the request asked for none"),
    ],
)
async def test_a_run_without_a_network_that_wanted_one_says_why_it_had_none(
    rig: Rig, setting: Any, params: dict[str, Any], why: str
) -> None:
    rig.with_network(run_code=setting)
    error = raises("URLError", "<urlopen error [Errno -2] Name or service not known>")
    run = await rig.run(playing(error), **params)
    assert run["error"]["message"].endswith(f"(network: the run had none: {why})")
    assert run["summary"].endswith(f"(network: the run had none: {why})")


async def test_a_run_without_a_network_that_failed_otherwise_is_told_nothing_of_it(rig: Rig) -> None:
    run = await rig.run(playing(raises("ConnectionRefusedError", "[Errno 111] Connection refused")))
    assert run["error"]["message"] == "[Errno 111] Connection refused"


async def test_what_failed_on_its_way_is_told_as_what_is_refused_is(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))

    async def script(process: TwinProcess) -> None:
        gate.last.connect("x.com", 443)
        gate.last.connections[0].reason = "its certificate is not accepted"
        process.write(raises("HTTPError", "HTTP Error 502: Bad Gateway"))

    run = await rig.run(script)
    said = "HTTP Error 502: Bad Gateway (network: x.com:443 failed: its certificate is not accepted)"
    assert run["error"]["message"] == said
    assert run["summary"] == f"HTTPError: {said}"


async def test_a_port_that_the_sandbox_itself_refused_is_explained_by_the_rules(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    run = await rig.run(connecting(gate, ends=raises("ConnectionRefusedError", "[Errno 111] Connection refused")))
    assert run["error"]["message"].startswith("[Errno 111] Connection refused (network: a port that no rule names is")
    assert run["error"]["message"].endswith("code: x.com)")
    assert run["summary"].endswith("code: x.com)")


async def test_a_run_that_reached_everything_gets_no_hint(rig: Rig) -> None:
    gate = rig.with_network(run_code=rules("x.com"))
    run = await rig.run(connecting(gate, ("x.com", 443), ends=raises("ConnectionError", "gone")))
    assert run["error"]["message"] == "gone"
