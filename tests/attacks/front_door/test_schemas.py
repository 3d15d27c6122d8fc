"""Skills whose schemas cost a lot are run over and over; somebody else is served as before."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.front_door.conftest import Door, create_token
from tests.conformance.jailed.evil import EVIL
from tests.crash.server import Server

SIDES = ("inputs", "outputs")
WORST_S = 15.0
"""A fraction of what the checks took that stopped the server, and much on a busy host; the benchmark has the budget."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def evil_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    data_dir = tmp_path_factory.mktemp("evil") / "data"
    for number, name in enumerate(EVIL):
        for side in SIDES:
            _write(data_dir / "skills" / _skill(number, side), _skill(number, side), side, EVIL[name].schema)
    _write(data_dir / "skills" / "fine.one", "fine.one", "inputs", {"type": "object", "required": ["a"]})
    with Server(data_dir, ready=2) as server:
        tokens = {name: create_token(data_dir, name) for name in ("alice", "mallory")}
        yield Door(server, {"owner": server.token, **tokens})


def _skill(number: int, side: str) -> str:
    return f"evil.{side}.n{number}"


def _write(directory: Path, name: str, side: str, schema: object) -> None:
    directory.mkdir(parents=True)
    (directory / "skill.toml").write_text(
        f'name = "{name}"\nversion = "1.0.0"\ndescription = "x"\nkind = "action"\n{side}_schema = "schema.json"\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "main.py"\nexport = "main"\n'
    )
    (directory / "SKILL.md").write_text("---\nname: x\ndescription: x\n---\nx\n")
    (directory / "main.py").write_text("def main(args):\n    return args\n")
    (directory / "schema.json").write_text(json.dumps(schema))


@pytest.mark.parametrize("side", SIDES)
def test_nobody_else_waits_for_a_schema(evil_door: Door, side: str) -> None:
    """Mallory runs each of them on four connections; alice looks at the server and runs a skill meanwhile."""
    assert _runs(evil_door, "fine.one", {"a": 1}, "alice")["status"] == "completed"
    turns = iter(enumerate(EVIL.values()))
    turn, said = threading.Lock(), []

    def attack() -> None:
        while True:
            with turn:
                number, evil = next(turns, (0, None))
            if evil is None:
                return
            said.append(_runs(evil_door, _skill(number, side), evil.value, "mallory"))

    attackers = [threading.Thread(target=attack) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    waits = []
    while any(attacker.is_alive() for attacker in attackers):
        began = time.monotonic()
        with evil_door.wire() as wire:
            assert wire.send(evil_door.head("GET /healthz")).response("GET").status == 200
        waits.append(time.monotonic() - began)
    assert len(said) == len(EVIL)
    assert max(waits) < WORST_S
    assert any("took longer" in run["summary"] for run in said), [run["summary"] for run in said]
    assert _runs(evil_door, "fine.one", {"a": 1}, "mallory")["status"] == "completed"


def test_another_principals_checks_go_on(evil_door: Door) -> None:
    number = list(EVIL).index("references that multiply with the depth")
    value = EVIL["references that multiply with the depth"].value
    target = (evil_door, _skill(number, "inputs"), value, "mallory")
    slow = [threading.Thread(target=_runs, args=target) for _ in range(3)]
    for one in slow:
        one.start()
    began = time.monotonic()
    for _ in range(5):
        assert "required property" in _runs(evil_door, "fine.one", {}, "alice")["summary"]
    took = time.monotonic() - began
    assert any(one.is_alive() for one in slow)
    for one in slow:
        one.join()
    assert took < WORST_S


def _runs(door: Door, skill: str, args: dict[str, object], who: str) -> dict[str, str]:
    """The Run object; of a request that is refused, why, as its summary."""
    with door.wire() as wire:
        body = {"jsonrpc": "2.0", "id": 1, "method": "execute_skill", "params": {"name": skill, "args": args}}
        answer = wire.send(door.post(json.dumps(body).encode(), who=who)).response("POST").json
    found: dict[str, str] = answer.get("result") or {"status": "refused", "summary": answer["error"]["message"]}
    return found
