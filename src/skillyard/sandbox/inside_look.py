"""How backends look at a sandbox of theirs from inside: Python that prints one JSON object."""

from __future__ import annotations

import json
from typing import Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.ports.sandbox import Sandbox

_SHOWN = 300


async def look(sandbox: Sandbox, code: str, *words: str, bound_ms: int) -> dict[str, Any]:
    """What ``code`` prints, run with ``words`` as its arguments. Raises SkillyardError when it is not a JSON object."""
    program = Argv(("python3", "-I", "-S", "-c", code, *words))
    process = await sandbox.start(program, id="look", timeout_ms=bound_ms)
    text = b"".join([piece async for piece in process.output(Stream.STDOUT)])
    ending = await process.wait()
    try:
        seen = json.loads(text)
    except (ValueError, RecursionError):
        seen = None
    if isinstance(seen, dict):
        return seen
    complaint = b"".join([piece async for piece in process.output(Stream.STDERR)])
    why = complaint.decode("utf-8", "replace").strip()[-_SHOWN:] or ending.reason or f"exit code {ending.code}"
    raise SkillyardError(f"python does not run in the sandbox: {why}")
