"""The sandboxes of a landlock keeper: made by zygotes as the native ones, each with a directory and, where there are
any to give, two ids of its own."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from skillyard.sandbox.native.grounds.host import Host
from skillyard.sandbox.native.grounds.landlock import area as areas
from skillyard.sandbox.native.grounds.landlock.area import Area
from skillyard.sandbox.native.grounds.landlock.inside.places import root_of
from skillyard.sandbox.native.grounds.landlock.inside.walls import Build
from skillyard.sandbox.native.grounds.landlock.leftovers import Stragglers
from skillyard.sandbox.native.grounds.landlock.looks import tree
from skillyard.sandbox.native.grounds.landlock.place import LandlockBox
from skillyard.sandbox.native.grounds.landlock.process_count import Crowd
from skillyard.sandbox.native.grounds.landlock.python import Python
from skillyard.sandbox.native.grounds.landlock.tree import removal, work
from skillyard.sandbox.native.grounds.landlock.watch import Watch
from skillyard.sandbox.native.grounds.landlock.zygote import Block, ZygotePlan
from skillyard.sandbox.native.grounds.namespaces import zygote_check
from skillyard.sandbox.native.grounds.namespaces.listening import Listen, Opened
from skillyard.sandbox.native.grounds.namespaces.mounts import Show
from skillyard.sandbox.native.grounds.namespaces.zygote import Ids
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Box, Shape
from skillyard.sandbox.native.keeper.sandboxes import MIB, Asked, Yard
from skillyard.sandbox.native.keeper.zygotes.process import Plan, Started, Upkeep, WarmProcess
from skillyard.sandbox.native.keeper.zygotes.zygote import Warmth
from skillyard.sandbox.native.keeper.zygotes.zygotes import Key, key_of

_SLACK = 512
"""By how many more processes and threads the server's user may grow while a sandbox lives, where that is also the
sandboxes' user."""

_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_LOOKED_AT = 4

_BLOCK = 512
"""Ids of one zygote: one is its own, each sandbox takes two."""


@dataclass(slots=True)
class Pairs:
    """The free ids of one zygote's block, by twos: a sandbox's user and its init's."""

    block: Block
    free: deque[tuple[int, int]] = field(default_factory=deque)

    @classmethod
    def of(cls, first: int) -> Pairs:
        ids = range(first + 1, first + _BLOCK - 1, 2)
        return cls(Block(first, _BLOCK), deque((uid, uid + 1) for uid in ids))

    @property
    def whole(self) -> bool:
        """No sandbox has any of them."""
        return len(self.free) == (_BLOCK - 1) // 2


@dataclass(frozen=True, slots=True)
class Ground:
    """What a landlock keeper has beside its :class:`Host`. ``ids`` of count 1 are the server's own."""

    area: Area
    python: Python
    ids: Ids


