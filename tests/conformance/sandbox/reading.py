"""Programs that read content in a sandbox, and the bytes that they tell."""

from __future__ import annotations

from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.ports.sandbox import Backend, Sandbox


async def said(sandbox: Sandbox, text: str) -> str:
    """Returns what a command says."""
    process = await sandbox.start(Argv(("sh", "-c", text)), id="says")
    return b"".join([data async for data in process.output(Stream.STDOUT)]).decode()


async def ran(backend: Backend, spec: SandboxSpec, text: str) -> str:
    """Returns what a command says in a sandbox of its own."""
    sandbox = await backend.create(spec, "one")
    try:
        return await said(sandbox, text)
    finally:
        await backend.destroy(sandbox.handle)
