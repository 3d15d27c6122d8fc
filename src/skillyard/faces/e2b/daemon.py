"""The daemon of one sandbox: its callers, its user and its home, and the calls by path."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from skillyard.domain.errors import FileNotFound, SandboxGone, SkillyardError
from skillyard.domain.work.record import RunRecord
from skillyard.engine.services.programs import Programs
from skillyard.engine.services.sandboxes import SandboxService, is_paused
from skillyard.faces.e2b.access import Access, sandbox_id
from skillyard.faces.e2b.call import Call
from skillyard.faces.e2b.errors import INVALID, UNAUTHENTICATED, UNIMPLEMENTED, NotRunning, RpcRefusal
from skillyard.faces.http.replies import end, start

USERS = ("", "user", "sandbox")
"""Names of the one user that a sandbox has: E2B's, and its own."""
WORKSPACE = "/workspace"
E2B_HOME = "/home/user"
MOST_PATH = 4096
_HOME = "home"


@dataclass(frozen=True, slots=True)
class Place:
    """A sandbox that a request may use, with its programs."""

    record: RunRecord
    programs: Programs
    home: str
    """The home of its user, as commands see it."""

    @property
    def owner(self) -> str:
        return self.record.principal

    def path(self, text: str) -> str:
        """Returns the absolute path that a client means, which may begin in the user's home. Raises RpcRefusal."""
        if "\0" in text or len(text) > MOST_PATH:
            raise RpcRefusal(INVALID, f"path: must be at most {MOST_PATH} characters without NUL")
        if text == "~" or text.startswith("~/"):
            text = self.home + text[1:]
        found = posixpath.normpath(posixpath.join(self.home, text or "."))
        return found[1:] if found.startswith("//") else found

    def inside(self, path: str) -> str:
        """Returns the place of an absolute path: E2B's home is the workspace."""
        if path == E2B_HOME or path.startswith(f"{E2B_HOME}/"):
            return WORKSPACE + path[len(E2B_HOME) :]
        return path


Answer = Callable[[Call, Place], Awaitable[None]]


def by_path(service: str, **calls: Answer) -> dict[str, Answer]:
    """Returns the calls of a service by their paths."""
    return {f"{service}{name}": call for name, call in calls.items()}


class Daemon:
    """Passes requests to their calls, once their sandbox and their right to it are known."""

    def __init__(self, access: Access, sandboxes: Callable[[], SandboxService], calls: Mapping[str, Answer]) -> None:
        self._access = access
        self._sandboxes = sandboxes
        self._calls = calls

    async def __call__(self, call: Call, named: str) -> None:
        if call.path == "/health":
            await self._health(call, named)
            return
        answer = self._calls.get(call.path)
        if answer is None:
            self._access.find(named)
            raise RpcRefusal(UNIMPLEMENTED, f"{call.path[:100]}: the daemon has no such call here")
        record = await self._access.of_daemon(named, call.headers)
        user_of(call)
        await answer(call, await self.place(record))

    async def place(self, record: RunRecord) -> Place:
        """Returns a sandbox with its programs. Raises NotRunning, Busy, StoreFault.

        One that is paused goes on first, where its caller wished that.
        """
        try:
            record = await self._sandboxes().awake(record)
            programs = await self._sandboxes().programs(record.run_id)
            home = programs.notes.get(_HOME) or await _home_of(programs)
        except SandboxGone:
            raise NotRunning(sandbox_id(record)) from None
        programs.notes[_HOME] = home
        return Place(record, programs, home)

    async def _health(self, call: Call, named: str) -> None:
        """Tells anybody who knows the id whether the sandbox runs."""
        if is_paused(self._access.find(named)):
            raise NotRunning(named[:64])
        await start(call.send, 204, {})
        await end(call.send)


async def _home_of(programs: Programs) -> str:
    with suppress(FileNotFound):
        await programs.sandbox.stat(E2B_HOME)
        return E2B_HOME
    return WORKSPACE


def user_of(call: Call) -> None:
    """Checks the user that a request names. Raises RpcRefusal for one that sandboxes do not have."""
    scheme, _, text = call.header("authorization").partition(" ")
    name = ""
    if scheme.lower() == "basic":
        try:
            name = base64.b64decode(text.strip(), validate=True).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            raise RpcRefusal(UNAUTHENTICATED, "Authorization: must be Basic with the name of a user") from None
    check_user(name)


def check_user(name: str) -> None:
    """Raises RpcRefusal for a user that sandboxes do not have."""
    if name not in USERS:
        rule = "sandboxes have the one user 'user', who is never root"
        raise RpcRefusal(UNAUTHENTICATED, f"error looking up user '{name[:64]}': {rule}")


def gone(error: SkillyardError, place: Place) -> SkillyardError:
    """Returns the error of a request whose sandbox ended meanwhile."""
    return NotRunning(sandbox_id(place.record)) if isinstance(error, SandboxGone) else error