class LandlockYard(Yard):
    def __init__(self, loop: Loop, host: Host, ready: int, upkeep: Upkeep, ground: Ground) -> None:
        super().__init__(loop, host, ready, upkeep)
        self._ground = ground
        self._own_ids = ground.ids.count > 1
        self._free_blocks = deque(range(ground.ids.base, ground.ids.base + ground.ids.count - _BLOCK + 1, _BLOCK))
        self._pairs: dict[Key, Pairs] = {}
        self._made: dict[str, tuple[int, int]] = {}
        self._removing = 0
        self._crowd = Crowd()
        self._homes = os.open(ground.area.homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stragglers = Stragglers(loop, lambda: {box.pid for box in self.boxes.values()})
        self.watch = Watch(loop, processes=not self._own_ids)

    def empty(self) -> bool:
        return super().empty() and not self._removing

    def end_stragglers(self, done: Callable[[], None]) -> None:
        self._stragglers.end(0, 0, done)

    def discard(self, box: Box) -> None:
        super().discard(box)
        assert isinstance(box, LandlockBox)
        self.watch.forget(box)
        if not box.removed:
            self._remove(box, lambda: None)
        if box.uid:
            self._pairs[key_of(box.shape)].free.append((box.uid, box.warden))

    def _plan(self, key: Key, details: dict[str, Any]) -> Plan:
        ground = self._ground
        block = self._pairs[key].block if self._own_ids else Block()
        packages, modules = details["packages"], tuple(details["preload"])
        plan = ZygotePlan(ground.python, packages, modules, block, ground.area, self._host.landlock, self._own_ids)
        return KnownPlan(plan, self._stragglers)

    def _make(self, shape: Shape) -> None:
        if self._own_ids and not self._has_ids(key_of(shape)):
            self._refuse_one(shape, "all user ids for sandboxes are in use")
        else:
            super()._make(shape)

    def _lacks(self, box: Box, process: WarmProcess) -> str:
        """Returns the missing walls of all its processes. The kernel tells nobody about Landlock."""
        seen = (zygote_check.process_lacks(pid, _SETS) for pid in (box.pid, *tree(box.pid, _LOOKED_AT)))
        return next(filter(None, seen), "")

    def prepare(self, shape: Shape, then: Callable[[Warmth], None]) -> None:
        if not self._own_ids or self._has_ids(key_of(shape)):
            super().prepare(shape, then)
        else:
            then(Warmth(error="all user ids for sandboxes are in use"))

    def _has_ids(self, key: Key) -> bool:
        if key not in self._pairs:
            self._free_a_block()
            if self._free_blocks:
                self._pairs[key] = Pairs.of(self._free_blocks.popleft())
        return key in self._pairs and bool(self._pairs[key].free)

    def _free_a_block(self) -> None:
        """When there is none: that of a zygote that was closed and has no sandbox left."""
        if self._free_blocks:
            return
        unused = (key for key, pairs in self._pairs.items() if pairs.whole and key not in self._warm)
        if (key := next(unused, None)) is not None:
            self._free_blocks.append(self._pairs.pop(key).block.first)

    def _group(self, name: str, shape: Shape) -> Group | None:
        """No group; what may fail of a new sandbox is made here."""
        pair = self._pairs[key_of(shape)].free.popleft() if self._own_ids else (0, 0)
        try:
            areas.make_home(self._root(name), pair[0])
        except OSError:
            if self._own_ids:
                self._pairs[key_of(shape)].free.appendleft(pair)
            raise
        self._made[name] = pair
        return None

    def _unmade(self, handle: str, shape: Shape) -> None:
        pair = self._made.pop(handle, None)
        if pair is None:
            return
        if self._own_ids:
            self._pairs[key_of(shape)].free.append(pair)
        self._clear(os.path.basename(self._root(handle)), lambda: None)

    def _root(self, handle: str) -> str:
        return root_of(self._ground.area.homes, self._ground.area.secret, handle)

    def _new_box(self, handle: str, shape: Shape, slot: int, group: Group | None) -> Box:
        spool = f"{self._host.run_dir}/spool"
        box = LandlockBox(self._loop, handle, shape, spool, self._root(handle), *self._made[handle])
        del self._made[handle]
        box.on_init_gone = self._init_gone
        return box

    def _build(self, box: Box) -> bytes:
        assert isinstance(box, LandlockBox)
        shape = box.shape
        build = Build(
            root=box.root,
            uid=box.uid,
            warden=box.warden,
            disk_bytes=shape.disk_mb * MIB,
            processes=shape.pids if box.uid else self._crowd.count() + shape.pids + _SLACK,
            data_bytes=shape.memory_mb * MIB,
            cpus=list(self._affinity(shape.cpus)),
        )
        return build.encode()

    def _lend(self, box: Box, asked: Asked) -> None:
        if not asked.shows:
            super()._lend(box, asked)
            return
        assert isinstance(box, LandlockBox)

        def shown(error: OSError | None) -> None:
            if error is not None:
                box.kill()
                asked.answer(None, f"showing: {error.strerror or error}: {error.filename}")
            elif box.dead:
                self._waiting.setdefault(box.shape, deque()).appendleft(asked)
                self._make(box.shape)
            else:
                super(LandlockYard, self)._lend(box, replace(asked, shows=()))

        work(self._loop, _showing(box.root, asked.shows), shown)

    def listen(self, box: Box, wanted: Listen) -> Opened:
        raise OSError(errno.EOPNOTSUPP, "the sandbox has the host's network, and nothing of it is open to it")

    def _init_gone(self, box: LandlockBox, whole: bool, then: Callable[[], None]) -> None:
        def alone() -> None:
            self._remove(box, then)

        if whole:
            alone()
        else:
            self._stragglers.end(box.uid, box.warden, alone)

    def _remove(self, box: LandlockBox, then: Callable[[], None]) -> None:
        box.removed = True
        self._clear(os.path.basename(box.root), then)

    def _clear(self, name: str, then: Callable[[], None]) -> None:
        self._removing += 1

        def done(error: OSError | None) -> None:
            self._removing -= 1
            if error is not None:
                os.write(2, f"{name} cannot be removed: {error}\n".encode())
            then()

        work(self._loop, removal(self._homes, name), done)


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """A plan whose processes are known not to be left over."""

    plan: ZygotePlan
    stragglers: Stragglers

    @property
    def modules(self) -> tuple[str, ...]:
        return self.plan.modules

    def start(self, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> Started:
        started = self.plan.start(sock, errors, modules)
        self.stragglers.meet_zygote(started.pid)
        return started


def _showing(root: str, shows: tuple[Show, ...]) -> Iterator[None]:
    for item in shows:
        yield from areas.showing(root, item.source, item.target, item.aliases)
