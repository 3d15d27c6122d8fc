"""A server's stand-in with the network of a detached run, meant to be killed: backend, gate and run, nothing more.

``python network_owner.py HOME CONFIG start`` makes the sandbox and starts the program, ``… attach HANDLE`` goes on.
Both print the handle when the program has its network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.network.policy import OPERATOR, Layer, Policy, parse_rules
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import EgressLimits, EgressPlan, GateSecret, new_placeholder
from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec
from skillyard.engine.network.run_network import NetworkGrant, RunNetwork, first_record
from skillyard.engine.secrets.redact import NOTHING
from skillyard.engine.tasks import Tasks
from skillyard.gate.client import ProcessGate
from skillyard.ports.sandbox import Process
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.stores.seal.keys import OwnKeyFile
from skillyard.stores.seal.sessions import SealedSessions

RUN, PROGRAM = "run_1", "work"
GATE_UID = 1_899_999_999


class NetworkOwner:
    """The parts of one server. ``config`` has ``port``, ``value`` of the secret, ``ca_file`` and ``code``."""

    def __init__(self, home: Path, config: Mapping[str, Any]) -> None:
        self._config = config
        keys = OwnKeyFile(home / "secrets.key", home / "secrets.sealed")
        store = SealedSessions(home / "run" / "sessions", keys)
        self.faults: list[str] = []
        self.gate = ProcessGate(home / "run" / "gate", uid=GATE_UID, ca_file=Path(config["ca_file"]), sessions=store)
        self.gate.attend(lambda _: self._tasks.spawn(self.gate.restart(), "restart"), self.faults.append, print)  # type: ignore[arg-type]
        self.backend = NativeBackend(home / "run", plug=self.gate)
        self._tasks = Tasks()
        self.network: RunNetwork

    async def start(self) -> str:
        rules = [f"api.test:{self._config['port']}"]
        hosts = {"api.test": (ipaddress.ip_address("127.0.0.1"),)}
        policy = Policy((Layer(OPERATOR, parse_rules(rules)),), hosts)
        placeholder = new_placeholder()
        secret = GateSecret("KEY", placeholder, self._config["value"], tuple(map(parse_rule, rules)))
        plan = EgressPlan(policy, EgressLimits(), (secret,))
        self.network = RunNetwork(RUN, NetworkGrant(self.gate, plan, NOTHING, kept=True))
        self.network.begin(self._tasks)
        spec = await self.network.join(SandboxSpec(owner=Owner.TASK))
        sandbox = await self.backend.create(spec, RUN)
        env = (await self.network.enter(sandbox, {"env": {"KEY": placeholder}}))["env"]
        await sandbox.start(Argv(("python3", "-I", "-c", self._config["code"]), env=env), id=PROGRAM)
        return sandbox.handle

    async def attach(self, handle: str) -> Process:
        sandbox = await self.backend.attach(handle)
        self.network = RunNetwork.of_record(RUN, self.gate, NOTHING, first_record(Policy()))
        await self.network.resume(sandbox)
        return await sandbox.process(PROGRAM)

    async def close(self) -> None:
        await self._tasks.drain()
        await self.backend.close()
        await self.gate.close()


async def main(home: str, config: str, what: str, *words: str) -> None:
    owner = NetworkOwner(Path(home), json.loads(config))
    if what == "start":
        print(await owner.start(), flush=True)
    else:
        await owner.attach(words[0])
        print(words[0], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
