"""The native ground: a sandbox is a zygote's clone in its own namespaces and control group."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillyard.domain.sandbox.spec import MOST_TERMINALS
from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.grounds.host import Host, Share
from skillyard.sandbox.native.grounds.namespaces import listening, table, zygote_check
from skillyard.sandbox.native.grounds.namespaces.mounts import Shower
from skillyard.sandbox.native.grounds.namespaces.zygote import ZygotePlan
from skillyard.sandbox.native.groups import hierarchies
from skillyard.sandbox.native.groups.groups import Group, GroupLimits
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.inside.walls import INTO_CGROUP, PLAIN, SINGLE_INTO_CGROUP, SINGLE_PLAIN
from skillyard.sandbox.native.keeper.account import Account, ProcessMeter
from skillyard.sandbox.native.keeper.ground import Household, Source, Start
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.main import launch
from skillyard.sandbox.native.keeper.request import MIB, Directory, Key, Listen, Opened, Shape, Show
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch import memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.zygotes.process import Upkeep, ZygoteProcess
from skillyard.sandbox.native.keeper.zygotes.zygote import Zygote
from skillyard.sandbox.native.linux import kernel, namespaces

_INODES_PER_MIB = 128
_SPARE_PIDS = 8
"""RLIMIT_NPROC lies so far above the controller's limit, which counts refusals and so must refuse first."""
_ZYGOTE_PIDS = 64
"""The processes of a zygote that runs packages' code, its clones included until they join groups of their own."""
_STACK = 8 * MIB
"""Bytes of a thread's stack, which RLIMIT_DATA counts whole. Where a controller counts the touched memory, the limit
leaves room for the stacks of all threads."""
_MADE = {True: "made in C", False: "made in Python"}
_GROUP_HEADROOM = 24 * MIB
"""Bytes for the two interpreters of a sandbox before foreign code starts."""


def main(config: dict[str, Any], make_loop: Callable[[], Loop] = Loop) -> None:
    """Becomes the native backend's keeper. ``config`` has ``run_dir`` and the values of ``[native]``."""
    launch(config, START, make_loop)


def enter() -> None:
    """Runs before the pid namespace begins, in which the server has no pid."""
    hierarchies.make_room()
    namespaces.enter()
    memory.largest_buffer()
    namespaces.leave_network()


