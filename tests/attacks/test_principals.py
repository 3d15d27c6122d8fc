"""Contents that two principals have in common tell neither of the other."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from skillyard import Runtime
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.table import invoke

pytestmark = pytest.mark.anyio

SCOPES = frozenset({Scope.EXECUTE, Scope.RUN_CODE, Scope.BLOBS, Scope.DISCOVER})
ALICE, MALLORY = Principal("alice", SCOPES), Principal("mallory", SCOPES)
CODE = {"language": "python", "code": "def main(args):\n    print('private')\n    return {}"}

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
