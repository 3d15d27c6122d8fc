"""Tasks: commands that outlive their callers and the server. A task is a detached run of a command.

A task belongs to an agent of a project. Those of others do not exist.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from skillyard.domain.errors import Busy, InvalidInput, SkillyardError, TaskNotFound, shape
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.principal import AgentScope, Principal, agent_scope
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.command import VIEW
from skillyard.domain.work.record import RunKind, RunRecord
from skillyard.engine.commands.callbacks import Callbacks
from skillyard.engine.commands.ending import NO_CODE
from skillyard.engine.commands.output import BOTH, Unmarker
from skillyard.engine.commands.service import CANCELED, SUCCEEDED, CommandService, artifact, status_of
from skillyard.engine.commands.tails import Tail, tails_at_end
from skillyard.engine.runs.active import ActiveRun, ActiveRuns, Drain, Waiting
from skillyard.engine.runs.history import RunHistory
from skillyard.engine.runs.log_pages import LogPage
from skillyard.engine.runs.service import RunService
from skillyard.engine.services.names import Endpoints
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock
from skillyard.ports.records import RecordStore

Params = Mapping[str, Any]
BATCH, SERVICE = "batch", "service"
BG, CMD = "bg", "cmd"
RUN_CMD = "skills.run_cmd"
"""The tool that a profile must allow for the provider ``cmd``, which runs a command of the caller's."""
TAIL_BYTES = 8192
WATCH_S, QUERY_S, POLL_S = 600.0, 30.0, 2.0
STATUS_FIELD = "status"
DONE, ERRORS = ("done", "success", "completed"), ("failed", "error", "errored")
OF_QUERIES = ("query_command", "skill_name", "workdir", "status_field", "progress_field", "events_field", "done_states",
              "error_states", "query_timeout_sec")  # fmt: skip
"""The parameters of ``cmd``: the state of work elsewhere, which a command tells as JSON."""
_AGAIN_MS = 2000
_SHOWN = 200


