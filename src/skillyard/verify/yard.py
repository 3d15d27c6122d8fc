"""Where attacks are sent: a runtime or a server, through the methods that everybody has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skillyard.client.methods import ProtocolMethods
from skillyard.client.run import Run
from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.guarantees import Level
from skillyard.verify.prelude import program

if TYPE_CHECKING:
    from skillyard.runtime import Runtime
    from skillyard.verify.canaries import Canaries

TIMEOUT_MS = 30_000
_BUSY = -32005
_PATIENCE = 40
_PAUSE_S = 0.25


@dataclass(slots=True)
class Yard:
    """``runtime`` is there when the server is a runtime of this process, ``canaries`` when targets were planted.
    ``moved``: its sandboxes have their own places below another directory than /; ``levels``: what its records say of
    protections that are not the kernel's. ``enforced`` is what the records of
    this attack's runs claimed, ``outcomes`` how they ended."""

    caller: ProtocolMethods
    isolation: str | None = None
    runtime: Runtime | None = None
    canaries: Canaries | None = None
    moved: bool = False
    levels: Mapping[str, str] = field(default_factory=dict)
    enforced: dict[str, str] = field(default_factory=dict)
    outcomes: set[str] = field(default_factory=set)

    def fresh(self) -> Yard:
        """The same place, for another attack."""
        return Yard(self.caller, self.isolation, self.runtime, self.canaries, self.moved, self.levels)

    async def attack(self, body: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Run:
        """Run a body of the battery's language (:mod:`skillyard.verify.prelude`)."""
        return await self.run(program(body, self.levels), args, **limits)

    async def run(self, code: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Run:
        """Run source. Raises what the API raises; a server that is busy is asked again."""
        params: dict[str, Any] = {"language": "python", "code": code, "args": dict(args or {})}
        params["limits"] = {"timeout_ms": TIMEOUT_MS, **limits}
        return await self.call_run("run_code", params)

    async def call_run(self, method: str, params: Mapping[str, Any]) -> Run:
        """A method that runs something, with these very parameters."""
        asked = dict(params) if self.isolation is None else {**params, "isolation": self.isolation}
        if self.moved and "code" in asked:
            asked["code"] = moved(asked["code"])
        run = Run.of(await self._patiently(method, asked))
        self.enforced.update(run.raw.get("enforced") or {})
        self.outcomes.add(str(run.raw.get("outcome") or ""))
        return run

    async def _patiently(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        for turn in range(_PATIENCE):
            try:
                return await self.caller.call(method, params)
            except SkillyardError as error:
                if error.code != _BUSY or turn == _PATIENCE - 1:
                    raise
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("unreachable")


HEARTBEAT = "def main(args):\n    return {'echo': args['word']}\n"
WHERE = "import os\ndef main(args):\n    return {'cwd': os.getcwd()}\n"

_MOVED = """
def main(args):
    import os, re, sys
    root = os.getcwd().removesuffix("/workspace")
    text = re.sub(r"(?<![\\w.])(?=/(?:workspace|tmp|dev/shm|skills|blobs)\\b)", lambda found: root, {SOURCE})
    exec(compile(text, "program", "exec"), globals())
    return globals()["main"](args)
"""


def moved(source: str) -> str:
    """A program that finds /workspace, /tmp, /dev/shm, /skills and /blobs below the directory where an isolation
    without mounts has them."""
    return _MOVED.replace("{SOURCE}", repr(source))


async def at_home(yard: Yard) -> None:
    """Find out where its sandboxes have their own places, and what stands round them."""
    where = await yard.run(WHERE)
    yard.levels = {name: level for name, level in yard.enforced.items() if level != Level.KERNEL}
    yard.moved = where.ok and where.output["cwd"] != "/workspace"


async def serves(yard: Yard) -> str:
    """Runs something benign; what is wrong, or nothing."""
    try:
        run = await yard.run(HEARTBEAT, {"word": "still here"})
    except Exception as error:  # noqa: BLE001 - whatever it is, the server does not serve
        return f"{type(error).__name__}: {error}"
    return "" if run.ok and run.output == {"echo": "still here"} else run.summary
