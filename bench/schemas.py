"""The cost of schemas: a small one for its run, and one that never ends for other callers."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillyard.bench.turns import in_ms
from skillyard.client.errors import ClientError
from skillyard.client.sync import SyncClient
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from skillyard.server_process import ServerProcess

_CHECKS = 300
_ATTACKERS = 4
_PAUSE_S = 0.005
_BOTH = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
_ANY = {"anyOf": [{"const": str(n)} for n in range(400)]}
_LONG = "a" * 31_000
_SMALL = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_EVIL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "multiplying": ({"properties": {"a": _BOTH}}, json.loads('{"a":' * 40 + "{}" + "}" * 40)),
    "regex": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": f"{_LONG}!"}),
    "unique": ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[n] for n in range(20_000)]}),
    "choices": ({"properties": {"a": {"items": _ANY}}}, {"a": ["x"] * 20_000}),
}


@dataclass(slots=True)
class Checked:
    """Seconds of checks against a small schema, and of ``/healthz`` without and under attack."""

    small: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    attacks: int = 0

    def as_dict(self) -> dict[str, Any]:
        parts = {"small": self.small, "healthz_quiet": self.quiet, "healthz_attacked": self.attacked}
        return {"attacks": self.attacks, **{name: in_ms(samples) for name, samples in parts.items()}}


async def measure(home: Path, seconds: float) -> Checked:
    """Measures all three. Raises the errors of a server and of its start."""
    found = Checked()
    pool = JailedPool(NO_ACCOUNT)
    try:
        for number in range(_CHECKS + 10):
            began = time.perf_counter()
            await pool.check("bench", "small", _SMALL, b'{"n": 1}')
            if number >= 10:
                found.small.append(time.perf_counter() - began)
    finally:
        await pool.close()
    for name, (schema, _) in _EVIL.items():
        _write(home / "skills" / f"evil.{name}", name, schema)
    await asyncio.to_thread(_attack, home, seconds, found)
    return found


def _write(directory: Path, name: str, schema: dict[str, Any]) -> None:
    directory.mkdir(parents=True)
    (directory / "skill.toml").write_text(
        f'name = "evil.{name}"\nversion = "1.0.0"\ndescription = "x"\nkind = "action"\ninputs_schema = "schema.json"\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "main.py"\nexport = "main"\n'
    )
    (directory / "SKILL.md").write_text(f"---\nname: {name}\ndescription: x\n---\nx\n")
    (directory / "main.py").write_text("def main(args):\n    return {}\n")
    (directory / "schema.json").write_text(json.dumps({"type": "object", **schema}))


def _attack(home: Path, seconds: float, found: Checked) -> None:
    over = threading.Event()
    with ServerProcess(home / "data", skills_dirs=[home / "skills"], settings={}) as server:
        address = server.url.rpartition("/")[2]
        found.quiet += _look(address, seconds / 4)

        def attack(first: int) -> None:
            turns = list(_EVIL.items())
            with SyncClient(data_dir=server.data_dir) as client:
                while not over.is_set():
                    name, (_, value) = turns[(first + found.attacks) % len(turns)]
                    try:
                        client.execute_skill(f"evil.{name}", value)
                    except ClientError:
                        continue
                    found.attacks += 1

        attackers = [threading.Thread(target=attack, args=(number,)) for number in range(_ATTACKERS)]
        for attacker in attackers:
            attacker.start()
        try:
            found.attacked += _look(address, seconds)
        finally:
            over.set()
            for attacker in attackers:
                attacker.join()


def _look(address: str, seconds: float) -> list[float]:
    """Asks one question after another on one connection, as a load balancer does."""
    taken = []
    connection = http.client.HTTPConnection(address, timeout=60)
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        taken.append(time.perf_counter() - began)
        time.sleep(_PAUSE_S)
    connection.close()
    return taken