class TaskService:
    """Starts tasks, tells of them and ends them."""

    def __init__(
        self,
        commands: CommandService,
        runs: RunService,
        history: RunHistory,
        records: RecordStore,
        blobs: BlobStore,
        active: ActiveRuns,
        waiting: Waiting,
        clock: Clock,
        drain: Drain,
        endpoints: Endpoints,
        callbacks: Callbacks,
    ) -> None:
        self._commands = commands
        self._runs = runs
        self._history = history
        self._records = records
        self._blobs = blobs
        self._active = active
        self._waiting = waiting
        self._clock = clock
        self._drain = drain
        self._endpoints = endpoints
        self._callbacks = callbacks
        self._watched: set[tuple[AgentScope, str]] = set()

    async def start(self, principal: Principal, params: Params) -> RunRecord:
        """Returns the record of a task that is stored, and goes on whatever becomes of its caller.

        Raises what :meth:`RunService.record` raises, QuotaExceeded, UnsupportedLanguage.
        """
        if "callback_url" in params:
            await self._callbacks.check(principal, params["callback_url"])
        request = await self._commands.request(principal, params, task=True)
        return await self._runs.record(principal, request)

    async def owned(self, principal: Principal, task_id: str, agent: str | None = None) -> RunRecord:
        """Returns the record of a task of the agent.

        When none is named, the task may be of any agent that the token may act for.
        Raises TaskNotFound, alike for a task of others and for none; Forbidden for an agent that may not be named.
        """
        return _owned(principal, task_id, agent, await self._records.get(task_id))

    async def at_work(self, principal: Principal, task_id: str) -> RunRecord:
        """Returns the record as :meth:`owned` does, from memory where this server drives the task."""
        active = self._active.get(task_id)
        if active is None or active.ledger is None:
            return await self.owned(principal, task_id)
        return _owned(principal, task_id, None, active.ledger.record)

    async def list(
        self, principal: Principal, agent: str | None, services: bool | None, *, limit: int, after: str | None
    ) -> Sequence[RunRecord]:
        """Returns tasks of the agent, newest first. Raises InvalidInput for ``after``, Forbidden."""
        scope = agent_scope(principal, agent)
        return await self._records.list(None, limit=limit, after=after, tasks_of=scope, services=services)

    async def status(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Returns how far a task is. Raises TaskNotFound, and what a command raises for the provider ``cmd``."""
        if params["provider"] == CMD:
            return await self._queried(principal, params, params.get("timeout_sec", QUERY_S))
        record = await self._named(principal, params, "timeout_sec")
        return await self.told(record, params["tail_bytes"])

    async def watch(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Returns how far a task is at its end, or when the time or ``heartbeat_sec`` is over.

        A second call with a key that is being watched answers at once. Raises what :meth:`status` raises, and Busy.
        """
        query = params["provider"] == CMD
        record = None if query else await self._named(principal, params)
        what = params.get("query_command", "") if record is None else record.run_id
        scope = agent_scope(principal, params.get("agent")) if record is None else _scope_of(record)
        key = scope, params.get("dedupe_key") or f"{scope.project}:{scope.agent}:{what}"
        begun, longest = self._clock.monotonic(), params.get("timeout_sec", WATCH_S)
        seconds = min(longest, params.get("heartbeat_sec", longest))
        if watched := key in self._watched:
            told = (
                {"task_id": what, "provider": params["provider"]}
                if record is None
                else await self.told(record, params["tail_bytes"])
            )
            ended = False
        else:
            with self._watching(key):
                if record is None:
                    told, ended = await self._watch_query(principal, params, seconds)
                else:
                    found = await self._end_of(principal, params, seconds)
                    told, ended = await self.told(found, params["tail_bytes"]), not found.status.live
        waits = not ended and not watched
        return {
            **told,
            **self._timing(begun),
            "already_running": watched,
            "timed_out": waits and seconds == longest,
            "heartbeat": waits and seconds < longest,
        }

    async def _end_of(self, principal: Principal, params: Params, seconds: float) -> RunRecord:
        task_id, agent = params["task_id"], params.get("agent")

        async def ended() -> RunRecord | None:
            record = await self.owned(principal, task_id, agent)
            return None if record.status.live else record

        found = await self._waiting.poll(principal.name, task_id, round(seconds * 1000), ended)
        return found or await self.owned(principal, task_id, agent)

    async def cancel(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Ends a task; returns when nothing of it is left. Raises TaskNotFound, Busy while no server drives it."""
        record = await self.owned(principal, params["task_id"], params.get("agent"))
        canceled = False
        if record.status.live:
            if record.run_id not in self._active:
                raise Busy("no server drives the task now, which goes on; cancel it again", retry_after_ms=_AGAIN_MS)
            reason = params.get("reason") or f"cancelled by {principal.name}"
            canceled = await self._runs.cancel(record.run_id, reason)
            record = await self.owned(principal, params["task_id"], params.get("agent"))
        return {"task_id": record.run_id, "status": status_of(record), "canceled": canceled}

    async def logs(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Returns a page of a task's output; of one at work it waits for more. Raises TaskNotFound, Busy."""
        task_id, wanted = params["task_id"], params.get("stream")

        async def find() -> RunRecord:
            return await self.owned(principal, task_id, params.get("agent"))

        page = await self._history.log_page(principal, find, params["offset"], params["max_bytes"], params["wait_ms"])
        return {
            "task_id": task_id,
            "chunks": [chunk for chunk in chunks_of(page) if wanted in (None, chunk["stream"])],
            "offset": page.offset,
            "next_offset": page.next_offset,
            "dropped": page.dropped,
            "log_problem": page.problem,
            "running": page.running,
            "complete": page.complete,
        }

    async def events(self, principal: Principal, params: Params) -> dict[str, Any]:
        """Returns the events of a task behind number ``after``. Raises TaskNotFound, Busy."""
        task_id = params["task_id"]

        async def find() -> RunRecord:
            return await self.owned(principal, task_id, params.get("agent"))

        page = params["after"], params["limit"], params["wait_ms"]
        return await self._history.event_page(principal, task_id, find, *page)

    async def told(self, record: RunRecord, tail_bytes: int) -> dict[str, Any]:
        """Returns a task as ``skills.task_status`` tells it."""
        active, record = self._active.get(record.run_id), record.seen()
        live, status = record.status.live, status_of(record)
        tails, heard_at = await self._tails(record, tail_bytes)
        result = record.output if isinstance(record.output, dict) else {}
        code = None if live else NO_CODE if status == CANCELED else result.get("exit_code", NO_CODE)
        orphaned = live and active is None
        serves = how_it_serves(record)
        return {
            "task_id": record.run_id,
            "provider": BG,
            "status": status,
            "reason": "" if record.outcome is None else record.outcome.value,
            **serves,
            "created_at": record.created_at,
            "started_at": record.started_at,
            "finished_at": record.ended_at,
            "last_output_at": heard_at,
            "quiet": live and active is not None and active.live is not None and active.live.silence.lasts,
            "log_problem": _log_problem(record, active),
            "attempt": len(record.attempts) + 1,
            "max_attempts": record.max_attempts,
            "attempts": list(record.attempts),
            "exit_code": code,
            **{f"{name}_tail": tails[name].text() for name in BOTH},
            **{f"{name}_truncated": tails[name].truncated for name in BOTH},
            "created_artifacts": [] if live else [artifact(file) for file in record.files],
            "output_errors": result.get("output_errors", []),
            "session_id": None,
            **await self._commands.session_of(record),
            "error_message": "" if live or status == SUCCEEDED else record.reason,
            "exposed_endpoints": self._endpoints.of(record),
            "exposed_endpoints_active": record.service is not None and serves["startup_ready"],
            "orphaned": orphaned,
            "orphaned_reason": "no server drives it now; one goes on with it soon" if orphaned else "",
            "agent": record.agent,
            "skill_name": record.skill,
            "version": record.version,
            "version_hash": record.digests.get("skill", ""),
            "isolation": record.isolation,
            "usage": record.usage,
            "limits": record.limits,
            "labels": record.labels,
            **({"service": _health(record.service)} if record.service else {}),
            **({"logs_blob": record.logs_blob} if record.logs_blob else {}),
            **await self._callbacks.told(record),
        }

    async def _tails(self, record: RunRecord, most: int) -> tuple[dict[str, Tail], float | None]:
        """Returns the ends of both streams, and the time of the last output where it is known."""
        active = self._active.get(record.run_id)
        if record.status.live:
            heard = None if active is None else active.live
            if heard is None:
                return {name: Tail(0, size=record.offsets.log.parts) for name in BOTH}, None
            return {name: tail.last(most) for name, tail in heard.tails.items()}, heard.heard_at
        if record.logs_blob is not None and most:
            try:
                if (info := await self._blobs.stat(record.logs_blob)) is not None:
                    read = partial(self._blobs.read, info.blob_id)
                    tails = await tails_at_end(read, info.size, dict.fromkeys(BOTH, most))
                    for tail in tails.values() if record.offsets.log.gone else ():
                        tail.size = max(tail.size, most + 1)
                    return tails, None
            except SkillyardError:  # it expired, or was deleted
                pass
        return {name: Tail(0, size=int(bool(record.logs_preview))) for name in BOTH}, None

    async def _named(self, principal: Principal, params: Params, *others: str) -> RunRecord:
        """Raises InvalidInput for parameters of the other provider, TaskNotFound."""
        for name in (*OF_QUERIES, *others):
            if name in params:
                raise InvalidInput(name, f"goes with provider '{CMD}' alone; leave it out", shape(params[name]))
        if "task_id" not in params:
            raise InvalidInput("task_id", "must be given: it names the task")
        record = await self.owned(principal, params["task_id"], params.get("agent"))
        if params.get("session_id", record.session) != record.session:
            raise InvalidInput(
                "session_id", "must be the session of the task, or be left out", shape(params["session_id"])
            )
        return record

    async def _watch_query(self, principal: Principal, params: Params, seconds: float) -> tuple[dict[str, Any], bool]:
        """Asks until the state is a final one. Nothing tells us of changes elsewhere."""
        clock, every = self._clock, params.get("poll_interval_sec", POLL_S)
        end = clock.monotonic() + seconds
        while True:
            told = await self._queried(principal, params, params.get("query_timeout_sec", QUERY_S))
            ended = told["done"] or told["error"]
            if ended or clock.monotonic() + every >= end:
                return told, ended
            async with self._waiting.bounded(principal.name, every):
                await self._waiting.until("", _nothing)

    async def _queried(self, principal: Principal, params: Params, seconds: float) -> dict[str, Any]:
        """Runs ``query_command`` and returns the state that its JSON tells.

        Raises Forbidden also for a profile that allows no commands.
        """
        principal.require_tool(RUN_CMD)
        if "query_command" not in params:
            raise InvalidInput("query_command", f"must be given where provider is '{CMD}'")
        if self._drain.on:
            raise self._drain.refusal()
        skill: dict[str, Any] = {"skill_name": params.get("skill_name")}
        if "task_id" in params:
            record = await self.owned(principal, params["task_id"], params.get("agent"))
            skill = skill if skill["skill_name"] else {"skill_name": record.skill, "version": record.version}
        if not skill["skill_name"]:
            raise InvalidInput("skill_name", "must be given, or task_id of a task of the skill")
        asked = {
            **skill,
            "command": params["query_command"],
            "workdir": params.get("workdir", VIEW),
            "language": "bash",
            "timeout_sec": seconds,
            **{name: params[name] for name in ("agent", "session_id") if name in params},
        }
        ran = await self._commands.run(principal, asked, alone="session_id" not in params)
        raw, wrong = _parsed(ran)
        field = params.get("status_field", STATUS_FIELD)
        state = raw.get(field)
        return {
            "task_id": params.get("task_id", ""),
            "provider": CMD,
            "status_field": field,
            "state": state,
            "done": not wrong and state in params.get("done_states", DONE),
            "error": bool(wrong) or state in params.get("error_states", ERRORS),
            "progress": raw.get(params.get("progress_field", "progress")),
            "events": raw.get(params.get("events_field", "events")),
            "raw": None if wrong else raw,
            "exit_code": ran["exit_code"],
            "error_message": wrong,
        }

    def _timing(self, begun: float) -> dict[str, Any]:
        return {"timing": {"duration_ms": round((self._clock.monotonic() - begun) * 1000, 3)}}

    @contextmanager
    def _watching(self, key: tuple[AgentScope, str]) -> Iterator[None]:
        self._watched.add(key)
        try:
            yield
        finally:
            self._watched.discard(key)


def chunks_of(page: LogPage) -> list[dict[str, str]]:
    """Returns the output of a page in its order, each part with its stream."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in BOTH}
    parts: list[tuple[str, list[str]]] = []

    def add(stream: str, text: str) -> None:
        if text and (not parts or parts[-1][0] != stream):
            parts.append((stream, []))
        if text:
            parts[-1][1].append(text)

    for stream, piece in Unmarker(page.stream).feed(page.data):
        add(stream, decoders[stream].decode(piece))
    for stream in BOTH:
        add(stream, decoders[stream].decode(b"", final=True))
    return [{"stream": stream, "text": "".join(texts)} for stream, texts in parts]


def _owned(principal: Principal, task_id: str, agent: str | None, record: RunRecord | None) -> RunRecord:
    """Returns the record when it is that of a task which the principal may see. Raises TaskNotFound, Forbidden."""
    scope = agent_scope(principal, agent)
    if record is not None and _is_task(record) and record.project == scope.project:
        mine = agent is None and principal.may_act_for(record.agent)
        if mine or record.agent == scope.agent:
            return record
    raise TaskNotFound("task_id", f"no task '{task_id}'", task_id=task_id)


def _is_task(record: RunRecord) -> bool:
    return record.kind is RunKind.COMMAND and record.owner is Owner.TASK


def how_it_serves(record: RunRecord) -> dict[str, Any]:
    """Returns whether a task is a service, and whether it is ready, in its own words."""
    if record.service is None:
        return {"mode": BATCH, "startup_ready": record.started_at is not None}
    return {"mode": SERVICE, "startup_ready": record.status.live and bool(record.service.get("ready"))}


def _log_problem(record: RunRecord, active: ActiveRun | None) -> str:
    """Returns why output is not taken now, or was not kept of a task that succeeded. The reason of others has it."""
    if record.status.live:
        return "" if active is None else active.log_problem
    return record.reason if status_of(record) == SUCCEEDED else ""


def _health(service: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a service goes, in its own words."""
    return {name: service.get(name) for name in ("ready", "restart", "restarts", "exit_code")}


def _scope_of(record: RunRecord) -> AgentScope:
    return AgentScope(record.project, record.agent)


async def _nothing() -> None:
    return None


def _parsed(ran: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the object that a command printed, and why there is none."""
    if ran["status"] != SUCCEEDED:
        said = ran["stderr"].strip()[-_SHOWN:]
        return {}, f"query_command: {ran['error_message']}" + (f": {said}" if said else "")
    try:
        value = parse_json(ran["stdout"].encode())
    except BadJson:
        value = None
    if not isinstance(value, dict) or ran["stdout_truncated"]:
        return {}, "query_command: must print one JSON object on stdout, and nothing else"
    return value, ""
