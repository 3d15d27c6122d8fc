"""kill -9 at any step of a change of sealed secrets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard.stores.seal.secrets import SealedSecrets
from tests.unit.stores.seal.sealed import value

pytestmark = pytest.mark.anyio

DIES = """
import asyncio, itertools, os, signal, sys
from pathlib import Path
from skillyard.stores.seal.secrets import SealedSecrets

steps = 0

def dying(module, name, at):
    plain = getattr(module, name)
    def patched(*args, **options):
        global steps
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*args, **options)
    setattr(module, name, patched)

async def one(place, what, at):
    store = SealedSecrets(place)
    await store.set("A", "first")
    await store.set("A", "old")
    await store.set("B", "beside")
    for module, name in ((os, "open"), (os, "fsync"), (os, "utime"), (Path, "replace"), (Path, "unlink")):
        dying(module, name, at)
    await {
        "set": lambda: store.set("A", "new"),
        "rotate": lambda: store.rotate(),
        "delete": lambda: store.delete("A"),
        "rollback": lambda: store.rollback("A", 1),
    }[what]()

for at in itertools.count(1):
    child = os.fork()
    if not child:
        asyncio.run(one(Path(sys.argv[1]) / str(at), sys.argv[2], at))
        os._exit(0)
    ending = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ending != -signal.SIGKILL:
        sys.exit(ending)
"""

AFTER: dict[str, set[str | None]] = {
    "set": {"old", "new"},
    "rotate": {"old"},
    "delete": {"old", None},
    "rollback": {"old", "first"},
}


@pytest.mark.parametrize("what", AFTER)
async def test_a_kill_at_any_step_leaves_the_old_state_or_the_new(tmp_path: Path, what: str) -> None:
    command = [sys.executable, "-c", DIES, str(tmp_path), what]
    done = await asyncio.to_thread(subprocess.run, command, check=False, timeout=100, capture_output=True)
    assert done.returncode == 0, done.stderr
    places = sorted(tmp_path.iterdir())
    assert len(places) > 4, "it died at several steps"
    seen: set[str | None] = set()
    for place in places:
        fresh = SealedSecrets(place)
        assert await value(fresh, "B") == "beside"
        seen.add(await value(fresh))
        await fresh.set("A", "usable")
        await fresh.rotate()
        assert await value(SealedSecrets(place)) == "usable"
        assert {path.name for path in place.iterdir()} <= {"secrets.sealed", "secrets.key", ".secrets.sealed.lock"}
    assert seen == AFTER[what]
