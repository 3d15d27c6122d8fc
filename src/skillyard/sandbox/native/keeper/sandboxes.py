"""All sandboxes of a keeper: made on demand or ahead, lent, ended, and removed."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from skillyard.sandbox.native.keeper.ground import Ground, Household, Source, Warmth
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Key, Lease, Listen, Opened, Shape, Show
from skillyard.sandbox.native.keeper.sandbox import Place, Sandbox
from skillyard.sandbox.native.keeper.shares import Shares
from skillyard.sandbox.native.keeper.zygotes.zygote import Zygotes

_REFILL_AGAIN_S = 1.0
_SHAPES_KEPT = 4
_SHORT_RUN_S = 0.02
_STREAMS_AHEAD = 64
"""Sandboxes with more listeners are given them when they are lent: each that waits holds descriptors of ours."""


class Answer(Protocol):
    def __call__(self, sandbox: Sandbox | None, error: str, sockets: Sequence[socket.socket] = ()) -> None: ...


@dataclass(slots=True)
class Asked:
    """A create that waits for its sandbox. ``answer(sandbox, error)`` gets exactly one of them; sockets with a
    sandbox."""

    lease: Lease
    shows: tuple[Show, ...]
    answer: Answer
    listen: Listen | None = None
    begun: Sandbox | None = None
    """The sandbox to be lent: the server wrote the request into its channel."""
    failed_once: bool = False


class Sandboxes:
    def __init__(
        self, loop: Loop, ground: Ground, spool_dir: str, ready: int, zygotes_mb: int, zygotes_idle_s: float
    ) -> None:
        """Makes ``ready`` sandboxes of each shape ahead; :class:`Zygotes` takes the last two."""
        self._loop = loop
        self._refiller = loop.guarded(self._refill_failed)
        self._ground = ground
        self._spool_dir = spool_dir
        self._target = ready
        self._zygotes = Zygotes(loop, zygotes_mb, zygotes_idle_s, self._new_source, self._stays, self._zygote_closed)
        self._environments: dict[str, dict[str, Any]] = {}
        self._ready: dict[Shape, deque[Sandbox]] = {}
        self._making: Counter[Shape] = Counter()
        self._waiting: dict[Shape, deque[Asked]] = {}
        """Neither keeps a shape that is at rest, since callers choose shapes without end."""
        self._name = f"n{os.urandom(5).hex()}"
        """Begins the handles: never those of an earlier keeper, which somebody may still ask after."""
        self._number = 0
        self._failures = 0
        self._refilling = self._later = False
        self._lent_at = 0.0
        self._shares = Shares()
        self.all: dict[str, Sandbox] = {}
        self.by_key: dict[str, Sandbox] = {}
        self._served = False
        self._offered: set[str] = set()
        """Handles of those that wait and that the server can reach by itself."""
        self.on_program_end: Callable[[Sandbox, Any], None] = lambda sandbox, program: None
        self.on_gone: Callable[[Sandbox], None] = lambda sandbox: None
        self.on_lent: Callable[[], None] = lambda: None
        self.tell: Callable[[dict[str, Any], Sequence[socket.socket]], None] = lambda event, sockets: None
        """Tells the server that is there."""
        ground.begin(Household(self._failed, self._zygotes.trim_soon, self._lives, self._inits, self._ours))

    def environment(self, name: str, details: dict[str, Any]) -> None:
        """Learns what an environment is: ``packages`` (a directory or empty), ``preload`` and ``directories``.

        One with directories is for one sandbox, and none is made ahead.
        """
        self._environments[name] = details

    def create(self, shape: Shape, asked: Asked) -> None:
        if (begun := asked.begun) is not None:
            self._ready[begun.shape].remove(begun)
            self._lend(begun, asked)
            return
        shape = self._told(shape, single=asked.lease.single and not asked.lease.command)
        if not self._environments[shape.environment]["directories"]:
            self._ready.setdefault(shape, deque())
        for kind in (shape,) if shape.listen is None else (shape, replace(shape, listen=None)):
            for sandbox in [each for each in self._ready.get(kind, ()) if each.handle not in self._offered]:
                self._ready[kind].remove(sandbox)
                if sandbox.waits():
                    self._lend(sandbox, asked)
                    return
                sandbox.kill()  # its worker has ended, and may have the mark of a request that never came
        self._waiting.setdefault(shape, deque()).append(asked)
        self._make(shape)

    def offer(self, sandbox: Sandbox) -> None:
        """Gives the server an end of the channel of a worker that waits.

        A request passes there without us, so that it is lent only where the server names it.
        """
        shape, channel = sandbox.shape, sandbox.channel
        if not (self._served and shape.single and shape.listen is None and channel is not None and self._free(sandbox)):
            return
        with contextlib.suppress(OSError):  # else it is lent as others are
            self.tell({"event": "ready", "handle": sandbox.handle, "shape": shape.told}, [channel.dup()])
            self._offered.add(sandbox.handle)

    def take_back(self, handle: str) -> Sandbox | None:
        """Returns a sandbox that was offered and waits. The server has no end of its channel any more."""
        if handle not in self._offered:
            return None
        self._offered.discard(handle)
        sandbox = self.all[handle]
        return sandbox if sandbox in self._ready.get(sandbox.shape, ()) else None

    def settle(self, sandbox: Sandbox, *, begun: bool) -> None:
        """Offers a sandbox again that was taken back and not lent. One that was ``begun`` or is over ends."""
        if sandbox.lease is None and (begun or not sandbox.waits()):
            sandbox.kill()
        elif sandbox.lease is None:
            self.offer(sandbox)

    def met(self) -> None:
        """Offers what waits to a server that has just come."""
        self._served = True
        for sandbox in [sandbox for ready in self._ready.values() for sandbox in ready]:
            self.offer(sandbox)

    def left(self) -> None:
        """Ends what the server that has gone could reach: the next one is lent none of it."""
        self._served = False
        for handle in self._offered:
            self.all[handle].kill()

    def _withdraw(self, sandbox: Sandbox) -> None:
        if sandbox.handle in self._offered:
            self._offered.discard(sandbox.handle)
            self.tell({"event": "unready", "handle": sandbox.handle, "shape": sandbox.shape.told}, ())

    def _free(self, sandbox: Sandbox) -> bool:
        """Returns whether it waits and was offered to nobody."""
        waits = sandbox in self._ready.get(sandbox.shape, ()) and sandbox.waits()
        return waits and sandbox.handle not in self._offered

    def prepare(self, shape: Shape, then: Callable[[Warmth], None]) -> None:
        """Make what sandboxes of this shape come from, and call ``then`` when it is there."""
        shape = self._told(shape, single=True)  # as most runs ask for it
        self._ready.setdefault(shape, deque())
        try:
            source = self._zygotes.get(shape.key)
        except OSError as error:
            then(Warmth(error=_why(error)))
            return
        source.warm(then)
        self.refill()

    def _told(self, shape: Shape, *, single: bool) -> Shape:
        """Returns the shape for one guest or other programs, where these are made in two ways."""
        return replace(shape, single=single) if self._ground.tells_single else shape

    def refill(self) -> None:
        """Make sandboxes ahead, but never while there is anything else to do."""
        if not self._refilling and (self._target or len(self._ready) > _SHAPES_KEPT):
            self._refilling = True
            self._refiller.when_idle(self._refill)

    def _refill_later(self) -> None:
        self._later = False
        self.refill()

    def _refill_failed(self, _: Exception) -> None:
        """Fills up later; until then sandboxes are made on demand."""
        self._refilling = True
        self._loop.after(_REFILL_AGAIN_S, self._refill)

    def survey(self) -> list[Sandbox]:
        return [sandbox for sandbox in self.all.values() if sandbox.lease is not None]

    def close(self) -> None:
        self._target = 0  # what ends from here on is not replaced
        self._waiting.clear()
        self._zygotes.close()

    def zygotes(self) -> int:
        return len(self._zygotes)

    @property
    def end_bound_s(self) -> float:
        """Returns the seconds that it takes at most to end them all and to remove their traces."""
        return 3.0 + 0.02 * len(self.all)

    def empty(self) -> bool:
        return not self.all and self._ground.empty()

    def _refill(self) -> None:
        """Short runs are left alone: what is made beside them takes a processor away from them."""
        self._refilling = False
        quiet = time.monotonic() - self._lent_at
        if quiet < _SHORT_RUN_S and any(
            sandbox.lease is not None and not sandbox.dead for sandbox in self.all.values()
        ):
            if not self._later:
                self._later = True
                self._loop.after(_SHORT_RUN_S, self._refill_later)
            return
        while len(self._ready) > _SHAPES_KEPT:
            self._forget_shape(next(iter(self._ready)))
        for shape, ready in self._ready.items():
            if len(ready) + self._making[shape] < self._target and not self._failures:
                self._make(shape)
                return

    def _forget_shape(self, shape: Shape) -> None:
        for sandbox in self._ready.pop(shape):
            self._withdraw(sandbox)
            sandbox.kill()

    def _new_source(self, key: Key) -> Source:
        details = self._environments[key[0]]
        return self._ground.source(key, details["packages"], tuple(details["preload"]), details["directories"])

    def _stays(self, key: Key) -> bool:
        """One without packages is small, and anybody may need it next."""
        environment, *special = key
        details = self._environments[environment]
        return not (details["packages"] or details["directories"] or any(special))

    def _zygote_closed(self, key: Key) -> None:
        """Its sandboxes go on; those that wait to be used go with it."""
        for shape in [shape for shape in self._ready if shape.key == key]:
            self._forget_shape(shape)

    def _lives(self, key: Key) -> bool:
        return key in self._zygotes

    def _inits(self) -> set[int]:
        return {sandbox.pid for sandbox in self.all.values()}

    def _ours(self) -> set[int]:
        return self._zygotes.pids() | self._inits()

    def _make(self, shape: Shape) -> None:
        """Makes a sandbox and never raises. One that fails holds nothing, and its waiter hears the reason."""
        self._making[shape] += 1
        self._number += 1
        handle = f"{self._name}-{self._number}"
        place: Place | None = None
        try:
            source = self._zygotes.get(shape.key)
            place = self._ground.place(handle, shape)
            sandbox = Sandbox(self._loop, handle, shape, place, self._spool_dir)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing of it is left
            if not isinstance(error, OSError):
                self._loop.report(error)
            if place is not None:
                place.release()
            self._made(shape)
            self._refuse_one(shape, _why(error))
            return
        sandbox.on_ready, sandbox.on_dead, sandbox.on_program_end = self._is_ready, self._is_dead, self.on_program_end
        self.all[handle] = sandbox
        try:
            source.order(sandbox)
        except Exception as error:  # noqa: BLE001 - as above
            self._loop.report(error)
            if handle in self.all:
                self._is_dead(sandbox, _why(error))

    def _is_ready(self, sandbox: Sandbox) -> None:
        self._failures = 0
        self._made(sandbox.shape)
        if (asked := self._next(sandbox.shape)) is not None:
            self._lend(sandbox, asked)
        else:
            self._ready.setdefault(sandbox.shape, deque()).append(sandbox)
            self._listen_ahead(sandbox)
            self.offer(sandbox)
        self.refill()

    def _lend(self, sandbox: Sandbox, asked: Asked) -> None:
        sandbox.account.meter.begin(begun=asked.begun is not None)
        if not asked.shows:
            self._open(sandbox, asked)
            return
        shown = functools.partial(self._shown, sandbox, asked)
        try:
            sandbox.place.show(sandbox, asked.shows, shown)
        except Exception as error:  # noqa: BLE001 - the caller must hear of it
            shown(error)

    def _shown(self, sandbox: Sandbox, asked: Asked, error: Exception | None) -> None:
        if error is not None:
            self._throw_away(sandbox, asked, error)
        elif sandbox.dead:
            self._waiting.setdefault(sandbox.shape, deque()).appendleft(asked)
            self._make(sandbox.shape)
        else:
            self._open(sandbox, asked)

    def _open(self, sandbox: Sandbox, asked: Asked) -> None:
        sockets: Sequence[socket.socket] = ()
        try:
            if asked.listen is not None:
                sockets = self._listen_first(sandbox, asked.listen)
        except Exception as error:  # noqa: BLE001 - the caller must hear of it
            self._throw_away(sandbox, asked, error)
            return
        sandbox.lease = asked.lease
        self._shares.lent(sandbox, asked.lease.tenant)
        self._lent_at = time.monotonic()
        self.by_key[asked.lease.key] = sandbox
        self.on_lent()
        asked.answer(sandbox, "", sockets)

    def _throw_away(self, sandbox: Sandbox, asked: Asked, error: Exception) -> None:
        if not isinstance(error, OSError):
            self._loop.report(error)
        sandbox.kill()
        asked.answer(None, _why(error))

    def listen(self, sandbox: Sandbox, wanted: Listen) -> Opened:
        """Opens sockets in a sandbox's network. Raises OSError."""
        opened = self._ground.listen(sandbox, wanted)
        sandbox.listeners = len(opened.sockets) + len(opened.taken)
        return opened

    def _listen_ahead(self, sandbox: Sandbox) -> None:
        """While nobody waits: routes are changed under a lock that all of the host's networks share."""
        wanted = sandbox.shape.listen
        if wanted is not None and len(wanted.streams) <= _STREAMS_AHEAD:
            with contextlib.suppress(OSError):  # a caller that asks for it will hear why
                sandbox.opened = self.listen(sandbox, wanted)

    def _listen_first(self, sandbox: Sandbox, wanted: Listen) -> Sequence[socket.socket]:
        opened, sandbox.opened = sandbox.opened or self.listen(sandbox, wanted), None
        if opened.taken:  # nothing foreign has run in there
            opened.close()
            raise OSError(errno.EADDRINUSE, f"ports of a fresh sandbox are taken: {opened.taken}")
        return opened.sockets

    def _failed(self, sandbox: Sandbox, why: str) -> None:
        """It was never cloned."""
        self._is_dead(sandbox, why)

    def _is_dead(self, sandbox: Sandbox, why: str) -> None:
        try:
            if sandbox in self._ready.get(sandbox.shape, ()):
                self._ready[sandbox.shape].remove(sandbox)
            if sandbox.lease is None:
                self._withdraw(sandbox)
                self.discard(sandbox)
                self.refill()
            else:
                self._shares.ended(sandbox, sandbox.lease.tenant)
                self.on_gone(sandbox)
        finally:
            if sandbox.ready_at is None:
                self._made(sandbox.shape)
                self._failures += 1
                self._try_again(sandbox.shape, why)

    def discard(self, sandbox: Sandbox) -> None:
        """Forget a dead sandbox and free what it held."""
        self.all.pop(sandbox.handle, None)
        if sandbox.lease is not None and self.by_key.get(sandbox.lease.key) is sandbox:
            del self.by_key[sandbox.lease.key]
        try:
            sandbox.release()
        finally:
            sandbox.place.release()
        if self._environments.get(sandbox.shape.environment, {}).get("directories"):
            self._zygotes.let_go(sandbox.shape.key)
            if sandbox.lease is not None:  # it had its one sandbox
                del self._environments[sandbox.shape.environment]

    def _try_again(self, shape: Shape, why: str) -> None:
        """Nobody hears of one failure: a zygote may have been killed, and the next one is not. Nor of one that was made
        for the pool, while as many are being made as are waited for."""
        if self._making[shape] >= len(self._waiting.get(shape, ())):
            return
        untried = next((asked for asked in self._waiting.get(shape, ()) if not asked.failed_once), None)
        if untried is None:
            self._refuse_one(shape, why)
        else:
            untried.failed_once = True
            self._make(shape)

    def _refuse_one(self, shape: Shape, why: str) -> None:
        if (asked := self._next(shape)) is not None:
            asked.answer(None, why)

    def _made(self, shape: Shape) -> None:
        """One fewer is being made."""
        self._making[shape] -= 1
        if not self._making[shape]:
            del self._making[shape]

    def _next(self, shape: Shape) -> Asked | None:
        """Takes the one that has waited longest; None where nobody does."""
        waiting = self._waiting.get(shape)
        asked = waiting.popleft() if waiting else None
        if not waiting:
            self._waiting.pop(shape, None)
        return asked


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


def told_whole(sandbox: Sandbox) -> bool:
    """Returns whether the ending of a server's own single program carried all there is to know."""
    lease = sandbox.lease
    if not (sandbox.dead or sandbox.parting) or lease is None or not lease.single or lease.owner != "run":
        return False
    return all(program.is_small() for program in sandbox.programs.values())
