"""The place of ``skillyard verify``: a runtime or a server, reached by the public methods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from skillyard.client.methods.protocol import ProtocolMethods
from skillyard.client.run import Run
from skillyard.domain.errors import SkillyardError
from skillyard.testing.attacks.attack import Need, Place, Ran, weaker
from skillyard.testing.attacks.prelude import moved, program

if TYPE_CHECKING:
    from skillyard.runtime import Runtime
    from skillyard.testing.attacks.canaries import Canaries

TIMEOUT_MS = 30_000
_BUSY = -32005
_PATIENCE = 40
_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Report(Ran):
    """An ended run with ``run``, as the client has it, and ``raw``, all that the server sent."""

    run: Run = field(default_factory=lambda: Run("", "", ""))

    @property
    def raw(self) -> Mapping[str, Any]:
        return self.run.raw


def report_of(run: Run) -> Report:
    error = run.error or {}
    last = str(error.get("message") or run.summary).strip().splitlines()
    usage = run.raw.get("usage") or {}
    return Report(
        ok=run.ok,
        output=run.output,
        log=run.logs_preview,
        ends=frozenset({str(run.raw.get("outcome") or ""), str(error.get("type") or "")} - {""}),
        why=f"{error.get('type') or run.raw.get('outcome')}: {last[-1] if last else ''}"[:200],
        cpu_ms=usage.get("cpu_ms"),
        wall_ms=usage.get("wall_ms"),
        run=run,
    )


@dataclass(slots=True)
class Site(Place):
    """A runtime or a server.

    ``runtime`` is there when the server is a runtime of this process. ``moved``: its sandboxes have their own places
    below another directory than /.
    """

    caller: ProtocolMethods
    isolation: str | None = None
    runtime: Runtime | None = None
    canaries: Canaries | None = None
    moved: bool = False
    levels: Mapping[str, str] = field(default_factory=dict)
    enforced: dict[str, str] = field(default_factory=dict)
    outcomes: set[str] = field(default_factory=set)
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.runtime is not None:
            places = self.runtime.data_dir
            held = (places.home, places.database, places.blobs, places.skills, places.run, places.tokens)
            self.hidden = tuple(map(str, held))

    def fresh(self) -> Site:
        """Returns the same place for another attack."""
        return replace(self, enforced={}, outcomes=set())

    @property
    def offers(self) -> frozenset[Need]:
        met = {Need.IN_PROCESS: self.runtime, Need.CANARIES: self.canaries}
        return frozenset(need for need, given in met.items() if given is not None)

    async def attack(self, body: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Report:
        return await self.run(program(body, self.levels), args, **limits)

    async def run(self, code: str, args: Mapping[str, Any] | None = None, **limits: Any) -> Report:
        """Runs source. Raises what the API raises; a server that is busy is asked again."""
        return await self.run_code({"code": code, "args": dict(args or {})}, **limits)

    async def run_code(self, params: Mapping[str, Any], **limits: Any) -> Report:
        """Runs Python with further parameters of ``run_code``."""
        limits = {"timeout_ms": TIMEOUT_MS, **limits}
        return await self.call_run("run_code", {"language": "python", **params, "limits": limits})

    async def call_run(self, method: str, params: Mapping[str, Any]) -> Report:
        """Calls a method that runs something, with these very parameters."""
        asked = dict(params) if self.isolation is None else {**params, "isolation": self.isolation}
        if self.moved and "code" in asked:
            asked["code"] = moved(asked["code"])
        report = report_of(Run.of(await patiently(lambda: self.caller.call(method, asked))))
        self.enforced.update(report.raw.get("enforced") or {})
        self.outcomes.add(str(report.raw.get("outcome") or ""))
        return report

    async def call_as(self, who: Any, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a method of the runtime in this process as another principal. Raises what the engine raises."""
        from skillyard.engine import table

        assert self.runtime is not None
        return await table.invoke(self.runtime.app, who, method, params)


async def patiently(call: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Returns the result of a call, which is repeated for ten seconds while it is Busy."""
    for turn in range(_PATIENCE):
        try:
            return await call()
        except SkillyardError as error:
            if error.code != _BUSY or turn == _PATIENCE - 1:
                raise
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


HEARTBEAT = "def main(args):\n    return {'echo': args['word']}\n"
WHERE = "import os\ndef main(args):\n    return {'cwd': os.getcwd()}\n"


async def at_home(site: Site) -> None:
    """Finds out where its sandboxes have their own places, and which walls stand round them."""
    where = await site.run(WHERE)
    site.levels = weaker(site.enforced)
    site.moved = where.ok and where.output["cwd"] != "/workspace"


async def serves(site: Site) -> str:
    """Runs something benign. Returns its fault; empty when there is none."""
    try:
        run = await site.run(HEARTBEAT, {"word": "still here"})
    except Exception as error:  # noqa: BLE001 - any of them means that the server does not serve
        return f"{type(error).__name__}: {error}"
    return "" if run.ok and run.output == {"echo": "still here"} else run.run.summary
