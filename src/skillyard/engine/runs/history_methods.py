"""The operator's methods: run history, logs and cancelling. Additive to the protocol's eight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import RunNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.cursor import continuing, whose
from skillyard.engine.method import (
    BOOLEAN,
    CURSOR,
    INTEGER,
    OBJECT,
    RUN_ID,
    STRING,
    Method,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.runs.log import read_logs

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

_PRIVATE = ("idempotency_key", "request_digest", "sandbox")


async def list_runs(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    with continuing(cursor):
        found = await engine.records.list(
            whose(principal, params), limit=limit + 1, after=cursor, status=params.get("status")
        )
    page = found[:limit]
    return {
        "runs": [_line(record) for record in page],
        "next_cursor": page[-1].run_id if len(found) > limit else None,
    }


async def owned_run(engine: Engine, principal: Principal, run_id: str) -> RunRecord:
    """The record, when it exists and the principal may see it. Raises RunNotFound, alike for both."""
    record = await engine.records.get(run_id)
    if record is None or not principal.sees(record.principal):
        raise RunNotFound("run_id", f"no run '{run_id}'", run_id=run_id)
    return record


async def show_run(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": await shown(engine, await owned_run(engine, principal, params["run_id"]))}


async def shown(engine: Engine, record: RunRecord) -> dict[str, Any]:
    """A record's view, with what a run at work has tried by now."""
    run = view(record)
    active = engine.active.get(record.run_id)
    if active is not None and active.network is not None and record.status is RunStatus.RUNNING:
        run["network"] = await active.network.so_far()
    return run


async def run_logs(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    record = await owned_run(engine, principal, params["run_id"])
    return await read_logs(
        engine.active.get(record.run_id), engine.blobs, record, params["offset"], params["max_bytes"]
    )


async def cancel_run(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    record = await owned_run(engine, principal, params["run_id"])
    cancelled = await engine.cancel(record.run_id, params.get("reason") or f"cancelled by {principal.name}")
    return {"cancelled": cancelled, "run": view(await owned_run(engine, principal, record.run_id))}


def _line(record: RunRecord) -> dict[str, Any]:
    """Of a list, whose records come without what can be large."""
    shown = view(record)
    del shown["network"], shown["needs"], shown["guarantees"]
    return shown


def view(record: RunRecord) -> dict[str, Any]:
    """A record's JSON form (skills-protocol §11), without what only we need."""
    fields = record.as_dict()
    for name in _PRIVATE:
        del fields[name]
    return fields | {
        "kind": record.kind.value,
        "status": record.status.value,
        "outcome": record.outcome.value if record.outcome else None,
    }


TABLE = (
    Method(
        name="runs.list",
        doc="The caller's runs, newest first.",
        params=obj(
            {
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
                "status": {"type": "string", "enum": ["running", "completed", "failed"]},
                "all": described(BOOLEAN, "every principal's runs; needs the scope 'admin'", default=False),
            }
        ),
        result=answer({"runs": list_of(OBJECT, "run records"), "next_cursor": STRING}, "runs"),
        errors=(),
        handler=list_runs,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        surface="operator",
    ),
    Method(
        name="runs.show",
        doc="The record of one run.",
        params=obj({"run_id": RUN_ID}, "run_id"),
        result=answer({"run": OBJECT}, "run"),
        errors=(RunNotFound,),
        handler=show_run,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        surface="operator",
    ),
    Method(
        name="runs.logs",
        doc="The log of a run, stdout and stderr together, from any byte on; also while it runs.",
        params=obj(
            {
                "run_id": RUN_ID,
                "offset": {"type": "integer", "minimum": 0, "maximum": 2**53, "default": 0},
                "max_bytes": {"type": "integer", "minimum": 4, "maximum": 1048576, "default": 65536},
            },
            "run_id",
        ),
        result=answer(
            {
                "run_id": STRING,
                "content": STRING,
                "offset": INTEGER,
                "next_offset": INTEGER,
                "running": BOOLEAN,
                "complete": described(BOOLEAN, "the run ended and this is the end of its log"),
            },
            "run_id",
            "content",
            "offset",
            "next_offset",
            "running",
            "complete",
        ),
        errors=(RunNotFound,),
        handler=run_logs,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        surface="operator",
    ),
    Method(
        name="runs.cancel",
        doc="End a run and everything it started; returns when nothing of it is left.",
        params=obj({"run_id": RUN_ID, "reason": described(STRING, "kept in the record", maxLength=200)}, "run_id"),
        result=answer({"cancelled": BOOLEAN, "run": OBJECT}, "cancelled", "run"),
        errors=(RunNotFound,),
        handler=cancel_run,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        surface="operator",
    ),
)
