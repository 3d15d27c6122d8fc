"""``skills.sessions``, ``skills.end_session``, and the parameters of calls in sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import Forbidden, SandboxFault, SessionNotFound
from skillyard.domain.principal import Principal, Scope, agent_scope
from skillyard.domain.work.session import SessionRecord, SessionState
from skillyard.engine.method import (
    AGENT,
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.sessions.service import SessionService
from skillyard.engine.shapes import NUMBER_OR_NULL, SESSION_TIMES

Params = Mapping[str, Any]
MOST_REASON = 200
_ALIAS = described(STRING, "the agent's own name for the session", minLength=1, maxLength=64)

SESSION_PARAMS: dict[str, Schema] = {
    "session_id": described(
        STRING,
        "a name of the agent's own choice: calls with the same one share /workspace, one call at a time",
        minLength=1,
        maxLength=64,
    ),
    "wait_ms": described(
        INTEGER, "how long to wait while another call has the session; sessions.wait_ms when omitted", minimum=0
    ),
}

SESSION = answer(
    {
        "session_id": described(STRING, "the alias"),
        "project": STRING,
        "agent": STRING,
        "principal": described(STRING, "the one whose call made it, and whose share it takes"),
        "state": {"type": "string", "enum": [state.value for state in SessionState]},
        "isolation": STRING,
        "revision": described(STRING, "of the isolation's configuration that its sandbox was made under"),
        "skills": list_of(STRING, "the skills that worked in it"),
        "runs": described(INTEGER, "the calls that have ended in it"),
        "run_id": described({"type": ["string", "null"]}, "the call at work"),
        "created_at": described(NUMBER, "UTC seconds"),
        "expires_at": SESSION_TIMES["expires_at"],
        "idle_at": SESSION_TIMES["idle_at"],
        "ended_at": described(NUMBER_OR_NULL, "UTC seconds"),
        "ended_by": described(STRING, "'idle', 'hard', 'lost', 'server' or a principal; empty for a live one"),
        "reason": described(STRING, "why it ended"),
    }
)


def told(service: SessionService, session: SessionRecord) -> dict[str, Any]:
    """Returns a session as callers see it."""
    return {
        **service.told_times(session),
        "project": session.key.project,
        "agent": session.key.agent,
        "principal": session.principal,
        "state": session.state.value,
        "isolation": session.isolation,
        "revision": session.fit.partition(":")[0],
        "skills": list(session.skills),
        "runs": session.runs,
        "run_id": session.call,
        "created_at": session.created_at,
        "ended_at": session.ended_at,
        "ended_by": session.ended_by,
        "reason": session.reason,
    }


async def sessions(service: SessionService, principal: Principal, params: Params) -> dict[str, Any]:
    scope = agent_scope(principal, params.get("agent"))
    found = await service.list(principal, scope, everyone=params["all"], ended=params["ended"], limit=params["limit"])
    return {"sessions": [told(service, session) for session in found]}


async def end_session(service: SessionService, principal: Principal, params: Params) -> dict[str, Any]:
    check_unicode("reason", params["reason"])
    scope = agent_scope(principal, params.get("agent"))
    return told(service, await service.end(principal, scope, params["session_id"], params["reason"]))


TABLE = (
    Method(
        name="skills.sessions",
        doc="List the sessions of an agent, newest first.",
        params=obj(
            {
                "ended": described(BOOLEAN, "with those that ended in the last days", default=False),
                "all": described(BOOLEAN, "of every project and agent; needs the scope admin", default=False),
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
                "agent": AGENT,
            }
        ),
        example={"ended": True},
        result=answer({"sessions": list_of(SESSION, "newest first")}),
        scope=Scope.RUN_CODE,
        errors=(Forbidden,),
        repeatable=True,
        service=SessionService,
        handler=sessions,
    ),
    Method(
        name="skills.end_session",
        doc="End a session: its call at work is cancelled, and its files and processes are gone when this answers.",
        params=obj(
            {
                "session_id": _ALIAS,
                "reason": described(STRING, "told by the ended session", maxLength=MOST_REASON, default=""),
                "agent": AGENT,
            },
            "session_id",
        ),
        example={"session_id": "work"},
        result=SESSION,
        scope=Scope.RUN_CODE,
        errors=(SessionNotFound, SandboxFault, Forbidden),
        service=SessionService,
        handler=end_session,
    ),
)
