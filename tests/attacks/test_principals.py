"""No principal reaches another's objects by naming them; the answer is that of what does not exist."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from skillyard import Runtime
from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.table import invoke

pytestmark = pytest.mark.anyio

SCOPES = frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.BLOBS, Scope.DISCOVER})
ALICE, MALLORY = Principal("alice", SCOPES), Principal("mallory", SCOPES)
CODE = {"language": "python", "code": "def main(args):\n    print('private')\n    return {}"}

NAMING = {
    "the record of a run": ("runs.show", {"run_id": "{run}"}),
    "the log of a run": ("runs.logs", {"run_id": "{run}"}),
    "the end of a run": ("runs.cancel", {"run_id": "{run}"}),
    "the runs after a run": ("runs.list", {"cursor": "{run}"}),
    "a blob": ("read_blob", {"blob_id": "{blob}"}),
    "the facts of a blob": ("blobs.stat", {"blob_id": "{blob}"}),
    "the end of a blob": ("blobs.delete", {"blob_id": "{blob}"}),
    "the blobs after a blob": ("blobs.list", {"cursor": "{blob}"}),
    "a blob as input": ("run_code", {**CODE, "input_blobs": ["{blob}"]}),
    "everybody's runs": ("runs.list", {"all": True}),
    "everybody's blobs": ("blobs.list", {"all": True}),
}


def named(value: Any, run: str, blob: str) -> Any:
    if isinstance(value, dict):
        return {key: named(item, run, blob) for key, item in value.items()}
    if isinstance(value, list):
        return [named(item, run, blob) for item in value]
    return value.replace("{run}", run).replace("{blob}", blob) if isinstance(value, str) else value


async def test_nothing_of_anothers(tmp_path: Any) -> None:
    async with Runtime(tmp_path / "data") as runtime:
        own = await invoke(runtime.app, ALICE, "run_code", {**CODE, "idempotency_key": "same"})
        run, blob = own["run_id"], own["logs_blob"]
        for what, (method, params) in NAMING.items():
            real, made_up = named(params, run, blob), named(params, "run_" + "0" * 32, "blob:" + "0" * 32)
            with pytest.raises(SkillyardError) as refused:
                await invoke(runtime.app, MALLORY, method, real)
            with pytest.raises(SkillyardError) as missing:
                await invoke(runtime.app, MALLORY, method, made_up)
            assert type(refused.value) is type(missing.value), what
        theirs = await invoke(runtime.app, MALLORY, "run_code", {**CODE, "idempotency_key": "same"})
        assert theirs["run_id"] != run
        seen = await asyncio.gather(
            *(invoke(runtime.app, MALLORY, method, {}) for method in ("runs.list", "blobs.list"))
        )
        assert run not in str(seen)
        assert blob not in str(seen)
        kept = await invoke(runtime.app, ALICE, "read_blob", {"blob_id": blob})
        assert kept["preview"] == "private\n"


LOOK = """import os
def main(args):
    found = os.stat("/blobs/" + args["blob"].removeprefix("blob:"))
    return [found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink]
"""


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_content_that_another_has_too_tells_nothing_of_it(tmp_path: Any, size: int) -> None:
    """What a run sees of its own blob is as new as the blob, whoever else stored the same bytes before, and stays when
    the other's goes."""
    text = base64.b64encode(b"x" * size).decode()
    async with Runtime(tmp_path / "data") as runtime:

        async def stored(who: Principal) -> list[int]:
            blob = await invoke(runtime.app, who, "create_blob", {"content": text, "encoding": "base64", "kind": "a/b"})
            run = {
                "language": "python",
                "code": LOOK,
                "args": {"blob": blob["blob_id"]},
                "input_blobs": [blob["blob_id"]],
            }
            done = await invoke(runtime.app, who, "run_code", run)
            assert done["status"] == "completed", done
            return list(done["output"]["result"])

        theirs = await stored(MALLORY)
        between = time.time_ns()
        ours = await stored(ALICE)
        assert theirs[0] != ours[0]
        assert theirs[1] < between <= ours[1] + 10_000_000, "the kernel's clock for files is a tick behind"
        assert ours[3] == 1
