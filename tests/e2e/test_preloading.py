"""From the first run to the second: what an operator's environment imports is there already, and nobody else's is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard import Runtime
from skillyard.engine.observer import ModulesAhead
from skillyard.settings import load_settings
from skillyard.stores.skills.snapshots import remove_tree
from tests.packages.wheels import make_wheel, wheel_name

pytestmark = pytest.mark.anyio

CODE = """
import sys
HERE = sorted({"alpha", "alpha.deep", "gamma"} & sys.modules.keys())
import alpha.deep
def main(args):
    return {"here": HERE, "deep": alpha.deep.VALUE}
"""
HOSTILE = """
import struct, json, os
def main(args):
    told = json.dumps({"imported": ["gamma", "os", "subprocess", "alpha.__main__"], "used": []}).encode()
    os.write(3, b"I" + struct.pack(">I", len(told)) + told + b"R" + struct.pack(">I", 2) + b"{}")
    os._exit(0)
"""


class Yard:
    def __init__(self, runtime: Runtime, events: list[Any]) -> None:
        self.runtime = runtime
        self.events = events

    async def run(self, code: str = CODE, **params: Any) -> Any:
        run = await self.runtime.run_code(code, **params)
        await self.runtime.engine.preloads.settled()
        return run.raise_for_status().output


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    deep = {"alpha/deep.py": b"VALUE = 5\n", "alpha/__main__.py": b"raise SystemExit('no program')\n"}
    (wheels / wheel_name("alpha")).write_bytes(make_wheel("alpha", files=deep))
    threads = b"import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    (wheels / wheel_name("gamma")).write_bytes(make_wheel("gamma", files={"gamma/__init__.py": threads}))
    for path in (tmp_path, wheels, *wheels.iterdir()):
        path.chmod(0o755)
    settings = load_settings(
        data_dir=tmp_path / "data",
        packages={"run_code": ["*"], "wheels": wheels, "offline": True},
        environments={"greek": {"packages": ["alpha", "gamma"]}},
    )
    events: list[Any] = []
    async with Runtime(settings=settings, observer=events.append) as runtime:
        yield Yard(runtime, events)
    remove_tree(tmp_path / "data" / "environments")


async def test_the_second_run_begins_with_what_the_first_imported(yard: Yard) -> None:
    assert await yard.run(environment="greek") == {"here": [], "deep": 5}
    assert await yard.run(environment="greek") == {"here": ["alpha", "alpha.deep"], "deep": 5}
    asked = await yard.run(packages=["alpha", "gamma"])
    assert asked == {"here": [], "deep": 5}, "the same packages, and nobody consented to them"


async def test_what_a_hostile_run_says_costs_it_at_most_itself(yard: Yard) -> None:
    """Only the environment's own modules count, and one that cannot be imported ahead is left out."""
    for _ in range(2):
        assert await yard.run(HOSTILE, environment="greek") == {}
    assert (await yard.run(environment="greek"))["here"] == []
    said = next(event for event in yard.events if isinstance(event, ModulesAhead))
    assert said.modules == ()
    assert {name: "threads" in why for name, why in said.faults.items()} == {"gamma": True}
