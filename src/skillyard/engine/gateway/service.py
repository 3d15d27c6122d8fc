"""Calls of tools of MCP servers. Each is a run with a record; servers are kept between them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import Busy, InvalidInput, SkillyardError, ToolNotFound, shape, shown
from skillyard.domain.principal import DEFAULT_PROJECT, Principal
from skillyard.domain.tool import ToolResult
from skillyard.domain.work.record import Outcome, RunKind, RunRecord, RunStatus
from skillyard.engine.gateway.catalogue import Offered, ToolCatalogue, held_back
from skillyard.engine.gateway.keeping import Changed, Kept
from skillyard.engine.gateway.starting import Owner, Standing, Starter, told
from skillyard.engine.observer import Observer, RunEnded
from skillyard.engine.runs.active import ActiveRun, ActiveRuns
from skillyard.engine.runs.failure import SUMMARY_CHARACTERS, Failure, cancelled
from skillyard.engine.shares import Budget
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.records import RecordStore
from skillyard.values import dataclass

SERVER, TOOL = "mcp.server", "mcp.tool"
"""The labels of a call."""
MOST_ARGUMENTS = 1 << 20
_MOST_OUTPUT = 4096
_CALLER_GONE = "its caller went away"
CANCELLED_BY_SERVER = "the MCP server was ended"


@dataclass(frozen=True, slots=True)
class Books:
    """Where calls are written down."""

    records: RecordStore
    active: ActiveRuns
    ids: Ids
    clock: Clock
    tasks: Tasks
    emit: Observer


@dataclass(frozen=True, slots=True)
class Called:
    """A call that has ended: its record and the answer, which is None where there was none."""

    record: RunRecord
    result: ToolResult | None


class Gateway:
    """Calls tools of the servers of the settings, and keeps these servers."""

    def __init__(self, catalogue: ToolCatalogue, starter: Starter, places: Budget, books: Books) -> None:
        self.catalogue = catalogue
        self._starter = starter
        self._places = places
        self._books = books
        self._kept: dict[tuple[str, Owner], Kept] = {}
        self._closed = False

    @property
    def sandboxes(self) -> set[str]:
        """Returns the keys of the sandboxes of its servers."""
        return {kept.key for kept in self._kept.values() if kept.key}

    def kept(self) -> list[Kept]:
        """Returns the servers that were used, by name and owner."""
        return sorted(self._kept.values(), key=lambda kept: (kept.name, kept.owner.name, kept.owner.project))

    async def refresh(self, principal: Principal, server: str) -> None:
        """Starts a server where it is not at work, and lists its tools. Raises ToolNotFound, ToolServerFault, Busy."""
        kept = self._of(server, principal)
        await kept.end("an operator has it started anew")
        await self.catalogue.note(server, list((await kept.tools()).values()))

    async def stop(self, server: str) -> int:
        """Ends all processes of a server; returns their number."""
        at_work = [kept for kept in self._kept.values() if kept.name == server and kept.key]
        for kept in at_work:
            await kept.end(CANCELLED_BY_SERVER)
        return len(at_work)

    async def call(
        self,
        principal: Principal,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Called:
        """Calls a tool. A call that fails is told by its record.

        Raises ToolNotFound for a tool that may not be called, InvalidInput for arguments that are too large and a
        timeout above the server's, Busy.
        """
        found = await self.catalogue.find(principal, server, tool)
        section = self.catalogue.servers[server]
        most = round(section.timeout_s * 1000)
        if timeout_ms is not None and timeout_ms > most:
            rule = f"must be at most {most} (mcp.servers.{server}.timeout_s)"
            raise InvalidInput("timeout_ms", rule, shown(timeout_ms))
        try:
            data = _compact(arguments).encode()
        except UnicodeEncodeError:  # on the way to the server it would break the connection of all its callers
            raise InvalidInput("arguments", "must not have half a surrogate pair", shape(arguments)) from None
        if len(data) > MOST_ARGUMENTS:
            raise InvalidInput("arguments", f"must be at most {MOST_ARGUMENTS} bytes of JSON", shape(arguments))
        kept = self._of(server, principal)
        limits = replace(section.limits, timeout_ms=timeout_ms or most)
        digests = {"args": hashlib.sha256(data).hexdigest(), "tool": found.tool.digest}
        record = RunRecord(
            run_id=self._books.ids.run(),
            kind=RunKind.TOOL,
            principal=principal.name,
            status=RunStatus.RUNNING,
            created_at=self._books.clock.now(),
            project=principal.project,
            environment="" if section.url else section.environment,
            limits=limits.as_dict(),
            digests=digests,
            labels={SERVER: server, TOOL: tool, **(labels or {})},
        )
        return await _Call(self._books, kept, found, arguments, record, limits.timeout_ms / 1000).run()

    async def reap(self) -> None:
        """Ends servers that nobody has called for a while."""
        for key, kept in list(self._kept.items()):
            if kept.key and kept.is_idle():
                await kept.end(f"nobody called it for {kept.section.idle_s:g} s")
            if kept.is_over and not kept.calls:
                self._kept.pop(key, None)

    async def close(self) -> None:
        """Ends every server; calls at work fail. Idempotent."""
        self._closed = True
        for kept in list(self._kept.values()):
            await kept.end("skillyard stops")

    def _of(self, server: str, principal: Principal) -> Kept:
        section = self.catalogue.servers.get(server)
        if section is None:
            raise ToolNotFound("server", f"the settings name no MCP server {shown(server)} (mcp.servers)")
        if self._closed:
            raise Busy("the server stops", retry_after_ms=1000)
        owner = Owner("", DEFAULT_PROJECT) if section.shared else Owner(principal.name, principal.project)
        key = (server, owner)
        if key not in self._kept:
            books = self._books
            rest = self._starter, self._places, books.tasks, books.clock, books.emit, self.catalogue.note
            self._kept[key] = Kept(server, section, owner, *rest)
        return self._kept[key]


class _Call:
    """One call, from its first record to its last."""

    def __init__(
        self,
        books: Books,
        kept: Kept,
        offered: Offered,
        arguments: Mapping[str, Any],
        record: RunRecord,
        timeout_s: float,
    ) -> None:
        self._books = books
        self._kept = kept
        self._offered = offered
        self._arguments = arguments
        self._record = record
        self._timeout_s = timeout_s
        self._began = books.clock.monotonic()
        self._standing: Standing | None = None
        self._before: Mapping[str, Any] | None = None

    async def run(self) -> Called:
        books, record = self._books, self._record
        await books.records.insert(record)
        active = books.active[record.run_id] = ActiveRun(record.run_id, record.principal)
        try:
            work = books.tasks.spawn(self._work(), f"call {record.run_id}")
            active.interrupt = work.cancel
            try:
                result = await asyncio.shield(work)
            except asyncio.CancelledError:
                if active.cancel_reason is None or not work.done():
                    work.cancel()
                    await books.tasks.shielded(self._gone(work), f"end of {record.run_id}")
                    raise
                return await self._failed(cancelled(active.cancel_reason))
            except TimeoutError:
                seconds = f"the tool did not answer within {self._timeout_s:g} s"
                return await self._failed(Failure("TimeoutError", seconds, Outcome.TIMEOUT))
            except Changed:
                why = (
                    "its server describes it in other words since it was approved, or has it no more"
                    f" (`skillyard tools refresh {self._offered.server}` looks again)"
                )
                held = held_back(self._offered.server, self._offered.tool.name, why)
                return await self._failed(Failure(held.type, held.message))
            except Busy as busy:
                return await self._failed(Failure(busy.type, busy.message))
            except SkillyardError as error:
                why, outcome = error.message, Outcome.LOST
                if (standing := self._standing) is not None:
                    why = standing.redaction.text(why)
                    if standing.link.broken.is_set():
                        why, outcome = await told(standing, why)
                return await self._failed(Failure("ToolServerError", f"{self._kept.name}: {why}", outcome))
            except Exception:  # whatever a server brings about: no record may stay at work
                await self._failed(Failure("ToolServerError", f"{self._kept.name}: the call failed", Outcome.LOST))
                raise
            return await self._completed(result)
        finally:
            books.active.forget(active)

    async def _work(self) -> ToolResult:
        self._standing = await self._kept.standing()
        self._before = await self._standing.connections()
        result = await self._kept.call(self._offered.tool, self._arguments, self._timeout_s, self._record.principal)
        return _without_secrets(result, self._standing)

    async def _gone(self, work: asyncio.Task[ToolResult]) -> None:
        await asyncio.gather(work, return_exceptions=True)
        await self._failed(cancelled(_CALLER_GONE))

    async def _completed(self, result: ToolResult) -> Called:
        size = sum(len(str(part.get("text") or part.get("data") or "")) for part in result.content)
        structured = "" if result.structured is None else _compact(result.structured)
        if size + len(structured) > self._kept.section.result_bytes:
            most = self._kept.section.result_bytes
            rule = f"the tool answered with more than {most} bytes (mcp.servers.{self._kept.name}.result_bytes)"
            return await self._failed(Failure("OutputTooLarge", rule, Outcome.OUTPUT))
        if result.is_error:
            failure = Failure("ToolError", result.text or "the tool failed and says nothing", Outcome.EXIT)
            return await self._failed(failure, result)
        output, notes = _output(result)
        wall_ms = (self._books.clock.monotonic() - self._began) * 1000
        summary = f"{self._offered.name} answered with {size + len(structured)} bytes in {wall_ms:.0f} ms"
        ended = replace(
            await self._so_far(),
            status=RunStatus.COMPLETED,
            outcome=Outcome.EXIT,
            summary=summary[:SUMMARY_CHARACTERS],
            output=output,
            notes=notes,
        )
        return await self._finish(ended, result)

    async def _failed(self, failure: Failure, result: ToolResult | None = None) -> Called:
        ended = replace(
            await self._so_far(),
            status=RunStatus.FAILED,
            outcome=failure.outcome,
            reason=failure.reason(),
            summary=failure.summary(),
            error=failure.as_dict(),
        )
        return await self._finish(ended, result)

    async def _so_far(self) -> RunRecord:
        now, standing = self._books.clock.now(), self._standing
        wall_ms = round((self._books.clock.monotonic() - self._began) * 1000, 3)
        record = replace(self._record, started_at=self._record.created_at, ended_at=now, usage={"wall_ms": wall_ms})
        if standing is None:
            return record
        network = None
        try:
            network = await standing.connections()
        except SkillyardError:  # its gate is gone with it
            network = dict(self._before) if self._before is not None else None
        return replace(
            record,
            isolation=standing.isolation,
            enforced=dict(standing.enforced),
            guarantees=dict(standing.guarantees),
            network=None if network is None else _since(network, self._before),
        )

    async def _finish(self, record: RunRecord, result: ToolResult | None) -> Called:
        await self._books.records.finish(record)
        total_ms = (self._books.clock.monotonic() - self._began) * 1000
        self._books.emit(RunEnded(record, total_ms, 0))
        return Called(record, result)


def _output(result: ToolResult) -> tuple[Any, tuple[str, ...]]:
    """Returns what a record keeps of an answer, and a note where it is too large."""
    output: dict[str, Any] = {"content": list(result.content)}
    if result.structured is not None:
        output["structured"] = result.structured
    if (size := len(_compact(output).encode("utf-8", "replace"))) > _MOST_OUTPUT:
        return None, (f"its answer of {size} bytes went to the caller alone: a record keeps {_MOST_OUTPUT}",)
    return output, ()


def _without_secrets(result: ToolResult, standing: Standing) -> ToolResult:
    """Returns the answer without the secrets that the gate put in."""
    change = standing.redaction.value
    content = tuple(change(dict(part)) for part in result.content)
    return replace(result, content=content, structured=change(result.structured))


def _since(network: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the connections that were made or counted since ``before``. Those of other calls of the process at the
    same time are among them."""
    counted = {_kind(row): row for row in (before or {}).get("connections", ())}
    rows = []
    for row in network["connections"]:
        earlier = counted.get(_kind(row))
        if earlier is None:
            rows.append(row)
        elif row["count"] > earlier["count"] or row["sent_bytes"] > earlier["sent_bytes"]:
            since = {key: row[key] - earlier[key] for key in ("count", "sent_bytes", "received_bytes")}
            rows.append({**row, **since})
    return {**network, "connections": rows}


def _kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("via", "host", "port", "allowed", "layer", "rule", "reason"))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
