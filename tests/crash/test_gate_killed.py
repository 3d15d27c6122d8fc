"""kill -9 of servers and gates in the middle of a transfer with a secret that the gate delivers.

The run is detached: its program goes on, with the same rules and the same secret, and the log tells of the loss.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import Outcome
from skillyard.stores.seal.secrets import SealedSecrets
from tests.bundles import action
from tests.conformance.gate.intercepted import TOKEN, Outside
from tests.conformance.gate.programs.web import Asked
from tests.crash import network_owner
from tests.crash.ledger import strange_files
from tests.crash.leftovers import Footprint, gone, idle
from tests.crash.network_owner import RUN, NetworkOwner
from tests.crash.server import Server

pytestmark = pytest.mark.anyio
BOUND_S = 60.0

CODE = """
import os, sys, time, urllib.request
url = 'https://api.test:%d/step' % PORT
told = []
while True:
    asking = urllib.request.Request(url, headers={'X-Key': os.environ['KEY']})
    try:
        said = urllib.request.urlopen(asking, timeout=60).read().decode()
    except OSError:
        said = 'cut'
        time.sleep(0.05)
    if told[-1:] != [said] or said != 'cut':
        told.append(said)
        print(said, flush=True)
    if said == 'end':
        sys.exit(7)
"""


@dataclass
class Site:
    """A server of the outside: each request waits until the test answers it."""

    outside: Outside
    asked: queue.Queue[Asked] = field(default_factory=queue.Queue)
    answers: queue.Queue[bytes] = field(default_factory=queue.Queue)

    def step(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        self.asked.put(asked)
        return 200, {"content-type": "text/plain"}, self.answers.get(timeout=BOUND_S)

    async def in_the_middle(self) -> None:
        """Waits until a request has come that shows the secret and waits for its answer."""
        asked = await asyncio.to_thread(self.asked.get, True, BOUND_S)
        assert asked.headers["x-key"] == TOKEN


@dataclass
class Killed:
    home: Path
    config: str
    footprint: Footprint
    handle: str = ""

    @asynccontextmanager
    async def server(self) -> AsyncIterator[None]:
        """A server, which is killed in the end."""
        words = ["attach", self.handle] if self.handle else ["start"]
        owner = await asyncio.create_subprocess_exec(
            *(sys.executable, network_owner.__file__, str(self.home), self.config, *words),
            stdout=asyncio.subprocess.PIPE,
        )
        assert owner.stdout is not None
        try:
            async with asyncio.timeout(BOUND_S):
                self.handle = (await owner.stdout.readline()).decode().strip()
                assert self.handle, "the owner ended"
            self.footprint.look()
            yield
        finally:
            owner.kill()
            await owner.wait()


async def test_a_detached_run_keeps_its_network(tmp_path: Path) -> None:
    outside = Outside(tmp_path)
    site = Site(outside)
    outside.routes["/step"] = site.step
    home = tmp_path / "data"
    home.mkdir(mode=0o700)
    code = CODE.replace("PORT", str(outside.https.port))
    config = {"port": outside.https.port, "value": TOKEN, "ca_file": str(outside.authority.ca_file), "code": code}
    killed = Killed(home, json.dumps(config), Footprint(home))
    try:
        async with killed.server():
            await site.in_the_middle()
        site.answers.put(b"without a server")
        await site.in_the_middle()
        async with killed.server():
            site.answers.put(b"with the next one")
            await site.in_the_middle()
            assert killed.footprint.kill_gates()
            site.answers.put(b"nobody gets it")
            await site.in_the_middle()
            site.answers.put(b"with another gate")
            await site.in_the_middle()
            assert killed.footprint.kill_gates()
        site.answers.put(b"nobody gets it")
        heir = NetworkOwner(home, config)
        process = await heir.attach(killed.handle)
        await site.in_the_middle()
        for path in home.rglob("*"):
            if path.is_file():
                assert TOKEN.encode() not in path.read_bytes(), path
        site.answers.put(b"end")
        async with asyncio.timeout(BOUND_S):
            ending = await process.wait()
            said = b"".join([piece async for piece in process.output(Stream.STDOUT)]).decode().splitlines()
        assert (ending.outcome, ending.code) == (Outcome.EXIT, 7)
        assert said == ["without a server", "with the next one", "cut", "with another gate", "cut", "end"]
        await heir.backend.destroy(killed.handle)
        seen = await heir.network.close()
        _check(seen["connections"], outside.https.port)
        assert not seen["complete"]
        assert list(await heir.gate.held()) == []
        await heir.close()
        assert heir.faults == []
        assert not list((home / "run" / "sessions").glob("*.sealed"))
        assert not list((home / "run" / "gate").glob("*.pem"))
        gone(killed.footprint)
    finally:
        outside.close()
        if killed.handle:
            killed.footprint.kill_keeper()


MANIFEST = action(
    "tests.steps",
    "Asks a service, step by step, with a secret that it never sees",
    """
