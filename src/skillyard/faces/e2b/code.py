"""The code interpreter of a sandbox: E2B's calls at its port 49999.

Values that cells show are hostile. Binary forms are checked for their kind, so that a picture is one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from skillyard.domain.errors import FileNotFound, InvalidInput, SandboxGone, SkillyardError
from skillyard.domain.sandbox.frames import Failure, Shown
from skillyard.domain.work.record import RunRecord
from skillyard.engine.services.contexts import DEFAULT, MOST_MS, Context, Contexts, Count, Event, Output
from skillyard.engine.services.sandboxes import SandboxService
from skillyard.faces.e2b.access import Access
from skillyard.faces.e2b.call import Call, text_of, texts_of
from skillyard.faces.e2b.daemon import Daemon, Place
from skillyard.faces.e2b.errors import ApiRefusal
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import end, piece, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.wire import dumps

_LANGUAGES = ("", "python", "python3")
_CONTEXTS = "contexts"
_FIELDS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
    "application/json": "json", "application/javascript": "javascript", "application/x.data+json": "data",
    "application/x.chart+json": "chart",
}  # fmt: skip
_BEGINNINGS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "pdf": b"%PDF-"}
"""How files of binary forms begin."""
_OBJECTS = ("json", "data", "chart")
_MOST_TEXT = 8 * 1024 * 1024


class Code:
    """Answers the calls. ``runs`` are only those of a sandbox whose token a request has."""

    def __init__(
        self, access: Access, daemon: Daemon, sandboxes: Callable[[], SandboxService], life: Lifecycle
    ) -> None:
        self._access = access
        self._daemon = daemon
        self._sandboxes = sandboxes
        self._life = life

    async def __call__(self, call: Call, named: str) -> None:
        parts = [part for part in call.path.split("/") if part]
        if (call.method, parts) == ("GET", ["health"]):
            self._access.find(named)
            await reply(call.send, 200, dumps("OK"))
            return
        place = await self._daemon.place(await self._record(call, named, by_traffic=parts[:1] == ["contexts"]))
        contexts = place.programs.notes.get(_CONTEXTS)
        if contexts is None:
            contexts = place.programs.notes[_CONTEXTS] = Contexts(place.programs, self._sandboxes().ids)
        match call.method, parts:
            case "POST", ["execute"]:
                await self._execute(call, place, contexts)
            case "GET", ["contexts"]:
                await reply(call.send, 200, dumps([_told(each) for each in contexts.all()]))
            case "POST", ["contexts"]:
                made = await self._made(await call.json(place.owner), place, contexts)
                await reply(call.send, 200, dumps(_told(made)))
            case "POST", ["contexts", id, "restart"]:
                await _found(contexts.restart(id))
                await self._done(call)
            case "DELETE", ["contexts", id]:
                await _found(contexts.remove(id))
                await self._done(call)
            case _:
                raise ApiRefusal(404, f"{call.method} {call.path[:80]}: the code interpreter has no such call")

    async def _record(self, call: Call, named: str, *, by_traffic: bool) -> RunRecord:
        """Returns the sandbox that a request names and has a token of.

        With ``by_traffic`` that for its ports will do: an SDK sends no other with contexts.
        Raises NotRunning, RpcRefusal, Unauthenticated.
        """
        record = self._access.find(named)
        given = call.header("e2b-traffic-access-token")
        if (
            by_traffic
            and not call.header("x-access-token")
            and hmac.compare_digest(given.encode(), self._access.tokens.traffic(record.run_id).encode())
        ):
            return await self._access.checked(record)
        return await self._access.of_daemon(named, call.headers)

    async def _done(self, call: Call) -> None:
        await start(call.send, 204, {})
        await end(call.send)

    async def _made(self, body: dict[str, Any], place: Place, contexts: Contexts, id: str = "") -> Context:
        _check_language(text_of(body, "language"))
        cwd = place.path(text_of(body, "cwd"))
        directory = place.inside(cwd)
        if directory != "/workspace":
            try:
                await place.programs.sandbox.stat(directory)
            except FileNotFound:
                raise ApiRefusal(400, f"cwd: '{cwd}' does not exist") from None
        env = {"HOME": place.home, "USER": "user", "LOGNAME": "user"}
        return contexts.make(cwd, directory, env, id)

    async def _execute(self, call: Call, place: Place, contexts: Contexts) -> None:
        body = await call.json(place.owner)
        code, id, env = text_of(body, "code"), text_of(body, "context_id"), texts_of(body, "env_vars")
        if id and body.get("language"):
            raise ApiRefusal(400, "only one of context_id or language can be provided")
        if any(not name or "=" in name for name in env):
            raise ApiRefusal(400, "env_vars: must have names without '='")
        _check_language(text_of(body, "language"))
        try:
            context = contexts.get(id or DEFAULT)
        except InvalidInput:
            if id:
                raise ApiRefusal(404, f"Context {id[:100]} not found") from None
            context = await self._made({}, place, contexts, DEFAULT)
        with call.staying(place.owner), self._life.working():
            await self._stream(call, contexts.run(context, code, env, MOST_MS))

    async def _stream(self, call: Call, events: AsyncIterator[Event]) -> None:
        await start(call.send, 200, {"content-type": "application/json"})
        async with HttpCaller(call.receive, self._life) as caller:
            await caller.wait(self._sent(call, events))
        await end(call.send)

    async def _sent(self, call: Call, events: AsyncIterator[Event]) -> None:
        """Sends all events. An error of the sandbox ends them as an error of the cell."""
        async with aclosing(events):  # type: ignore[type-var]
            try:
                async for event in events:
                    for line in _lines(event):
                        await piece(call.send, dumps(line) + b"\n")
            except SkillyardError as error:
                name = "SandboxGone" if isinstance(error, SandboxGone) else "SandboxError"
                told = {"type": "error", "name": name, "value": error.message, "traceback": error.message}
                await piece(call.send, dumps(told) + b"\n")


async def _found(work: Any) -> None:
    try:
        await work
    except InvalidInput as error:
        raise ApiRefusal(404, error.message) from None


def _check_language(name: str) -> None:
    if name.lower() not in _LANGUAGES:
        raise ApiRefusal(400, f"language: {name[:40]!r} is not supported here; contexts are of python")


def _told(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": "python", "cwd": context.cwd}


def _lines(event: Event) -> list[dict[str, Any]]:
    match event:
        case Output(stream, text):
            return [{"type": stream, "text": text, "timestamp": time.time_ns()}]
        case Shown(main, formats):
            return [{"type": "result", "is_main_result": main, **fields_of(formats)}]
        case Failure(name, value, traceback):
            return [{"type": "error", "name": name, "value": value, "traceback": traceback or f"{name}: {value}"}]
        case Count(number):
            return [{"type": "number_of_executions", "execution_count": number}]


def fields_of(formats: Any) -> dict[str, Any]:
    """Returns the fields of a result. Forms that are not what their type says are left out."""
    found: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for mime, form in formats.items():
        name = _FIELDS.get(mime)
        if name is None:
            if isinstance(form, str) and len(mime) <= 200 and len(form) <= _MOST_TEXT:
                extra[mime] = form
        elif _fits(name, form):
            found[name] = form
    return {**found, "extra": extra} if extra else found


def _fits(name: str, form: Any) -> bool:
    """Returns whether a form is of the kind that its name says."""
    if name in _OBJECTS:
        return isinstance(form, dict | list) if name == "json" else isinstance(form, dict)
    if not isinstance(form, str):
        return False
    if name in _BEGINNINGS:
        try:
            return base64.b64decode(form.strip(), validate=False).startswith(_BEGINNINGS[name])
        except (binascii.Error, ValueError):
            return False
    return name != "svg" or "<svg" in form[:4096].lower()
