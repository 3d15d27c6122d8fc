"""The landlock ground: a sandbox has a directory and, where there are any, two user ids."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skillyard.sandbox.native.grounds import host, root
from skillyard.sandbox.native.grounds.host import Processors
from skillyard.sandbox.native.grounds.landlock import area, support
from skillyard.sandbox.native.grounds.landlock import area as areas
from skillyard.sandbox.native.grounds.landlock.calls import Calls
from skillyard.sandbox.native.grounds.landlock.inside.places import root_of
from skillyard.sandbox.native.grounds.landlock.inside.walls import Build
from skillyard.sandbox.native.grounds.landlock.place import LandlockPlace
from skillyard.sandbox.native.grounds.landlock.ports import KeeperPorts, SandboxPorts
from skillyard.sandbox.native.grounds.landlock.processes import Leftovers, ProcessCount
from skillyard.sandbox.native.grounds.landlock.tree import removal, work
from skillyard.sandbox.native.grounds.landlock.watch import Watch
from skillyard.sandbox.native.grounds.landlock.zygote import Block, ZygotePlan
from skillyard.sandbox.native.grounds.namespaces.zygote_check import process_lacks
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper.ground import Household, Source, Start
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.main import launch
from skillyard.sandbox.native.keeper.request import MIB, Directory, Key, Listen, Opened, Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import below
from skillyard.sandbox.native.keeper.zygotes.process import Upkeep, ZygoteProcess
from skillyard.sandbox.native.keeper.zygotes.zygote import Zygote
from skillyard.sandbox.native.linux import kernel, landlock

_SLACK = 512
"""Processes and threads by which the server's user may grow meanwhile, where that is also the sandboxes' user."""
_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_LOOKED_AT = 4
_BLOCK = 512
"""Ids of one zygote: one is its own, and each sandbox takes two."""
_KNOWS_TCP = 4
"""The Landlock version that closes TCP."""
_NO_TCP = "no port can be forwarded: Landlock here (version {}) does not know TCP, as Linux 6.7 does"
_NO_IDS = "all user ids for sandboxes are in use"


def main(config: dict[str, Any], make_loop: Callable[[], Loop] = Loop) -> None:
    """Becomes the landlock backend's keeper. ``config`` has ``run_dir`` and the values of ``[native]``."""
    launch(config, Start(support.check, settle, LandlockGround), make_loop)


