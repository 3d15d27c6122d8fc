"""Starting the gate's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from skillyard.domain.errors import GateFault

_PROGRAM = "skillyard.egress.process"
_NEEDS = ("skillyard", "h11", "cryptography")
_CODE = (
    "import sys, json; sys.path[:0] = json.loads(sys.argv[1]); "
    f"from {_PROGRAM} import main; main(json.loads(sys.argv[2]))"
)
_ENVIRONMENT = {"LANG": "C.UTF-8", "LOCALDOMAIN": "."}
"""No search list (resolv.conf(5)): the name that is looked up is the one that was judged, not ``wiki.corp.example``
for ``wiki``, which rules for ``corp.example`` do not meet."""


async def launch(uid: int) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """The process and our end of its channel. Raises GateFault."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    roots = _roots()
    config = {"channel": its.fileno(), "uid": uid, "read": [sys.base_prefix, *roots]}
    executable = getattr(sys, "_base_executable", "") or sys.executable
    try:
        process = await asyncio.create_subprocess_exec(
            executable,
            *("-I", "-S", "-B", "-c", _CODE, json.dumps(roots), json.dumps(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise GateFault(f"the gate cannot start: {executable}: {error.strerror}") from error
    finally:
        its.close()
    return process, ours


def _roots() -> Sequence[str]:
    """Where the code is that the gate runs: each package's directory above."""
    found = []
    for name in _NEEDS:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise GateFault(f"the gate cannot start: {name} is not installed")
        found.append(str(Path(spec.origin).resolve().parents[1]))
    return list(dict.fromkeys(found))


async def last_words(process: asyncio.subprocess.Process, most: int = 2000) -> str:
    """The end of what it said on standard error, once it has ended."""
    said = b""
    assert process.stderr is not None
    with contextlib.suppress(OSError):
        while data := await process.stderr.read(most):
            said = (said + data)[-most:]
    return said.decode("utf-8", "replace").strip()
