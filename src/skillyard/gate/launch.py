"""Starting the gate's process."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from skillyard.domain.errors import GateFault
from skillyard.own_process import start_own

_PROGRAM = "skillyard.gate.process"
_NEEDS = ("skillyard", "h11", "cryptography")
_ENVIRONMENT = {"LANG": "C.UTF-8", "LOCALDOMAIN": "."}
"""No search list (resolv.conf(5)): the name that is looked up is the one that was judged, not ``wiki.corp.example``
for ``wiki``, which rules for ``corp.example`` do not meet."""


async def launch(uid: int) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """The process and our end of its channel. Raises GateFault."""
    try:
        return await start_own(_PROGRAM, _NEEDS, {"uid": uid}, _ENVIRONMENT, asyncio.subprocess.PIPE)
    except OSError as error:
        raise GateFault(f"the gate cannot start: {error.filename or ''} {error.strerror or error}") from error


async def last_words(process: asyncio.subprocess.Process, most: int = 2000) -> str:
    """The end of what it said on standard error, once it has ended."""
    said = b""
    assert process.stderr is not None
    with contextlib.suppress(OSError):
        while data := await process.stderr.read(most):
            said = (said + data)[-most:]
    return said.decode("utf-8", "replace").strip()
