"""The service of a keeper for its server: a method a question, and events on its connection."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from skillyard.ipc.channel import close_all
from skillyard.sandbox.native.keeper.connection import Connection
from skillyard.sandbox.native.keeper.ground import Ground, Warmth
from skillyard.sandbox.native.keeper.loop import Loop, Timer
from skillyard.sandbox.native.keeper.program import Caps, Program
from skillyard.sandbox.native.keeper.request import Lease, Listen, Shape, Show, allowed
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.sandboxes import Asked, Sandboxes
from skillyard.sandbox.native.keeper.spool import IN_MEMORY, Dropped

LINGER_S = 4.0
"""How long a keeper without server and without tasks stays."""
MOST_READ = 1 << 20
SETTLE_S = 0.02
"""How long a read waits for more before it answers with little."""
READ_BOUND_S = 2.0
"""How long a read waits for anything: who asked may have stopped waiting, and does not say so."""

Header = dict[str, Any]
Number = tuple[int, int] | None
"""Which question of which server; None when no answer is wanted."""


class Unknown(Exception):
    """The sandbox or program that was named is not held here."""


class Service:
    def __init__(
        self, loop: Loop, sandboxes: Sandboxes, ground: Ground, facts: dict[str, Any], linger_s: float = LINGER_S
    ) -> None:
        self._loop = loop
        self._sandboxes = sandboxes
        self._ground = ground
        self._facts = facts
        self._server: Connection | None = None
        self._destroys: dict[str, list[Callable[[], None]]] = {}
        self._reads: dict[tuple[str, str], list[Callable[[], bool]]] = {}
        self._retrying = False
        self._retries = loop.guarded(self._retry_failed)
        self._creating: dict[str, list[Number]] = {}
        self._era = 0
        """Counts servers: what one asked is never answered to the next."""
        self._linger_s = linger_s
        self._leaving: Timer | None = None
        self._leaves = loop.guarded(lambda _: self._leave_soon())
        sandboxes.on_program_end = self._program_ended
        sandboxes.on_gone = self._gone
        loop.on_fault = self._tell_fault
        self._leave_soon()

    def connected(self, connection: Connection) -> None:
        """A server is there; a second one is turned away while the first one lives."""
        if self._server is not None:
            self._server.check()
        if self._server is not None and self._server.open:
            connection.send({"event": "refused", "why": "another server holds this keeper"})
            connection.close()
            return
        self._server = connection
        if self._leaving is not None:
            self._leaving.cancel()
        self._era += 1
        connection.send({"event": "hello", "facts": self._facts})

    def disconnected(self, connection: Connection) -> None:
        if connection is not self._server:
            return
        self._server = None
        for sandbox in self._sandboxes.survey():
            if sandbox.lease is not None and sandbox.lease.owner == "run":
                try:
                    self._destroy(sandbox, lambda: None)
                except Exception as error:  # noqa: BLE001 - the others end too
                    self._loop.report(error)
                    sandbox.fault(error)
            for program in sandbox.programs.values():
                if program.tied:
                    sandbox.kill_program(program, "cancelled", "its server is gone")
        self._reads.clear()
        self._creating.clear()
        self._leave_soon()

    def heard(self, connection: Connection, header: Header, body: bytes) -> None:
        """Answer one question; a question that cannot be answered gets the reason, never silence."""
        operation = getattr(self, f"_do_{header.get('op')}", None)
        number = (self._era, header["q"]) if "q" in header else None
        try:
            if operation is None:
                raise ValueError(f"no operation {header.get('op')!r}")
            operation(number, header, body)
        except Unknown as error:
            self._answer(number, gone=str(error))
        except Exception as error:  # noqa: BLE001 - one question's fault is nobody else's
            if not isinstance(error, OSError | ValueError | KeyError | TypeError):
                self._loop.report(error)
            self._answer(number, error=f"{type(error).__name__}: {error}")

    def _tell_fault(self, text: str) -> None:
        if self._server is not None:
            self._server.send({"event": "fault", "text": text})

    def _answer(self, number: Number, body: bytes = b"", sockets: Sequence[socket.socket] = (), **fields: Any) -> None:
        """``sockets`` go to the caller, or are closed."""
        if self._server is not None and number is not None and number[0] == self._era:
            self._server.send({"a": number[1], **fields}, body, sockets)
        else:
            close_all(sockets)

    def _do_environment(self, number: Number, header: Header, body: bytes) -> None:
        self._sandboxes.environment(header["name"], {"packages": header["packages"], "preload": header["preload"]})
        self._answer(number)

    def _do_prepare(self, number: Number, header: Header, body: bytes) -> None:
        def there(warmth: Warmth) -> None:
            if warmth.error:
                self._answer(number, error=warmth.error)
                return
            self._answer(number, modules=warmth.modules, faults=warmth.faults, memory_mb=warmth.memory_mb)

        self._sandboxes.prepare(Shape(**header["shape"], listen=_listen(header["listen"])), there)

    def _do_create(self, number: Number, header: Header, body: bytes) -> None:
        held = self._sandboxes.by_key.get(header["key"])
        if held is not None:
            self._answer(number, handle=held.handle)
            return
        shows = tuple(Show(s["source"], s["target"], tuple(s["aliases"])) for s in header["shows"])
        for item in shows:
            if not allowed(item.target, item.aliases):
                raise ValueError(f"nothing can be shown at {item.target!r} {list(item.aliases)}")
        listen = _listen(header["listen"])
        waiting = self._creating.get(header["key"])
        if waiting is not None:
            waiting.append(number)
            return
        self._creating[header["key"]] = [number]

        def answer(sandbox: Sandbox | None, error: str, sockets: Sequence[socket.socket] = ()) -> None:
            told: dict[str, Any] = {"error": error} if sandbox is None else {"handle": sandbox.handle}
            askers = self._creating.pop(header["key"], [])
            for asker in askers:
                self._answer(asker, sockets=sockets, **told)
                sockets = ()
            close_all(sockets)
            if sandbox is not None and not askers:
                self._destroy(sandbox, lambda: None)

        try:
            lease = Lease(header["key"], header["owner"], header["single"], header["timeout_ms"], header["tenant"])
            self._sandboxes.create(Shape(**header["shape"], listen=listen), Asked(lease, shows, answer, listen))
        except Exception:
            self._creating.pop(header["key"], None)
            raise

    def _do_plug(self, number: Number, header: Header, body: bytes) -> None:
        """Listen in a sandbox that is lent: the new sockets, and which ports were ``taken`` already."""
        listen = _listen(header["listen"])
        sandbox = self._sandbox(header)
        if listen is None or sandbox.dead:
            raise Unknown("the sandbox has ended") if sandbox.dead else ValueError("nothing to listen on")
        try:
            opened = self._sandboxes.listen(sandbox, listen)
        except ProcessLookupError:
            raise Unknown("the sandbox has ended") from None
        self._answer(number, sockets=opened.sockets, taken=opened.taken)

    def _do_start(self, number: Number, header: Header, body: bytes) -> None:
        """Without a number only the end is told, also that of a program that could not be started."""
        try:
            self._start(header, body)
        except Exception:
            if number is None and self._server is not None:
                self._server.send({"event": "end", "handle": header["handle"], "id": header["id"], "gone": False})
            raise
        self._answer(number)

    def _start(self, header: Header, body: bytes) -> None:
        sandbox = self._sandbox(header)
        if (known := sandbox.programs.get(header["id"])) is not None:
            self._announce_if_ended(sandbox, known)
            return
        if sandbox.dead:
            raise Unknown("the sandbox has ended")
        caps = Caps(header["log_bytes"], header["channel_bytes"], header["stderr_bytes"], header["ring"])
        request = body if header["argv"] is None else None
        program = sandbox.start(header["id"], header, caps, request)
        program.tied = header["tied"]
        sandbox.give_time(program, header["timeout_ms"])

    def _do_read(self, number: Number, header: Header, body: bytes) -> None:
        """Answers once there is much, the end, little for a while, or nothing for long."""
        sandbox, program = self._program(header)
        spool = program.spools[header["stream"]]
        offset, most = header["offset"], min(header["most"], MOST_READ)
        program.taken(header["stream"], offset)
        since = time.monotonic()

        def attempt() -> bool:
            waiting = spool.readable - offset
            settled = time.monotonic() - since >= (SETTLE_S if waiting > 0 else READ_BOUND_S)
            if waiting < min(most, IN_MEMORY) and not spool.closed and not settled:
                return False
            try:
                data = spool.read(offset, min(most, waiting)) if waiting > 0 else b""
            except Dropped as dropped:
                self._answer(number, dropped=dropped.first)
                return True
            except OSError as error:
                self._answer(number, error=f"the output cannot be read: {error.strerror}")
                return True
            self._answer(number, data, end=spool.closed and offset + len(data) >= spool.length)
            return True

        if not attempt():
            self._reads.setdefault((sandbox.handle, program.id), []).append(attempt)
            self._retry_soon()

    def _retry_soon(self) -> None:
        """One timer for all reads that wait, however many there are."""
        if self._reads and not self._retrying:
            self._retrying = True
            self._retries.after(SETTLE_S, self._retry_reads)

    def _retry_failed(self, _: Exception) -> None:
        self._retrying = False
        self._retry_soon()

    def _retry_reads(self) -> None:
        self._retrying = False
        for key, attempts in list(self._reads.items()):
            left = [attempt for attempt in attempts if not attempt()]
            if left:
                self._reads[key] = left
            else:
                del self._reads[key]
        self._retry_soon()

    def _do_wait(self, number: Number, header: Header, body: bytes) -> None:
        self._announce_if_ended(*self._program(header))
        self._answer(number)

    def _announce_if_ended(self, sandbox: Sandbox, program: Program) -> None:
        if program.ending is not None and "usage" in program.ending:
            self._announce(sandbox, program)

    def _do_send(self, number: Number, header: Header, body: bytes) -> None:
        _, program = self._program(header)
        if not program.write_stdin(body):
            raise Unknown("nobody reads the input")
        if program.input_room:
            self._answer(number)
        else:
            program.on_input_room.append(lambda: self._answer(number))

    def _do_close_stdin(self, number: Number, header: Header, body: bytes) -> None:
        self._program(header)[1].close_stdin()
        self._answer(number)

    def _do_kill(self, number: Number, header: Header, body: bytes) -> None:
        sandbox, program = self._program(header)
        sandbox.kill_program(program, "cancelled", header["reason"])
        self._answer(number)

    def _do_survey(self, number: Number, header: Header, body: bytes) -> None:
        now = time.monotonic()
        held = [
            {
                "handle": sandbox.handle,
                "key": sandbox.lease.key,
                "owner": sandbox.lease.owner,
                "age": now - sandbox.lease.at,
            }
            for sandbox in self._sandboxes.survey()
            if sandbox.lease is not None
        ]
        self._answer(number, held=held)

    def _do_attach(self, number: Number, header: Header, body: bytes) -> None:
        sandbox = self._sandbox(header)
        self._answer(number, programs=list(sandbox.programs), dead=sandbox.dead)

    def _do_destroy(self, number: Number, header: Header, body: bytes) -> None:
        sandbox = self._sandboxes.all.get(header["handle"])
        if sandbox is None or sandbox.lease is None:
            self._answer(number, usage={})
            return
        self._destroy(sandbox, lambda: self._answer(number, usage=sandbox.usage()))

    def _do_outside(self, number: Number, header: Header, body: bytes) -> None:
        self._answer(number, **self._ground.outside(self._sandbox(header)))

    def _do_stats(self, number: Number, header: Header, body: bytes) -> None:
        sandboxes = self._sandboxes.all.values()
        self._answer(
            number,
            pid=os.getpid(),
            sandboxes=len(sandboxes),
            lent=sum(sandbox.lease is not None for sandbox in sandboxes),
            ready=sum(sandbox.lease is None and sandbox.ready_at is not None for sandbox in sandboxes),
            zygotes=self._sandboxes.zygotes(),
        )

    def _do_stop(self, number: Number, header: Header, body: bytes) -> None:
        """End, unless tasks are held: ``kept`` says which, ``bound_s`` how long it may take."""
        kept = any(sandbox.lease is not None and sandbox.lease.owner == "task" for sandbox in self._sandboxes.survey())
        self._answer(number, kept=kept, bound_s=end_bound_s(len(self._sandboxes.all)))
        if not kept:
            self._loop.running = False

    def _destroy(self, sandbox: Sandbox, done: Callable[[], None]) -> None:
        if sandbox.dead:
            done()
            self._forget(sandbox)
            return
        sandbox.forced = sandbox.forced or ("cancelled", "the sandbox was destroyed")
        self._destroys.setdefault(sandbox.handle, []).append(done)
        sandbox.kill()

    def _gone(self, sandbox: Sandbox) -> None:
        done = self._destroys.pop(sandbox.handle, None)
        if done is not None:
            try:
                for call in done:
                    call()
            finally:
                self._forget(sandbox)
        elif _told_whole(sandbox) and sandbox.lease is not None and sandbox.lease.owner == "run":
            self._forget(sandbox)

    def _forget(self, sandbox: Sandbox) -> None:
        self._reads = {key: value for key, value in self._reads.items() if key[0] != sandbox.handle}
        self._sandboxes.discard(sandbox)
        self._sandboxes.refill()

    def _program_ended(self, sandbox: Sandbox, program: Program) -> None:
        self._announce(sandbox, program)
        attempts = self._reads.pop((sandbox.handle, program.id), [])
        for attempt in attempts:
            attempt()

    def _announce(self, sandbox: Sandbox, program: Program) -> None:
        """The ending, and the whole output where it is small: most runs need no other message."""
        if self._server is None:
            return
        spools = program.spools
        sizes = {name: spool.length for name, spool in spools.items()}
        firsts = {name: spool.first for name, spool in spools.items() if spool.first}
        inline = {name: kept for name, size in sizes.items() if (kept := size - firsts.get(name, 0)) <= IN_MEMORY}
        try:
            body = b"".join(spools[name].read(firsts.get(name, 0), size) for name, size in inline.items())
        except (OSError, Dropped):  # its reader is told why
            inline, body = {}, b""
        self._server.send(
            {
                "event": "end",
                "handle": sandbox.handle,
                "id": program.id,
                "ending": program.ending,
                "sizes": sizes,
                "inline": inline,
                "firsts": firsts,
                "gone": _told_whole(sandbox) and sandbox.lease is not None and sandbox.lease.owner == "run",
            },
            body,
        )

    def _sandbox(self, header: Header) -> Sandbox:
        sandbox = self._sandboxes.all.get(header["handle"])
        if sandbox is None or sandbox.lease is None:
            raise Unknown(f"no sandbox {header['handle']!r}")
        return sandbox

    def _program(self, header: Header) -> tuple[Sandbox, Program]:
        sandbox = self._sandbox(header)
        program = sandbox.programs.get(header["id"])
        if program is None:
            raise Unknown(f"no program {header['id']!r} in sandbox {sandbox.handle!r}")
        return sandbox, program

    def _leave_soon(self) -> None:
        self._leaving = self._leaves.after(self._linger_s, self._consider_leaving)

    def _consider_leaving(self) -> None:
        """Ends a keeper that has no server and holds nothing. One that holds something asks again."""
        if self._sandboxes.survey():
            self._leave_soon()
        else:
            self._loop.running = False


def _listen(asked: dict[str, Any] | None) -> Listen | None:
    return None if asked is None else Listen(tuple(asked["streams"]), tuple(asked["datagrams"]))


def _told_whole(sandbox: Sandbox) -> bool:
    """Whether the ending of a single program carried all there is to know."""
    if not sandbox.dead or sandbox.lease is None or not sandbox.lease.single:
        return False
    spools = [spool for program in sandbox.programs.values() for spool in program.spools.values()]
    return all(spool.length - spool.first <= IN_MEMORY for spool in spools)


def end_bound_s(sandboxes: int) -> float:
    """Seconds that a keeper takes at most to end them all and to remove their traces."""
    return 3.0 + 0.02 * sandboxes
