"""The service of a keeper for its server: a method a question, and events on its connection."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from skillyard.ipc.channel import close_all
from skillyard.sandbox.native.keeper.connection import Connection
from skillyard.sandbox.native.keeper.follower import Follower
from skillyard.sandbox.native.keeper.ground import Ground, Warmth
from skillyard.sandbox.native.keeper.loop import Loop, Timer
from skillyard.sandbox.native.keeper.program import Caps, Program
from skillyard.sandbox.native.keeper.request import Directory, Lease, Listen, Shape, Show, allowed
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.sandboxes import Asked, Sandboxes, told_whole
from skillyard.sandbox.native.keeper.spool import IN_MEMORY, Dropped

LINGER_S = 4.0
"""How long a keeper without server and without tasks stays."""

Header = dict[str, Any]
Number = tuple[int, int] | None
"""Which question of which server; None when no answer is wanted."""


class Unknown(Exception):
    """The sandbox or program that was named is not held here."""


class Service:
    def __init__(
        self,
        loop: Loop,
        sandboxes: Sandboxes,
        ground: Ground,
        facts: dict[str, Any],
        is_reachable: Callable[[], bool] = lambda: True,
        linger_s: float = LINGER_S,
    ) -> None:
        """``is_reachable`` says whether a server could connect."""
        self._loop = loop
        self._is_reachable = is_reachable
        self._sandboxes = sandboxes
        self._ground = ground
        self._facts = facts
        self._server: Connection | None = None
        self._destroys: dict[str, list[Callable[[], None]]] = {}
        self._followed: dict[int, Program] = {}
        """Programs by the numbers of their followers."""
        self._creating: dict[str, list[Number]] = {}
        self._era = 0
        """Counts servers: what one asked is never answered to the next."""
        self._linger_s = linger_s
        self._leaving: Timer | None = None
        self._leaves = loop.guarded(lambda _: self._leave_soon())
        sandboxes.on_program_end = self._program_ended
        sandboxes.on_gone = self._gone
        sandboxes.tell = self._tell_soon
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
        self._sandboxes.met()

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
        for follow in list(self._followed):
            self._unfollow(follow)
        self._sandboxes.left()
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

    def _answer_with_next(self, number: Number, **fields: Any) -> None:
        """Answers a create whose program runs: the end of a short one comes with it."""
        if self._server is not None and number is not None and number[0] == self._era:
            self._server.send_with_next({"a": number[1], **fields})

    def _tell_soon(self, event: Header, sockets: Sequence[socket.socket] = ()) -> None:
        if self._server is not None:
            self._server.send_with_next(event, sockets)

    def _do_environment(self, number: Number, header: Header, body: bytes) -> None:
        details = {"packages": header["packages"], "preload": header["preload"]}
        directories = tuple(Directory(**each) for each in header.get("directories", ()))
        self._sandboxes.environment(header["name"], details | {"directories": directories})
        self._answer(number)

    def _do_prepare(self, number: Number, header: Header, body: bytes) -> None:
        def there(warmth: Warmth) -> None:
            if warmth.error:
                self._answer(number, error=warmth.error)
                return
            self._answer(number, modules=warmth.modules, faults=warmth.faults, memory_mb=warmth.memory_mb)

        self._sandboxes.prepare(Shape(**header["shape"], listen=_listen(header["listen"])), there)

    def _do_create(self, number: Number, header: Header, body: bytes) -> None:
        """Lends the sandbox that was ``begun``, or any, as that which the server gives back."""
        taken = self._sandboxes.take_back(header["take"])
        if header["begun"] and taken is None:
            raise Unknown("the sandbox ended before its program began")
        try:
            self._create(number, header, body, taken if header["begun"] else None)
        finally:
            if taken is not None:
                self._sandboxes.settle(taken, begun=header["begun"])

    def _create(self, number: Number, header: Header, body: bytes, begun: Sandbox | None) -> None:
        held = self._sandboxes.by_key.get(header["key"])
        if held is not None:
            self._answer(number, **_held(held))
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
            told: dict[str, Any] = {"error": error} if sandbox is None else _held(sandbox)
            askers = self._creating.pop(header["key"], [])
            first = header["start"] if sandbox is not None and askers else None
            started = first is None or self._begins({**first, **told, "begun": header["begun"]}, body)
            soon = first is not None and started and not sockets
            for asker in askers:
                if soon:
                    self._answer_with_next(asker, at=time.monotonic(), **told)
                else:
                    self._answer(asker, sockets=sockets, **told)
                sockets = ()
            close_all(sockets)
            if first is not None and not started:
                self._tell_no_start({**first, **told})
            if sandbox is not None and not askers:
                self._destroy(sandbox, lambda: None)

        try:
            names = ("key", "owner", "single", "timeout_ms", "tenant", "command")
            lease = Lease(*(header[name] for name in names))
            self._sandboxes.create(Shape(**header["shape"], listen=listen), Asked(lease, shows, answer, listen, begun))
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

    def _do_forward(self, number: Number, header: Header, body: bytes) -> None:
        """Gives a socket to a port of a lent sandbox, or ``refused`` where nobody listens."""
        sandbox = self._sandbox(header)
        if sandbox.dead:
            raise Unknown("the sandbox has ended")
        try:
            sock = self._ground.dial(sandbox, header["port"], six=header["six"])
        except ProcessLookupError:
            raise Unknown("the sandbox has ended") from None
        except ConnectionRefusedError:
            self._answer(number, refused=True)
            return
        self._answer(number, sockets=[sock])

    def _do_start(self, number: Number, header: Header, body: bytes) -> None:
        """Without a number only the end is told, also that of a program that could not be started."""
        try:
            self._start(header, body)
        except Exception:
            if number is None:
                self._tell_no_start(header)
            raise
        self._answer(number)

    def _tell_no_start(self, header: Header) -> None:
        if self._server is not None:
            self._server.send({"event": "end", "handle": header["handle"], "id": header["id"], "gone": False})

    def _begins(self, header: Header, body: bytes) -> bool:
        """Starts the program that a sandbox was created with; returns whether it could."""
        try:
            self._start(header, body)
        except Exception as error:  # noqa: BLE001 - the server hears of it behind the answer
            self._loop.report(error)
            return False
        return True

    def _do_terminal(self, number: Number, header: Header, body: bytes) -> None:
        """Starts a program on a terminal."""
        self._do_start(number, header, body)

    def _do_keep(self, number: Number, header: Header, body: bytes) -> None:
        """Starts a program that is spared when others are ended."""
        self._do_start(number, {**header, "kept": True}, body)

    def _start(self, header: Header, body: bytes) -> None:
        sandbox = self._sandbox(header)
        if (known := sandbox.programs.get(header["id"])) is not None:
            self._announce_if_ended(sandbox, known)
            return
        if sandbox.dead:
            raise Unknown("the sandbox has ended")
        caps = Caps(
            header["log_bytes"],
            header["channel_bytes"],
            header["stderr_bytes"],
            header["ring"],
            header.get("wait", False),
        )
        try:
            program = sandbox.start(header["id"], header, caps, body if header["argv"] is None else None)
        except (BrokenPipeError, ConnectionResetError):
            raise Unknown("the sandbox has ended") from None  # and its pidfd says so at the next turn of the loop
        program.tied = header["tied"]
        sandbox.give_time(program, header["timeout_ms"])

    def _do_follow(self, number: Number, header: Header, body: bytes) -> None:
        """Pushes a stream from an offset on, under the number that the server chose."""
        follow, stream = header["follow"], header["stream"]

        def push(why: Header, data: bytes) -> None:
            if why:
                self._unfollow(follow)
            if self._server is not None:
                self._server.send({"event": "output", "follow": follow, **why}, data)

        try:
            _, program = self._program(header)
        except Unknown as unknown:
            push({"gone": str(unknown)}, b"")
            return
        program.taken(stream, header["offset"])
        self._followed[follow] = program
        program.followers[follow] = follower = Follower(stream, program.spools[stream], header["offset"], push)
        follower.pump()

    def _do_took(self, number: Number, header: Header, body: bytes) -> None:
        """The reader has all before an offset; without one it wants no more."""
        follow, offset = header["follow"], header["offset"]
        program = self._followed.get(follow)
        if program is None:
            return  # its last piece is on the way
        if offset is None:
            self._unfollow(follow)
            return
        follower = program.followers[follow]
        program.taken(follower.stream, offset)
        follower.took(offset)

    def _unfollow(self, follow: int) -> None:
        program = self._followed.pop(follow, None)
        if program is not None:
            del program.followers[follow]

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

    def _do_resize(self, number: Number, header: Header, body: bytes) -> None:
        _, program = self._program(header)
        if program.ending is not None:
            raise Unknown("the program has ended")
        self._answer(number, resized=program.resize(header["rows"], header["columns"]))

    def _do_kill(self, number: Number, header: Header, body: bytes) -> None:
        sandbox, program = self._program(header)
        sandbox.kill_program(program, "cancelled", header["reason"])
        self._answer(number)

    def _do_forget(self, number: Number, header: Header, body: bytes) -> None:
        """Lets go of a program that has ended, and of all that it wrote."""
        sandbox, program = self._program(header)
        if program.ending is None or sandbox.dead or sandbox.lease is None or sandbox.lease.single:
            raise Unknown("the program has not ended, or is the sandbox's only one")
        for follow in [follow for follow, followed in self._followed.items() if followed is program]:
            self._unfollow(follow)
        del sandbox.programs[program.id]
        program.drop()
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
        self._answer(number, programs=list(sandbox.programs), dead=sandbox.dead, **_held(sandbox))

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
        self._answer(number, kept=kept, bound_s=self._sandboxes.end_bound_s)
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
        elif told_whole(sandbox):
            if sandbox.parting:
                self._tell_soon({"event": "gone", "handle": sandbox.handle})
            self._forget(sandbox)

    def _forget(self, sandbox: Sandbox) -> None:
        self._sandboxes.discard(sandbox)
        self._sandboxes.refill()

    def _program_ended(self, sandbox: Sandbox, program: Program) -> None:
        self._announce(sandbox, program)

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
        for follow, follower in list(program.followers.items()):
            if follower.stream in inline:  # the rest comes with the end
                self._unfollow(follow)
        self._server.send(
            {
                "event": "end",
                "handle": sandbox.handle,
                "id": program.id,
                "ending": program.ending,
                "sizes": sizes,
                "inline": inline,
                "firsts": firsts,
                "gone": sandbox.dead and told_whole(sandbox),
                "parting": sandbox.parting,
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
        """Ends a keeper that has no server and holds nothing, or that no server can find any more.

        Another one asks again."""
        if self._sandboxes.survey() and self._is_reachable():
            self._leave_soon()
        else:
            self._loop.running = False


def _held(sandbox: Sandbox) -> Header:
    """Returns what a server learns of a sandbox that it holds."""
    return {"handle": sandbox.handle, "walls": sandbox.place.made}


def _listen(asked: dict[str, Any] | None) -> Listen | None:
    return None if asked is None else Listen(tuple(asked["streams"]), tuple(asked["datagrams"]))