[permissions]
network = ["api.test:{port}"]
secrets = [{{ name = "KEY", delivery = "gate", hosts = ["api.test:{port}"] }}]
""",
)
SKILL = """
import os, time, urllib.request

def main(args):
    told = []
    while told[-1:] != ["end"]:
        asking = urllib.request.Request(args["url"], headers={"X-Key": os.environ["KEY"]})
        try:
            said = urllib.request.urlopen(asking, timeout=60).read().decode()
        except OSError:
            said = "cut"
            time.sleep(0.05)
        if told[-1:] != [said] or said != "cut":
            told.append(said)
    return {"told": told}
"""


async def test_a_detached_run_of_a_whole_server(tmp_path: Path) -> None:
    outside = Outside(tmp_path)
    site = Site(outside)
    outside.routes["/step"] = site.step
    port, data = outside.https.port, tmp_path / "data"
    skill = tmp_path / "skills" / "tests.steps"
    (skill / "code").mkdir(parents=True)
    (skill / "skill.toml").write_text(MANIFEST.format(port=port))
    (skill / "SKILL.md").write_text("---\nname: steps\ndescription: Asks a service\n---\nIt asks.\n")
    (skill / "code" / "main.py").write_text(SKILL)
    env = {
        "SKILLYARD_NETWORK__CA_FILE": str(outside.authority.ca_file),
        "SKILLYARD_NETWORK__HOSTS": json.dumps({"api.test": "127.0.0.1"}),
        "SKILLYARD_SKILLS_DIRS": str(tmp_path / "skills"),
    }
    data.mkdir(mode=0o700)
    await SealedSecrets(data).set("KEY", TOKEN)
    footprint = Footprint(data)
    try:
        with Server(data, ready=0, **env) as server, server.client() as client:
            args = {"url": f"https://api.test:{port}/step"}
            run_id = client.execute_skill("tests.steps", args, detach=True).run_id
            await site.in_the_middle()
            server.kill()
        site.answers.put(b"without a server")
        await site.in_the_middle()
        with Server(data, ready=0, **env) as server:
            assert footprint.kill_gates()
            site.answers.put(b"nobody gets it")
            await site.in_the_middle()
            assert footprint.kill_gates()
            server.kill()
        site.answers.put(b"nobody gets it")
        with Server(data, ready=0, **env) as server, server.client() as client:
            await site.in_the_middle()
            site.answers.put(b"end")
            await asyncio.to_thread(client.call, "runs.wait", {"run_id": run_id, "wait_ms": 60_000})
            run = client.call("runs.show", {"run_id": run_id})["run"]
            assert run["status"] == "completed", run
            assert run["output"] == {"told": ["without a server", "cut", "end"]}
            _check(run["network"]["connections"], port)
            assert not run["network"]["complete"]
            assert not list((data / "run" / "sessions").glob("*.sealed"))
            assert not list((data / "run" / "gate").glob("*.pem"))
            idle(footprint)
            assert server.stop() == 0, server.log()
        gone(footprint)
    finally:
        outside.close()
        footprint.kill_keeper()


def test_a_killed_gate_leaves_no_socket(tmp_path: Path) -> None:
    footprint = Footprint(tmp_path)
    for together in (False, True):
        with Server(tmp_path, SKILLYARD_NETWORK__RUN_CODE='["api.test:443"]') as server, server.client() as client:
            run = client.run_code("def main(args): return 1", network=["api.test:443"])
            assert run["outcome"] == "exit", run
            assert footprint.kill_gates() == 1
            if together:
                server.kill()
        if together:
            with Server(tmp_path) as server:
                assert server.stop() == 0, server.log()
        gone(footprint)
        assert strange_files(tmp_path) == []


def _check(rows: list[dict[str, object]], port: int) -> None:
    lost = [row for row in rows if row["via"] == "gate"]
    assert sum(int(str(row["count"])) for row in lost) == 2
    assert all("the gate was lost: its process ended" in str(row["reason"]) for row in lost)
    reached = [row for row in rows if row["allowed"]]
    assert {(row["host"], row["port"]) for row in reached} == {("api.test", port)}
    assert any(row["secrets"] == ["KEY"] for row in reached)
    assert all(row["via"] in ("gate", "direct", "connect") for row in rows), RUN
