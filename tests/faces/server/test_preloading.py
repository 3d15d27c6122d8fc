"""Importing ahead changes nothing that a run can see but its time: a package reads and keeps when it is imported what
its run has."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard import Runtime
from skillyard.config.settings import load_settings
from skillyard.engine.observer import ModulesAhead
from skillyard.stores.disk import remove_tree
from tests.bundles import action
from tests.unit.engine.packages import real_index
from tests.unit.engine.packages.wheels import make_wheel, wheel_name

pytestmark = pytest.mark.anyio

VALUE = "xyzzy-0123456789-plugh"
READER = b"""
import os, ssl
KEY = os.environ.get("KEY")
DIRECTORY = os.environ.get("SKILL_DIR")
CONTEXT = ssl.create_default_context()
"""
KEEPER = b"""
import random
OWN = random.Random()
"""
READS = """
import os, ssl, reader

def main(args):
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return {
        "key": reader.KEY == os.environ["KEY"],
        "directory": reader.DIRECTORY == os.environ["SKILL_DIR"],
        "trusts": set(reader.CONTEXT.get_ca_certs(binary_form=True)) == set(trusted),
    }
"""
ASKS = """
import asyncio, os, aiohttp

async def ask(url):
    async with aiohttp.ClientSession(trust_env=True) as session:
        async with session.get(url, headers={"x-key": os.environ["KEY"]}) as answer:
            return answer.status

def main(args):
    return {"status": asyncio.run(ask(args["url"]))}
"""
MANIFEST = action(
    "{name}",
    "Uses a package that reads its surroundings",
    """
[dependencies]
{package} = "*"

[permissions]
network = {network}
secrets = [{{ name = "KEY", delivery = "gate", hosts = ["{host}"] }}]
""",
)


class Yard:
    def __init__(self, runtime: Runtime, events: list[Any]) -> None:
        self.runtime = runtime
        self.events = events

    async def run(self, code: str, **params: Any) -> Any:
        run = await self.runtime.run_code(code, **params)
        await self.runtime.app.ahead.settled()
        return run.raise_for_status().output

    async def execute(self, skill: str, **args: Any) -> Any:
        run = await self.runtime.execute_skill(skill, args)
        await self.runtime.app.ahead.settled()
        return run.raise_for_status().output


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    threads = b"import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    for name, source in (("reader", READER), ("keeper", KEEPER), ("gamma", threads), ("numpy", b"HERE = True\n")):
        (wheels / wheel_name(name)).write_bytes(make_wheel(name, files={f"{name}/__init__.py": source}))
    for path in (tmp_path, wheels, *wheels.iterdir()):
        path.chmod(0o755)
    write_skill(tmp_path / "data", "demo.reads", "reader", READS, "api.example.com")
    settings = load_settings(
        data_dir=tmp_path / "data",
        packages={"run_code": ["*"], "wheels": wheels, "offline": True},
        environments={
            "usual": {"packages": ["numpy", "reader"]},
            "named": {"packages": ["numpy", "keeper", "gamma"], "preload": ["keeper", "gamma"]},
            "off": {"packages": ["numpy"], "preload": False},
        },
    )
    async with made(settings) as yard:
        yield yard
    remove_tree(tmp_path / "data" / "environments")


@asynccontextmanager
async def made(settings: Any) -> AsyncIterator[Yard]:
    events: list[Any] = []
    async with Runtime(settings=settings, observer=events.append) as runtime:
        if not (offer := runtime.app.backends.default) or offer.name != "native":
            pytest.skip("native sandboxes do not stand here")
        await runtime.set_secret("KEY", VALUE)
        yield Yard(runtime, events)


def write_skill(data_dir: Path, name: str, package: str, source: str, *hosts: str) -> None:
    code = data_dir / "skills" / name / "code"
    code.mkdir(parents=True)
    (code / "main.py").write_text(source)
    manifest = MANIFEST.format(name=name, package=package, network=json.dumps(hosts), host=hosts[0])
    (code.parent / "skill.toml").write_text(manifest)
    (code.parent / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Reads\n---\nIt reads.\n")


async def test_a_package_that_reads_when_it_is_imported_reads_what_its_run_has(yard: Yard) -> None:
    """Whose run it is, however many came before: the variable, the directory and the gate's authority."""
    for _ in range(3):
        assert await yard.execute("demo.reads") == {"key": True, "directory": True, "trusts": True}


async def test_what_is_known_to_be_fit_and_what_the_operator_names_is_there_already(yard: Yard) -> None:
    """Nothing else is, and what cannot be imported ahead is left out."""
    code = "import sys\nHERE = sorted({'numpy', 'reader', 'keeper', 'gamma'} & sys.modules.keys())\n"
    look = code + "def main(args): return {'here': HERE}"
    for environment, here in (("usual", ["numpy"]), ("named", ["keeper", "numpy"]), ("off", [])):
        assert await yard.run(look, environment=environment) == {"here": []}
        assert await yard.run(look, environment=environment) == {"here": here}
    assert await yard.run(look, packages=["numpy", "reader"]) == {"here": []}, "nobody consented to them"
    said = {event.environment: event for event in yard.events if isinstance(event, ModulesAhead)}
    assert {name: event.modules for name, event in said.items()} == {"usual": ("numpy",), "named": ("keeper", "numpy")}
    assert {name: "threads" in why for name, why in said["named"].faults.items()} == {"gamma": True}


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(real_index.why_not()), reason=real_index.why_not() or "-")
async def test_aiohttp_trusts_the_gate_in_every_run(tmp_path: Path) -> None:
    """It makes a context when it is imported, which knows the authorities of that moment."""
    host = real_index.HOSTS[0]
    write_skill(tmp_path / "data", "demo.asks", "aiohttp", ASKS, host)
    addresses = sorted({str(known[4][0]) for known in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)})
    settings = load_settings(
        data_dir=tmp_path / "data", packages=real_index.packages(), network={"hosts": {host: addresses}}
    )
    async with made(settings) as yard:
        for _ in range(3):
            assert await yard.execute("demo.asks", url=f"https://{host}/simple/six/") == {"status": 200}
    remove_tree(tmp_path / "data" / "environments")
