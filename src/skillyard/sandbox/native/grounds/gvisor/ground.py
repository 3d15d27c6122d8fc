"""The gVisor ground: a sandbox is a runsc in a jail of namespaces and a control group."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.grounds.gvisor import jail, runsc
from skillyard.sandbox.native.grounds.gvisor.place import GvisorPlace, find_sentry
from skillyard.sandbox.native.grounds.gvisor.runsc import Runsc
from skillyard.sandbox.native.grounds.host import Host
from skillyard.sandbox.native.grounds.namespaces import ground as namespaces
from skillyard.sandbox.native.grounds.namespaces.mounts import Shower
from skillyard.sandbox.native.groups.groups import GroupLimits
from skillyard.sandbox.native.keeper.ground import Household, Source, Start, Warmth
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.main import launch
from skillyard.sandbox.native.keeper.request import MIB, Directory, Key, Listen, Opened, Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import status, tree_of

MakePlan = Callable[[Sandbox, GvisorPlace], jail.Plan]
Failed = Callable[[Sandbox, str], None]


class Boots:
    """Starts a few runscs at once, since each takes a processor for a while."""

    def __init__(self, runsc: Runsc, most: int) -> None:
        self.runsc = runsc
        self._most = most
        self._waiting: deque[tuple[Sandbox, GvisorPlace, MakePlan, Failed]] = deque()
        self._starting: set[GvisorPlace] = set()

    def add(self, sandbox: Sandbox, place: GvisorPlace, plan: MakePlan, failed: Failed) -> None:
        self._waiting.append((sandbox, place, plan, failed))
        self._go_on()

    def is_ready(self, place: GvisorPlace) -> None:
        self.runsc.worked()
        self._settled(place)

    def is_dead(self, place: GvisorPlace, why: str, *, was_ready: bool) -> None:
        if not was_ready:
            self.runsc.failed(place.platform, why)
        self._settled(place)

    def close(self) -> None:
        """Gives up all starts that wait."""
        waiting = list(self._waiting)
        self._waiting.clear()
        for sandbox, place, _, failed in waiting:
            place.not_started(sandbox, [])
            failed(sandbox, "the keeper ends")

    def _settled(self, place: GvisorPlace) -> None:
        self._starting.discard(place)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._starting) < self._most:
            sandbox, place, plan, failed = self._waiting.popleft()
            self._starting.add(place)
            try:
                _start(sandbox, place, plan(sandbox, place))
            except OSError as error:
                self._starting.discard(place)
                failed(sandbox, f"runsc cannot be started: {error.strerror or error}")
            except BaseException:
                self._starting.discard(place)
                raise


def _start(sandbox: Sandbox, place: GvisorPlace, plan: jail.Plan) -> None:
    """Starts one. Raises OSError; the sandbox is then as dead as one that ended."""
    groups = place.group.join_descriptors() if place.group is not None else []
    into = groups[0] if place.group is not None and place.group.version == 2 else -1
    try:
        started = jail.start(plan, sandbox.inside_control.fileno(), place.errors, [] if into >= 0 else groups, into)
    except OSError:
        place.not_started(sandbox, groups)
        raise
    place.started(sandbox, *started, plan.runsc.platform, groups)


class Runscs:
    """The source of sandboxes of one environment and group; each starts its own interpreter."""

    def __init__(self, boots: Boots, plan: MakePlan, failed: Failed) -> None:
        self._boots = boots
        self._plan = plan
        self._failed = failed

    def order(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox.place, GvisorPlace)
        self._boots.add(sandbox, sandbox.place, self._plan, self._failed)

    @property
    def idle(self) -> bool:
        return False  # there is nothing to close

    @property
    def pids(self) -> Sequence[int]:
        return ()

    def weigh(self) -> int:
        return 0

    def warm(self, then: Callable[[Warmth], None]) -> None:
        then(Warmth())  # there is nothing to warm up

    def close(self) -> None:
        self._boots.close()


_HEADROOM = 192 * MIB
"""Bytes, page cache included, for runsc, gofer and sentry beside the memory and files of programs."""
_TASKS_EACH, _TASKS_MORE = 3, 512
"""Threads of the host for a task of the guest and for Go's runtime. The sentry itself counts tasks first."""


