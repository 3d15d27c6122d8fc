"""All sandboxes of a keeper: made on demand or ahead, lent, ended, and every trace of them removed."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from skillyard.sandbox.native.grounds.host import Host
from skillyard.sandbox.native.grounds.ids import Slots
from skillyard.sandbox.native.grounds.namespaces import zygote_check
from skillyard.sandbox.native.grounds.namespaces.listening import Home, Listen, Opened, open_in
from skillyard.sandbox.native.grounds.namespaces.mounts import Show, Shower
from skillyard.sandbox.native.grounds.namespaces.zygote import ZygotePlan
from skillyard.sandbox.native.groups.groups import Group, GroupLimits
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.inside.protocol import INTO_CGROUP, PLAIN
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Box, Lease, Shape
from skillyard.sandbox.native.keeper.shares import Shares
from skillyard.sandbox.native.keeper.zygotes.process import Plan, Upkeep, WarmProcess
from skillyard.sandbox.native.keeper.zygotes.zygote import Household, Order, Warmth, Zygote
from skillyard.sandbox.native.keeper.zygotes.zygotes import Key, Maker, WarmHouse, key_of

MIB = 1 << 20
_INODES_PER_MIB = 128
_REMOVE_RETRY_S = 0.01
_REFILL_AGAIN_S = 1.0
_SHAPES_KEPT = 4
_SHORT_RUN_S = 0.02
_STREAMS_AHEAD = 64
"""Sandboxes with more listeners are given them when they are lent: each that waits holds descriptors of ours."""
_SPARE_PIDS = 8
"""RLIMIT_NPROC above the controller's limit, so that the one that counts refusals refuses first."""
_ZYGOTE_PIDS = 64
"""Of one that runs packages' code, clones included until they are in groups of their own."""
_STACK = 8 * MIB
"""Bytes of a thread's stack. RLIMIT_DATA counts it whole, however little is touched. Where a controller counts touched
memory, there is room for the stacks of all threads."""
_GROUP_HEADROOM = 24 * MIB
"""What the two interpreters of a sandbox may hold before foreign code starts."""


class Answer(Protocol):
    def __call__(self, box: Box | None, error: str, sockets: Sequence[socket.socket] = ()) -> None: ...


@dataclass(slots=True)
class Asked:
    """A create that waits for its sandbox. ``answer(box, error)``: exactly one is given; sockets with a box."""

    lease: Lease
    shows: tuple[Show, ...]
    answer: Answer
    listen: Listen | None = None
    failed_once: bool = False