def settle() -> None:
    """Becomes the parent of orphans that a killed init leaves, and closed to our own user."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    os.umask(0o022)


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
        """Returns whether no sandbox has any of them."""
        return len(self.free) == (_BLOCK - 1) // 2


class LandlockGround:
    tells_single = False

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        """Raises OSError with the reason."""
        self._loop = loop
        self._run_dir: str = config["run_dir"]
        self._ids, self._id_lock = host.choose_ids(config["uid_base"], config["uid_count"])
        self._own_ids = self._ids.count > 1
        self._landlock, self._executable = landlock.abi(), root.find_interpreter().executable
        support.check_identity(own_ids=self._own_ids, version=self._landlock)
        self._upkeep = Upkeep.of(config)
        self._area = areas.make(self._run_dir, own_uids=self._own_ids)
        try:
            self._python = area.find(self._area, everybody=self._own_ids)
            self._homes = os.open(self._area.homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            self.leave()
            raise
        first, count = self._ids.base, self._ids.count
        self._free_blocks = deque(range(first, first + count - _BLOCK + 1, _BLOCK))
        self._pairs: dict[Key, Pairs] = {}
        self._removing = 0
        self._processes = ProcessCount()
        self._processors = Processors(counted=False)
        self._watch = Watch(loop, processes=not self._own_ids)
        self._ports = KeeperPorts()
        self._calls = Calls(loop, self._ports)
        self._household: Household
        self._leftovers: Leftovers

    @property
    def facts(self) -> Mapping[str, Any]:
        return {
            "landlock": self._landlock,
            "own_uid": self._own_ids,
            "uids": [self._ids.base, self._ids.count],
            "cgroup_version": 0,
            "cgroups": [],
            "cgroups_missing": {},
            "python": self._executable,
            "homes": self._area.homes,
            "secret": self._area.secret,
            "code": self._area.code,
            "executable": self._area.executable,
        }

    def begin(self, household: Household) -> None:
        self._household = household
        self._leftovers = Leftovers(self._loop, household.inits)

    def source(self, key: Key, packages: str, preload: Sequence[str], directories: Sequence[Directory] = ()) -> Source:
        if directories:
            raise OSError(0, "the isolation 'landlock' cannot show directories of the host")
        forwarding = key[2]
        if forwarding and self._landlock < _KNOWS_TCP:
            raise OSError(0, _NO_TCP.format(self._landlock))
        block = self._pairs_of(key).block if self._own_ids else Block()
        plan = ZygotePlan(
            self._python,
            packages,
            tuple(preload),
            block,
            self._area,
            self._landlock,
            self._own_ids,
            self._leftovers.meet_zygote,
            self._calls.supervise if forwarding else None,
        )
        return Zygote(self._loop, plan, self._upkeep, self._household, _lacks, _no_group)

    def place(self, handle: str, shape: Shape) -> LandlockPlace:
        pair = self._take_pair(shape.key)
        root = root_of(self._area.homes, self._area.secret, handle)
        try:
            areas.make_home(root, pair[0])
        except OSError:
            self._give_back(shape.key, pair)
            raise
        build = Build(
            root=root,
            uid=pair[0],
            warden=pair[1],
            disk_bytes=shape.disk_mb * MIB,
            processes=shape.pids if pair[0] else self._processes.count() + shape.pids + _SLACK,
            data_bytes=shape.memory_mb * MIB,
            cpus=list(self._processors.take(shape.cpus)),
        )
        ports = SandboxPorts(self._ports, pair[0]) if shape.forwarding else None
        return LandlockPlace(self._loop, self, shape, root, pair, build.encode(), ports)

    def listen(self, sandbox: Sandbox, wanted: Listen) -> Opened:
        raise OSError(errno.EOPNOTSUPP, "the sandbox has the host's network, and nothing of it is open to it")

    def dial(self, sandbox: Sandbox, port: int, *, six: bool) -> socket.socket:
        assert isinstance(sandbox.place, LandlockPlace)
        return sandbox.place.dial(port, six=six)

    def check(self, sandbox: Sandbox, objects: Objects) -> None:
        assert isinstance(sandbox.place, LandlockPlace)
        self._watch.check(sandbox, sandbox.place, objects)

    def outside(self, sandbox: Sandbox) -> Mapping[str, Any]:
        return {}

    def empty(self) -> bool:
        return not self._removing

    def end_strays(self, done: Callable[[], None]) -> None:
        self._leftovers.end(0, 0, done)

    def leave(self) -> None:
        areas.discard(self._run_dir, self._area)

    def end_left(self, place: LandlockPlace, then: Callable[[], None]) -> None:
        self._leftovers.end(place.uid, place.warden, then)

    def remove(self, place: LandlockPlace, then: Callable[[], None]) -> None:
        place.removed = True
        self._removing += 1
        name = os.path.basename(place.root)

        def done(error: OSError | None) -> None:
            self._removing -= 1
            if error is not None:
                os.write(2, f"{name} cannot be removed: {error}\n".encode())
            then()

        work(self._loop, removal(self._homes, name), done)

    def release(self, place: LandlockPlace) -> None:
        self._watch.forget(place)
        if not place.removed:
            self.remove(place, lambda: None)
        self._give_back(place.shape.key, (place.uid, place.warden))

    def _take_pair(self, key: Key) -> tuple[int, int]:
        """Returns the ids of a sandbox. Raises OSError when there are none left."""
        if not self._own_ids:
            return 0, 0
        free = self._pairs_of(key).free
        if not free:
            raise OSError(0, _NO_IDS)
        return free.popleft()

    def _give_back(self, key: Key, pair: tuple[int, int]) -> None:
        if self._own_ids:
            self._pairs[key].free.append(pair)

    def _pairs_of(self, key: Key) -> Pairs:
        """Returns the ids of a zygote and its sandboxes. Raises OSError when there is no block for one more zygote."""
        if key not in self._pairs:
            self._free_a_block()
            if not self._free_blocks:
                raise OSError(0, _NO_IDS)
            self._pairs[key] = Pairs.of(self._free_blocks.popleft())
        return self._pairs[key]

    def _free_a_block(self) -> None:
        """Frees the block of a closed zygote without sandboxes, when no other is free."""
        if self._free_blocks:
            return
        unused = (key for key, pairs in self._pairs.items() if pairs.whole and not self._household.lives(key))
        if (key := next(unused, None)) is not None:
            self._free_blocks.append(self._pairs.pop(key).block.first)


def _lacks(sandbox: Sandbox, _: ZygoteProcess) -> str:
    """Returns the missing walls of all its processes. The kernel tells nobody about Landlock."""
    seen = (process_lacks(pid, _SETS) for pid in (sandbox.pid, *below(sandbox.pid, _LOOKED_AT)))
    return next(filter(None, seen), "")


def _no_group(group: Group) -> None:
    """Does nothing: zygotes have no control group here."""
