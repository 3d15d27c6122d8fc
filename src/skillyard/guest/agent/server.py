"""The agent itself: channels, operations, the lease, and the end."""

from __future__ import annotations

import os
from itertools import islice
from struct import Struct
from time import monotonic

from ..programs.terminal import fits
from .channel import Channel, Exchange
from .loop import Loop
from .programs import STREAMS, Program, Programs, Refused, raise_files, spent
from .relay import Forward, Workers
from .start import Place, cleared, import_ahead, import_clearing
from .supervisor import end_others, has_children
from .way_out import WaysOut

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from resource import struct_rusage
    from typing import Any

    from .kernel import Fork
    from .loop import Timer
else:
    import _socket as socket

CHANNELS = 16
_PEER, _PEER_BYTES = Struct("i"), 12
_LISTED = 200
_GENTLE_S = 2.0
_LAST_S = 10.0
_CROWDED_S = 0.1
_MOST_ID = 200
_MOST = 1 << 50
_MOST_REQUEST = 256 * 1024 * 1024
_MOST_FOLLOWED = 16 * 1024
"""Bytes of its channel that are told of a program which followed another."""
_NEEDLESS = {"outcome": "exit", "code": 0, "cpu_ms": 0.0, "rss": 0, "wall_ms": 0.0}
"""The ending of a program that had nothing to do, and was not started."""