def main(config: dict[str, Any], make_loop: Callable[[], Loop] = Loop) -> None:
    """Becomes the gVisor backend's keeper.

    ``config`` has ``run_dir`` and the values of ``[native]`` and ``[gvisor]``; ``runsc`` is an absolute path.
    """
    launch(config, Start(namespaces.enter, namespaces.settle, GvisorGround), make_loop)


class GvisorGround:
    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self._loop = loop
        self._host = Host(loop, config)
        self._runsc = runsc.describe(config["runsc"], config["platform"])
        jail.install(Path(self._host.run_dir) / "code")
        self.tells_single = bool(config["compiled"]) and root.compiled_part() is not None
        self._shower = Shower(loop)
        # One waits for its gofer and its sentry half of the time.
        self._boots = Boots(self._runsc, 2 * (os.cpu_count() or 1))
        self._household: Household

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._host.facts() | {"runsc": self._runsc.path, "runsc_version": self._runsc.version}

    def begin(self, household: Household) -> None:
        self._household = household
        self._host.begin(household.lives)

    def source(self, key: Key, packages: str, preload: Sequence[str], directories: Sequence[Directory] = ()) -> Source:
        if directories:
            raise OSError(0, "the isolation 'gvisor' cannot show directories of the host")

        def plan(sandbox: Sandbox, place: GvisorPlace) -> jail.Plan:
            return self._jail(sandbox.handle, place, packages, preload)

        return Runscs(self._boots, plan, self._household.failed)

    def place(self, handle: str, shape: Shape) -> GvisorPlace:
        memory_bytes = (shape.memory_mb + shape.disk_mb) * MIB + _HEADROOM
        limits = GroupLimits(memory_bytes, shape.pids * _TASKS_EACH + _TASKS_MORE, shape.cpus)
        share = self._host.take(handle, shape.key, limits)
        cpus = self._host.processors.take(shape.cpus)
        try:
            return GvisorPlace(self._loop, self._host, share, shape, self._shower, self._boots, cpus)
        except OSError:
            self._host.give_back(share)
            raise

    def listen(self, sandbox: Sandbox, wanted: Listen) -> Opened:
        raise OSError(errno.EOPNOTSUPP, "gVisor's network is its own: the host can open no sockets in it")

    def dial(self, sandbox: Sandbox, port: int, *, six: bool) -> socket.socket:
        raise OSError(errno.EOPNOTSUPP, "gVisor's network is its own: the host can open no sockets in it")

    def check(self, sandbox: Sandbox, objects: Objects) -> None:
        assert isinstance(sandbox.place, GvisorPlace)
        sandbox.place.check_memory(sandbox)

    def outside(self, sandbox: Sandbox) -> Mapping[str, Any]:
        """Returns ``platform``, the sentry's ``status`` and ``spaces``, and ``uids`` of all."""
        assert isinstance(sandbox.place, GvisorPlace)
        found = {"platform": sandbox.place.platform, "status": {}, "spaces": {}, "uids": []}
        if (sentry := find_sentry(sandbox.pid)) is None:
            return found
        spaces = f"/proc/{sentry.pid}/ns"
        return found | {
            "status": status(sentry.pid),
            "spaces": {name: os.readlink(f"{spaces}/{name}") for name in os.listdir(spaces)},
            "uids": sorted({int(status(pid)["Uid"].split()[0]) for pid in tree_of(sandbox.pid)}),
        }

    def empty(self) -> bool:
        return self._host.empty()

    def end_strays(self, done: Callable[[], None]) -> None:
        """Leaves them to the end of the keeper, which is the first process of their pid namespace."""
        done()

    def leave(self) -> None:
        self._host.leave()

    def _jail(self, handle: str, place: GvisorPlace, packages: str, preload: Sequence[str]) -> jail.Plan:
        shape, host = place.shape, self._host
        contents = jail.Contents(
            host.python,
            packages,
            preload,
            disk_bytes=shape.disk_mb * MIB,
            memory_bytes=shape.memory_mb * MIB,
            processes=shape.pids - 1,  # gVisor counts those that were begun as this user: not the first
            # Packages are imported ahead by an init that forks: the worker of the static program never does.
            single=shape.single and not preload,
        )
        return jail.Plan(
            name=handle,
            runsc=self._runsc,
            contents=contents,
            mount_on=f"{host.run_dir}/root",
            code=f"{host.run_dir}/code",
            uid=place.uid,
            own_uid=host.ids.count > 1,
            cpus=place.cpus,
            shown=place.shown,
        )
