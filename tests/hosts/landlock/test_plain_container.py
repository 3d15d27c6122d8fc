"""Where namespaces are closed for good, runs get the landlock level, by name or by ``auto``, and the record says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.sandbox.guarantees import ADVISORY
from skillyard.sandbox.registry import nature
from tests.hosts.landlock.host import TOO_OLD

BOUND_S = 60
CONTAINER = str(Path(__file__).with_name("plain_container.py"))

RUNTIME = """
import json, sys
from skillyard import SyncRuntime
from skillyard.domain.errors import SkillyardError
from skillyard.config.policy import PolicySettings
from skillyard.config.settings import Settings

def attempt(isolation):
    settings = Settings(data_dir=sys.argv[1] + "/" + isolation, policy=PolicySettings(isolation=isolation))
    try:
        with SyncRuntime(settings=settings) as runtime:
            run = runtime.run_code("def main(args): return {'sum': sum(args['xs'])}", {"xs": [1, 2, 3]})
            told = {name: run.get(name) for name in ("error", "isolation", "enforced")}
            return {"output": run.output, **told}
    except SkillyardError as error:
        return {"refused": error.message}

print(json.dumps({name: attempt(name) for name in sys.argv[2:]}))
"""
PROBE = """
import asyncio, json, sys
from pathlib import Path
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend

async def main():
    backend = LandlockBackend(Path(sys.argv[1]) / "run")
    probe = await backend.probe()
    mends = sorted({protection.mend for protection in probe.protections.values()})
    await backend.close()
    return {"ready": probe.ready, "why": probe.facts.get("why", ""), "mends": mends}

print(json.dumps(asyncio.run(main())))
"""


def contained(options: str, source: str, *args: str) -> Any:
    """What a program prints that runs in a plain container."""
    command = [sys.executable, CONTAINER, options, sys.executable, "-c", source, *args]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(TOO_OLD, reason="this kernel's Landlock is too old for the level")
def test_auto_takes_the_landlock_level_and_native_is_refused(tmp_path: Path) -> None:
    told = contained("", RUNTIME, str(tmp_path), "native", "auto")
    assert "native" in told["native"]["refused"]
    assert told["auto"].get("output") == {"sum": 6}, told
    assert told["auto"]["isolation"] == "landlock"
    missing = {wall for wall, level in told["auto"]["enforced"].items() if level == "missing"}
    assert missing <= nature("landlock").without | ADVISORY
    assert ("own_uid" in missing) == (os.geteuid() != 0)


def test_a_filter_that_closes_landlock_is_named_with_its_mend(tmp_path: Path) -> None:
    told = contained("landlock_create_ruleset", PROBE, str(tmp_path))
    assert not told["ready"]
    assert "refuses its system calls" in told["why"]
    assert "seccomp=" in told["mends"][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an ordinary user is one without capabilities anyway")
def test_a_root_that_can_give_no_ids_is_refused(tmp_path: Path) -> None:
    told = contained("no-capabilities", PROBE, str(tmp_path))
    assert not told["ready"]
    assert "would be root" in told["why"]
    assert "CAP_SETUID" in told["mends"][0]