def settle() -> None:
    """Runs as pid 1 of the new namespaces."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    hierarchies.mount_own()


class NamespacesPlace:
    """The place of one sandbox: its id, its control group, and the walls that were ordered."""

    stays = True
    lingers = False
    ends_whole = True

    def __init__(
        self,
        host: Host,
        share: Share,
        build: walls.Build,
        memory_mb: int,
        shower: Shower,
        *,
        compiled: bool,
        single: bool,
    ) -> None:
        self._host = host
        self._share = share
        self._shower = shower
        self.build = build
        self.group = group = share.group
        counted = group is not None and group.counts_memory()
        self.account = Account(group, memory_mb, ProcessMeter(group, weighs=not counted))
        into = group is not None and group.version == 2
        joins = 0 if group is None or into else group.hierarchies()
        self.made = _MADE[compiled]
        plain, joined = (SINGLE_PLAIN, SINGLE_INTO_CGROUP) if single else (PLAIN, INTO_CGROUP)
        self.order = (joined if into else plain) + (table.order(build, joins) if compiled else build.encode())

    @property
    def uid(self) -> int:
        """Returns the user of its processes, as the keeper counts ids."""
        return self._host.ids.base + self._share.slot

    def ready(self, sandbox: Sandbox) -> None:
        """There is nothing to do."""

    def show(self, sandbox: Sandbox, shows: Sequence[Show], then: Callable[[OSError | None], None]) -> None:
        self._shower.show(sandbox.pidfd, shows)
        then(None)

    def end(self, sandbox: Sandbox) -> None:
        """Ends init, and with it the whole pid namespace."""
        if sandbox.given:
            self.account.meter.look()
        kernel.pidfd_kill(sandbox.pidfd)

    def told(self, sandbox: Sandbox, message: dict[str, Any]) -> bool:
        return False

    def ending(self, status: int) -> dict[str, Any] | None:
        return None

    def gone(self, sandbox: Sandbox, then: Callable[[], None]) -> None:
        then()  # a pid namespace is empty when its first process is gone, and its mounts are gone, too

    def release(self) -> None:
        self._host.give_back(self._share)


class NamespacesGround:
    tells_single = True

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self._loop = loop
        self._host = Host(loop, config)
        self._upkeep = Upkeep.of(config)
        self._shower = Shower(loop)
        self._home: listening.Home | None = None
        self._groups_made = 0
        self._compiled = bool(config["compiled"]) and root.compiled_part() is not None
        self._plain: set[Key] = set()
        """Those whose zygotes run no code but ours, and show no directories of the host."""
        self._household: Household

    @property
    def facts(self) -> Mapping[str, Any]:
        return {**self._host.facts(), "walls": _MADE[self._compiled]}

    def begin(self, household: Household) -> None:
        self._household = household
        self._host.begin(household.lives)

    def source(self, key: Key, packages: str, preload: Sequence[str], directories: Sequence[Directory] = ()) -> Source:
        """Plans a zygote; one that imports packages gets ids that no other zygote's sandboxes have.

        One with directories has one id for its one sandbox, to which their files belong.
        """
        host = self._host
        if directories and not host.landlock:
            raise OSError(0, "directories of the host need Landlock, and this kernel has none")
        plain = not preload and not directories
        (self._plain.add if plain else self._plain.discard)(key)
        slots: range | None = range(1, host.ids.count)
        if host.ids.count > 1 and (preload or directories):
            slots = host.part(key, alone=bool(directories))
        plan = ZygotePlan(
            host.python,
            packages,
            tuple(preload),
            host.ids,
            slots,
            f"{host.run_dir}/root",
            host.cgroups.has("memory"),
            self._compiled and plain,
            host.cgroups.let_clone(host.ids.base),
            self._zygote_group,
            tuple(directories),
        )
        return Zygote(self._loop, plan, self._upkeep, self._household, self._lacks, host.bury)

    def place(self, handle: str, shape: Shape) -> NamespacesPlace:
        memory_bytes = (shape.memory_mb + shape.disk_mb) * MIB + _GROUP_HEADROOM
        limits, plain = GroupLimits(memory_bytes, shape.pids + 1, shape.cpus), shape.key in self._plain
        share = self._host.take(handle, shape.key, limits, again=plain)
        build, compiled = self._build(shape, share.slot), self._compiled and plain
        how = {"compiled": compiled, "single": shape.single}
        return NamespacesPlace(self._host, share, build, shape.memory_mb, self._shower, **how)

    def listen(self, sandbox: Sandbox, wanted: Listen) -> Opened:
        return listening.open_in(self._own_network(), sandbox.pidfd, wanted)

    def dial(self, sandbox: Sandbox, port: int, *, six: bool) -> socket.socket:
        return listening.dial_in(self._own_network(), sandbox.pidfd, port, six=six)

    def _own_network(self) -> listening.Home:
        self._home = self._home or listening.Home()
        return self._home

    def check(self, sandbox: Sandbox, objects: Objects) -> None:
        memory.check(sandbox, objects)

    def outside(self, sandbox: Sandbox) -> Mapping[str, Any]:
        return {}

    def empty(self) -> bool:
        return self._host.empty()

    def end_strays(self, done: Callable[[], None]) -> None:
        done()  # they end with the keeper, the first process of their pid namespace

    def leave(self) -> None:
        self._host.leave()

    def _build(self, shape: Shape, slot: int) -> walls.Build:
        host = self._host
        counted = host.cgroups.has("memory")
        return walls.Build(
            uid=slot or host.ids.inside,
            own_uid=slot > 0,
            disk_bytes=shape.disk_mb * MIB,
            inodes=max(4096, shape.disk_mb * _INODES_PER_MIB),
            processes=shape.pids + 1 + (_SPARE_PIDS if host.cgroups.has("pids") else 0),
            data_bytes=shape.memory_mb * MIB + (shape.pids * _STACK if counted else 0),
            stack_bytes=0 if counted else walls.SMALL_STACK,
            descriptors=walls.descriptors(),
            terminals=MOST_TERMINALS if shape.terminals else 0,
            cpus=host.processors.take(shape.cpus),
            landlock=host.landlock,
            proc_files=host.proc_files,
            proc_directories=host.proc_directories,
            closed=shape.closed,
        )

    def _zygote_group(self) -> Group | None:
        """Makes a group for a zygote that runs packages' code."""
        self._groups_made += 1
        limits = GroupLimits(self._upkeep.most_mb * MIB, _ZYGOTE_PIDS, len(self._host.processors.all))
        return self._host.group(f"z{os.urandom(5).hex()}-{self._groups_made}", limits)

    def _lacks(self, sandbox: Sandbox, process: ZygoteProcess) -> str:
        place = sandbox.place
        assert isinstance(place, NamespacesPlace)
        return zygote_check.lacking(sandbox, place.build, process, place.uid)


START = Start(enter, settle, NamespacesGround)