class Agent:
    """Serves the channels that it is given until it is told to end, or its lease runs out."""

    def __init__(self, settings: Mapping[str, Any], bundle: str, fork: Fork) -> None:
        self.loop = Loop(self._reaped, self._settled)
        self._key = bytes.fromhex(settings["key"])
        self._instance = os.urandom(16).hex()
        self._nonce: str = settings["nonce"]
        self._place = Place(settings, bundle, raise_files(), fork)
        self._programs = Programs(self.loop, self._place, self._sweep, self._give_up)
        self._workers = Workers(self.loop, self._place)
        self._ways_out = WaysOut(self.loop)
        self._channels: list[Channel] = []
        self._ends: list[Exchange] = []
        self._ending = self._given_up = False
        self._lease_s: float | None = settings["lease_s"]
        self._lease: Timer | None = None
        self._renew()
        self._place.ways = lambda: [channel.peer for channel in self._channels if channel.known and channel.peer]
        self._ahead = bool(settings["ahead"])
        if self._nonce:  # the host has said all of its greeting with it
            self.loop.after(0.0, self._greeted)
        self.on_lost: Callable[[], object] | None = None

    def listen(self, listener: socket.socket) -> None:
        """Takes each connection as a channel."""
        listener.setblocking(False)
        self.loop.watch(listener.fileno(), lambda: self._accept(listener))

    def serve(self, fd: int, peer: int = 0, into: int = -1) -> None:
        """Takes a descriptor as a channel, and closes it at its end. ``peer`` is the process at its other end here.

        Where ``into`` is given, it is written to, and ``fd`` is only read from.
        """
        ends = fd, fd if into < 0 else into
        told = self._take_nonce, self._begin, self._greeted, self._renew, self._lost
        channel = Channel(self.loop, ends, self._key, self._instance, *told)
        channel.peer = peer
        self._channels.append(channel)

    def _accept(self, listener: socket.socket) -> None:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]  # accept() is of the package socket
        except BlockingIOError:
            return
        except OSError:  # no descriptor is to be had: the connection waits, and would be announced at once again
            self.loop.watch(listener.fileno())
            self.loop.after(_CROWDED_S, lambda: self.listen(listener))
            return
        if len(self._channels) >= CHANNELS:
            self._make_room()
        connection = socket.socket(fileno=fd)
        (peer,) = _PEER.unpack_from(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_BYTES))
        self.serve(connection.detach(), peer)

    def _make_room(self) -> None:
        """Closes the oldest channel that has not said hello, as programs hold them open, or of all."""
        (next((channel for channel in self._channels if not channel.known), None) or self._channels[0]).close()

    def _take_nonce(self) -> str:
        """Returns the nonce for a channel. That of the settings is for one channel alone."""
        nonce, self._nonce = self._nonce, ""
        return nonce or os.urandom(16).hex()

    def _greeted(self) -> None:
        """Makes ready behind the first greeting, while the host proves itself and asks."""
        if self._ahead:
            self._ahead = False
            self.loop.after(0.0, self._programs.make_ahead if self._place.single else import_ahead)

    def _lost(self, channel: Channel) -> None:
        self._channels.remove(channel)
        if self.on_lost is not None:
            self.on_lost()

    def _settled(self) -> None:
        while dirty := [channel for channel in self._channels if channel.dirty]:
            for channel in dirty:
                channel.flush()

    # operations

    def _begin(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        make = _OPERATIONS.get(str(order.get("op")))
        if make is None:
            raise Refused("unknown", f"the agent has no operation {str(order.get('op'))[:40]!r}")
        return make(self, channel, number, order)

    def _start(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        return _Start(channel, number, self._programs, _checked(order, self._place.timeout_ms))

    def _follow(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        checked = _checked({**order, "op": "start"}, self._place.timeout_ms)
        if not checked.get("guest"):
            raise Refused("invalid", "a guest alone follows another program")
        return _Follow(channel, number, self._programs, checked, self.loop, self._is_quiet)

    def _is_quiet(self) -> bool:
        """Returns whether no program is at work, and no files are served."""
        return not self._workers.pids() and all(program.ended is not None for program in self._programs)

    def _process(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        return _Answer(channel, number, _about(self._programs.get(order["id"])))

    def _list(self, channel: Channel, number: int, _: Mapping[str, Any]) -> Exchange:
        newest = list(islice(reversed(list(self._programs)), _LISTED))
        return _Answer(channel, number, {"programs": [{"id": p.id, "ended": p.ended is not None} for p in newest]})

    def _output(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        program, name, offset = self._programs.get(order["id"]), order["stream"], order["offset"]
        if name not in STREAMS or not isinstance(offset, int) or offset < 0:
            raise Refused("invalid", "output needs a stream and an offset")
        return _Output(channel, number, program, name, offset)

    def _wait(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        return _Wait(channel, number, self._programs.get(order["id"]))

    def _kill(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        self._programs.get(order["id"]).end("cancelled", str(order.get("reason", ""))[:1000])
        return _Answer(channel, number, {})

    def _input(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        return _Input(channel, number, self._programs.get(order["id"]))

    def _close(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        self._programs.get(order["id"]).close_input()
        return _Answer(channel, number, {})

    def _resize(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        resized = self._programs.get(order["id"]).resize((order["rows"], order["columns"]))
        return _Answer(channel, number, {"resized": resized})

    def _files(self, channel: Channel, number: int, _: Mapping[str, Any]) -> Exchange:
        return self._workers.relay(channel, number)

    def _forward(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        port = order["port"]
        if port in self._ways_out:  # a connection from outside would act for the sandbox
            raise Refused("refused", f"port {port} is the sandbox's way out")
        return Forward(channel, number, self.loop, port)

    def _listen(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        self._ways_out.listen(order["port"])
        return _Answer(channel, number, {})

    def _take_next(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        return self._ways_out.accept(channel, number, order["port"], order["window"])

    def _renewed(self, channel: Channel, number: int, order: Mapping[str, Any]) -> Exchange:
        if order.get("kept") is True:
            self._lease_s = None
        self._renew()
        return _Answer(channel, number, {"kept": self._lease_s is None})

    def _end(self, channel: Channel, number: int, _: Mapping[str, Any]) -> Exchange:
        exchange = Exchange(channel, number)
        self._ends.append(exchange)
        self.end()
        return exchange

    # the lease and the end

    def _renew(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
        if self._lease_s is not None:
            self._lease = self.loop.after(self._lease_s, self.end)

    def end(self) -> None:
        """Ends all programs and workers, then the agent."""
        if not self._ending:
            self._ending = True
            self._programs.end()
            self._workers.end()
            self._place.spare.end()
            self.loop.after(_GENTLE_S, self._sweep_all)
            self.loop.after(_LAST_S, self._leave)
        self._perhaps_leave()

    def _sweep_all(self) -> None:
        end_others((), first=self._place.direct)
        self.loop.after(_GENTLE_S / 10, self._sweep_all)

    def _perhaps_leave(self) -> None:
        if self._ending and all(p.ended is not None and p.pid == 0 for p in self._programs) and not has_children():
            self._leave()

    def _give_up(self) -> None:
        """Ends the sandbox, since something of it cannot be ended by itself.

        The ending of its program is told before. The kernel, or who made the sandbox, takes all along with the agent.
        """
        self._given_up = True
        self.loop.after(0.0, self._leave)

    def _leave(self) -> None:
        for exchange in self._ends:
            exchange.reply(spent())
        self._settled()
        self.loop.running = False

    # children

    def _reaped(self, pid: int, status: int, used: struct_rusage) -> None:
        known = self._workers.reaped(pid) or self._programs.reaped(pid, status, used)
        if self._place.spare.reaped(pid):
            known, status = True, 0
        if not self._place.direct and not (known and status == 0):
            self._sweep()
        if self._ending:
            self._perhaps_leave()

    def _sweep(self) -> bool:
        """Ends processes that have lost their supervisor, or in whose place no program runs.

        Returns False where one stays. The kernel makes them children of the agent. Where programs have no supervisors,
        nobody knows whose they are, and they live as long as any program runs.
        """
        programs, direct = self._programs.pids(), self._place.direct
        if direct and programs:
            return True
        if self._given_up:
            return False
        gone = end_others(programs | self._workers.pids() | self._place.spare.pids(), first=direct)
        if not gone:
            self._give_up()
        return gone


def _checked(order: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
    """Returns an order to start a program. Raises Refused."""
    args, env = order.get("args", []), order.get("env", {})
    numbers = {name: order[name] for name in ("log_bytes", "channel_bytes")}
    numbers["timeout_ms"] = timeout_ms if order.get("timeout_ms") is None else order["timeout_ms"]
    stderr = order.get("stderr_bytes")
    fit = isinstance(order["id"], str) and 0 < len(order["id"]) <= _MOST_ID
    fit = fit and all(isinstance(n, int) and 0 <= n < _MOST for n in numbers.values())
    fit = fit and (stderr is None or (isinstance(stderr, int) and 0 <= stderr < _MOST))
    fit = fit and isinstance(args, list) and all(isinstance(word, str) for word in args)
    fit = fit and isinstance(env, dict) and all(isinstance(word, str) for pair in env.items() for word in pair)
    fit = fit and (order["op"] == "terminal") == (order.get("terminal") is not None)
    fit = fit and (order["op"] != "terminal" or (fits(order["terminal"]) and bool(args)))
    if not fit or bool(order.get("guest")) == bool(args):
        raise Refused("invalid", "the order of a program has an id, words or a guest, variables and limits")
    return {**order, **numbers, "args": args, "env": env}


def _about(program: Program) -> dict[str, Any]:
    left_ms = max(0.0, program.until - monotonic()) * 1000
    return {"ended": program.ended is not None, "left_ms": left_ms, "caps": program.caps, "ring": program.ring}


class _Answer(Exchange):
    """An exchange whose result is there at once."""

    def __init__(self, channel: Channel, number: int, value: Mapping[str, Any]) -> None:
        super().__init__(channel, number)
        self._value = value

    def pump(self) -> None:
        self.reply(self._value)


class _Start(Exchange):
    """Takes a guest's request as data, and starts the program at its end."""

    def __init__(self, channel: Channel, number: int, programs: Programs, order: Mapping[str, Any]) -> None:
        super().__init__(channel, number)
        self._programs, self._order = programs, order
        self._request, self._size = -1, 0
        if order.get("guest") and not programs.known(order["id"]):
            self._request = os.memfd_create("request")

    def data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _MOST_REQUEST:
            raise Refused("invalid", f"a request has at most {_MOST_REQUEST} bytes")
        if self._request >= 0:
            view = memoryview(data)
            while view:
                view = view[os.write(self._request, view) :]
        self.grant(len(data))

    def ended(self) -> None:
        if self._request >= 0:
            os.lseek(self._request, 0, os.SEEK_SET)
        self.reply(_about(self._programs.start(self._order, self._request)))

    def closed(self) -> None:
        if self._request >= 0:
            os.close(self._request)
            self._request = -1


class _Follow(_Start):
    """Starts a guest behind a program, and answers with the guest's ending and channel."""

    def __init__(
        self,
        channel: Channel,
        number: int,
        programs: Programs,
        order: Mapping[str, Any],
        loop: Loop,
        is_quiet: Callable[[], bool],
    ) -> None:
        self._before, self._loop, self._is_quiet = programs.get(order["after"]), loop, is_quiet
        self._watched: Program | None = None
        super().__init__(channel, number, programs, order)

    def ended(self) -> None:
        if self._order.get("clear"):
            import_clearing()  # while the program before is at work
        self._when_ended(self._before, self._next)

    def _when_ended(self, program: Program, function: Callable[[], None]) -> None:
        if program.ended is None:
            self._watched, self._function = program, function
            program.watchers.add(function)
        else:
            function()

    def _next(self) -> None:
        """Begins when the ending of the program before was told."""
        # A fork takes as long as many a program.
        self._loop.after(0.0, self._begin)

    def _begin(self) -> None:
        if self.open:
            self.channel.flush()
        if not self.open:
            return
        id, before = self._order["id"], self._before.ended or {}
        try:
            if not self._programs.known(id):
                if before.get("outcome") != "exit" or not self._is_quiet():
                    raise Refused("skipped", "the program before did not end by itself, or something else is at work")
                if self._programs.is_clear(self._order, self._request):
                    self.reply({**_NEEDLESS, "channel": cleared([]).hex()})
                    return
            if self._request >= 0:
                os.lseek(self._request, 0, os.SEEK_SET)
            program = self._programs.start(self._order, self._request)
        except Refused as refused:
            self.fail(refused)
        else:
            self._when_ended(program, lambda: self._tell(program))

    def _tell(self, program: Program) -> None:
        spool = program.spools["channel"]
        channel = b"" if spool.first else spool.read(0, _MOST_FOLLOWED)
        self.reply({**(program.ended or {}), "channel": channel.hex()})

    def closed(self) -> None:
        if self._watched is not None:
            self._watched.watchers.discard(self._function)
        super().closed()


class _Output(Exchange):
    """Pushes one stream of a program."""

    def __init__(self, channel: Channel, number: int, program: Program, name: str, offset: int) -> None:
        super().__init__(channel, number)
        self._program, self._name = program, name
        self._spool, self._offset = program.spools[name], offset
        self._spool.watchers.add(self.pump)

    def pump(self) -> None:
        while room := self.room:
            if self._offset < self._spool.first:
                self.fail(Refused("dropped", "the output is not kept any more", first=self._spool.first))
                return
            data = self._spool.read(self._offset, room)
            if not data:
                if self._spool.ended:
                    self.reply({"size": self._spool.size})
                return
            self._offset += len(data)
            self._program.was_read(self._name, self._offset)
            self.send(data)

    def closed(self) -> None:
        self._spool.watchers.discard(self.pump)


class _Wait(Exchange):
    """Answers when a program has ended."""

    def __init__(self, channel: Channel, number: int, program: Program) -> None:
        super().__init__(channel, number)
        self._program = program
        program.watchers.add(self.pump)

    def pump(self) -> None:
        if self._program.ended is not None:
            self.reply(self._program.ended)

    def closed(self) -> None:
        self._program.watchers.discard(self.pump)


class _Input(Exchange):
    """Takes data for a standard input."""

    def __init__(self, channel: Channel, number: int, program: Program) -> None:
        super().__init__(channel, number)
        self._program = program

    def data(self, data: bytes) -> None:
        self._program.feed(data)
        self._program.when_taken(lambda: self.grant(len(data)))

    def ended(self) -> None:
        self._program.when_taken(self._taken)

    def _taken(self) -> None:
        if self._program.reads_input:
            self.reply({})
        else:
            self.fail(Refused("gone", "nobody reads this standard input"))


_OPERATIONS: dict[str, Callable[[Agent, Channel, int, Mapping[str, Any]], Exchange]] = {
    "start": Agent._start,
    "follow": Agent._follow,
    "terminal": Agent._start,
    "resize": Agent._resize,
    "process": Agent._process,
    "list": Agent._list,
    "output": Agent._output,
    "wait": Agent._wait,
    "kill": Agent._kill,
    "input": Agent._input,
    "close": Agent._close,
    "files": Agent._files,
    "forward": Agent._forward,
    "listen": Agent._listen,
    "accept": Agent._take_next,
    "lease": Agent._renewed,
    "end": Agent._end,
}