class Yard:
    def __init__(self, loop: Loop, host: Host, ready: int, upkeep: Upkeep) -> None:
        self._loop = loop
        self._refiller = loop.guarded(self._refill_failed)
        self._host = host
        self._target = ready
        self._upkeep = upkeep
        self._warm = WarmHouse(
            loop, upkeep.total_mb, upkeep.seconds, self._new_zygote, self._stays, self._zygote_closed
        )
        self._household = Household(self._failed, self._warm.trim_soon, self._lacks, self._ours, self._doom)
        self._environments: dict[str, dict[str, Any]] = {}
        self._ready: dict[Shape, deque[Box]] = {}
        self._making: dict[Shape, int] = {}
        self._waiting: dict[Shape, deque[Asked]] = {}
        self._slots = Slots(host.ids.count, self._warm.__contains__)
        self._doomed: list[Group] = []
        self._name = f"n{os.urandom(5).hex()}"
        """Begins the handles: never those of an earlier keeper, which somebody may still ask after."""
        self._number = 0
        self._cpu_turn = 0
        self._failures = 0
        self._refilling = False
        self._lent_at = 0.0
        self._home: Home | None = None
        self._shares = Shares()
        self._shower = Shower()
        loop.when_idle(self._stock_up)
        self.boxes: dict[str, Box] = {}
        self.by_key: dict[str, Box] = {}
        self.on_program_end: Callable[[Box, Any], None] = lambda box, program: None
        self.on_gone: Callable[[Box], None] = lambda box: None
        self.on_lent: Callable[[], None] = lambda: None

    def environment(self, name: str, details: dict[str, Any]) -> None:
        """Learn what an environment is: ``packages`` (a directory or empty) and ``preload``."""
        self._environments[name] = details

    def create(self, shape: Shape, asked: Asked) -> None:
        self._ready.setdefault(shape, deque())
        for kind in (shape,) if shape.listen is None else (shape, replace(shape, listen=None)):
            ready = self._ready.get(kind, ())
            while ready:
                box = ready.popleft()
                if box.waits():
                    self._lend(box, asked)
                    return
        self._waiting.setdefault(shape, deque()).append(asked)
        self._make(shape)

    def prepare(self, shape: Shape, then: Callable[[Warmth], None]) -> None:
        """Make what sandboxes of this shape come from, and call ``then`` when it is there."""
        self._ready.setdefault(shape, deque())
        self._zygote(shape).warm(then)
        self.refill()

    def refill(self) -> None:
        """Make sandboxes ahead, but never while there is anything else to do."""
        if not self._refilling:
            self._refilling = True
            self._refiller.when_idle(self._refill)

    def _refill_failed(self, _: Exception) -> None:
        """Fills up later; until then sandboxes are made on demand."""
        self._refilling = True
        self._loop.after(_REFILL_AGAIN_S, self._refill)

    def survey(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.lease is not None]

    def close(self) -> None:
        self._target = 0  # what ends from here on is not replaced
        self._waiting.clear()
        self._warm.close()

    def zygotes(self) -> int:
        return len(self._warm)

    def empty(self) -> bool:
        return not self.boxes and not self._doomed

    def _refill(self) -> None:
        """Short runs are left alone: what is made beside them takes a processor away from them."""
        self._refilling = False
        quiet = time.monotonic() - self._lent_at
        if quiet < _SHORT_RUN_S and any(box.lease is not None and not box.dead for box in self.boxes.values()):
            self._loop.after(_SHORT_RUN_S, self.refill)
            return
        while len(self._ready) > _SHAPES_KEPT:
            self._forget_shape(next(iter(self._ready)))
        for shape, ready in self._ready.items():
            if len(ready) + self._making.get(shape, 0) < self._target and not self._failures:
                self._make(shape)
                return

    def _forget_shape(self, shape: Shape) -> None:
        for box in self._ready.pop(shape):
            box.kill()

    def _zygote(self, shape: Shape) -> Maker:
        return self._warm.get(key_of(shape))

    def _new_zygote(self, key: Key) -> Maker:
        return Zygote(self._loop, self._plan(key, self._environments[key[0]]), self._upkeep, self._household)

    def _stays(self, key: Key) -> bool:
        """One without packages is small, and anybody may need it next."""
        return not (self._environments[key[0]]["packages"] or key[1])

    def _zygote_closed(self, key: Key) -> None:
        """Its sandboxes go on; those that wait to be used go with it."""
        for shape in [shape for shape in self._ready if key_of(shape) == key]:
            self._forget_shape(shape)

    def _lacks(self, box: Box, process: WarmProcess) -> str:
        host = self._host
        return zygote_check.lacking(box, process, host.ids.base + box.slot, host.proc_files, host.proc_directories)

    def _ours(self) -> set[int]:
        """The children of this keeper that somebody waits for."""
        return self._warm.pids() | {box.pid for box in self.boxes.values()}

    def _own_group(self) -> Group | None:
        """For a zygote that runs packages' code."""
        if not self._host.cgroups.parents:
            return None
        self._number += 1
        limits = GroupLimits(self._upkeep.most_mb * MIB, _ZYGOTE_PIDS, len(self._host.cpus))
        return self._host.cgroups.make(f"{self._name}-{self._number}", limits)

    def _plan(self, key: Key, details: dict[str, Any]) -> Plan:
        """Plans a zygote; one that imports packages gets ids that no other zygote's sandboxes have."""
        ids = self._host.ids
        slots = self._slots.part(key) if details["preload"] and ids.count > 1 else range(1, ids.count)
        return ZygotePlan(
            self._host.python,
            details["packages"],
            tuple(details["preload"]),
            ids,
            slots,
            f"{self._host.run_dir}/root",
            self._host.cgroups.has("memory"),
            self._host.cgroups.let_clone(ids.base),
            self._own_group,
        )

    def _make(self, shape: Shape) -> None:
        """Makes a sandbox and never raises. One that fails holds nothing, and its waiter hears the reason."""
        self._making[shape] = self._making.get(shape, 0) + 1
        self._number += 1
        handle = f"{self._name}-{self._number}"
        slot = 0
        group: Group | None = None
        try:
            zygote = self._zygote(shape)
            if self._host.ids.count > 1 and not (slot := self._slots.take(key_of(shape))):
                raise OSError(0, "all user ids for sandboxes are in use")
            group = self._group(handle, shape)
            box = self._new_box(handle, shape, slot, group)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing of it is left
            if not isinstance(error, OSError):
                self._loop.report(error)
            self._free(slot)
            if group is not None:
                self._doom(group)
            self._unmade(handle, shape)
            self._making[shape] -= 1
            self._refuse_one(shape, _why(error))
            return
        box.on_ready, box.on_dead, box.on_program_end = self._is_ready, self._is_dead, self.on_program_end
        self.boxes[handle] = box
        first = INTO_CGROUP if group is not None and group.version == 2 else PLAIN
        try:
            zygote.order(Order(box, first + self._build(box)))
        except Exception as error:  # noqa: BLE001 - as above
            self._loop.report(error)
            if handle in self.boxes:
                self._is_dead(box, _why(error))

    def _new_box(self, handle: str, shape: Shape, slot: int, group: Group | None) -> Box:
        return Box(self._loop, handle, shape, slot, group, f"{self._host.run_dir}/spool")

    def _unmade(self, handle: str, shape: Shape) -> None:
        """Frees the parts of :meth:`_group` for a sandbox that was not made."""

    def _group(self, name: str, shape: Shape) -> Group | None:
        if not self._host.cgroups.parents:
            return None
        return self._host.cgroups.make(name, self._group_limits(shape))

    def _group_limits(self, shape: Shape) -> GroupLimits:
        memory = (shape.memory_mb + shape.disk_mb) * MIB + _GROUP_HEADROOM
        return GroupLimits(memory, shape.pids + 1, shape.cpus)

    def _build(self, box: Box) -> bytes:
        shape, counted = box.shape, self._host.cgroups.has("memory")
        box.build = walls.Build(
            uid=box.slot or self._host.ids.inside,
            own_uid=box.slot > 0,
            disk_bytes=shape.disk_mb * MIB,
            inodes=max(4096, shape.disk_mb * _INODES_PER_MIB),
            processes=shape.pids + 1 + (_SPARE_PIDS if self._host.cgroups.has("pids") else 0),
            data_bytes=shape.memory_mb * MIB + (shape.pids * _STACK if counted else 0),
            stack_bytes=0 if counted else walls.SMALL_STACK,
            descriptors=walls.descriptors(),
            cpus=self._affinity(shape.cpus),
            landlock=self._host.landlock,
            proc_files=self._host.proc_files,
            proc_directories=self._host.proc_directories,
        )
        return box.build.encode()

    def _affinity(self, cpus: float) -> tuple[int, ...]:
        """Without a cpu controller, as many whole processors as the limit rounds up to; in turn."""
        have = self._host.cpus
        wanted = max(1, int(cpus) + (cpus > int(cpus)))
        if self._host.cgroups.has("cpu") or wanted >= len(have):
            return ()
        self._cpu_turn += 1
        return tuple(have[(self._cpu_turn + i) % len(have)] for i in range(wanted))

    def _is_ready(self, box: Box) -> None:
        self._failures = 0
        self._making[box.shape] -= 1
        waiting = self._waiting.get(box.shape)
        if waiting:
            self._lend(box, waiting.popleft())
        else:
            self._ready.setdefault(box.shape, deque()).append(box)
            self._listen_ahead(box)
        self.refill()

    def _lend(self, box: Box, asked: Asked) -> None:
        sockets: Sequence[socket.socket] = ()
        try:
            if asked.shows:
                self._show(box, asked.shows)
            if asked.listen is not None:
                sockets = self._listen_first(box, asked.listen)
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it
            if not isinstance(error, OSError):
                self._loop.report(error)
            box.kill()
            asked.answer(None, _why(error))
            return
        box.lease = asked.lease
        self._shares.lent(box, asked.lease.tenant)
        self._lent_at = time.monotonic()
        self.by_key[asked.lease.key] = box
        self.on_lent()
        asked.answer(box, "", sockets)

    def listen(self, box: Box, wanted: Listen) -> Opened:
        """Open sockets in a sandbox's network. Raises OSError."""
        self._home = self._home or Home()
        opened = open_in(self._home, box.pidfd, wanted)
        box.listeners = len(opened.sockets) + len(opened.taken)
        return opened

    def _listen_ahead(self, box: Box) -> None:
        """While nobody waits: routes are changed under a lock that all of the host's networks share."""
        wanted = box.shape.listen
        if wanted is not None and len(wanted.streams) <= _STREAMS_AHEAD:
            with contextlib.suppress(OSError):  # whoever asks for it will hear why
                box.opened = self.listen(box, wanted)

    def _listen_first(self, box: Box, wanted: Listen) -> Sequence[socket.socket]:
        opened, box.opened = box.opened or self.listen(box, wanted), None
        if opened.taken:  # nothing foreign has run in there
            opened.close()
            raise OSError(errno.EADDRINUSE, f"ports of a fresh sandbox are taken: {opened.taken}")
        return opened.sockets

    def _show(self, box: Box, shows: tuple[Show, ...]) -> None:
        self._shower.show(box.pidfd, shows)
        self._loop.when_idle(self._stock_up)

    def _stock_up(self) -> None:
        with contextlib.suppress(OSError):  # the next to show something will hear why
            self._shower.stock_up()

    def _failed(self, box: Box, why: str) -> None:
        """It was never cloned."""
        self._is_dead(box, why)

    def _is_dead(self, box: Box, why: str) -> None:
        try:
            if box in self._ready.get(box.shape, ()):
                self._ready[box.shape].remove(box)
            if box.lease is None:
                self.discard(box)
                self.refill()
            else:
                self._shares.ended(box, box.lease.tenant)
                self.on_gone(box)
        finally:
            if box.ready_at is None:
                self._making[box.shape] -= 1
                self._failures += 1
                self._try_again(box.shape, why)

    def discard(self, box: Box) -> None:
        """Forget a dead sandbox and free what it held."""
        self.boxes.pop(box.handle, None)
        if box.lease is not None and self.by_key.get(box.lease.key) is box:
            del self.by_key[box.lease.key]
        try:
            box.release()
        finally:
            self._free(box.slot)
            if box.group is not None:
                self._doom(box.group)

    def _doom(self, group: Group) -> None:
        self._doomed.append(group)
        self._loop.when_idle(self._bury)

    def _bury(self) -> None:
        doomed, self._doomed = self._doomed, []
        for group in doomed:
            try:
                if not group.remove():
                    self._doomed.append(group)
            except Exception as error:  # noqa: BLE001 - the next keeper removes it
                self._loop.report(error)
        if self._doomed:
            self._loop.after(_REMOVE_RETRY_S, self._bury)

    def _free(self, slot: int) -> None:
        if slot:
            self._slots.give_back(slot)

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
        waiting = self._waiting.get(shape)
        if waiting:
            waiting.popleft().answer(None, why)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
