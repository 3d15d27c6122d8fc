"""A runtime whose call of a tool is at work when somebody kills it. Its arguments are a directory and a mark."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.faces.gateway.conftest import SERVER, yard_of


async def main(home: Path, mark: str) -> None:
    toy = {**SERVER, "command": ["python3", "toy_server.py", mark]}
    async with yard_of(home, mcp={"servers": {"toy": toy}}) as yard:
        await yard.call("tools.refresh", server="toy")
        calling = asyncio.ensure_future(yard.tool("sleep"))
        while not sum(kept.calls for kept in yard.runtime.app.gateway.kept()):
            await asyncio.sleep(0.01)
        print("at work", flush=True)
        await calling


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
