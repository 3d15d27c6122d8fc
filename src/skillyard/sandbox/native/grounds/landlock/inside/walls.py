"""The walls of a sandbox without namespaces, built from inside in three steps.

1. The zygote, before it imports anything, gets a filter of system calls, and Landlock over all that any sandbox may
   reach (:func:`confine_zygote`). Where ids can be given, it may still take those of its own block: the filter reads
   the arguments.
2. Init gets the ids of this sandbox, limits, no capability, and a Landlock scope that holds its signals.
3. Each program, before its first foreign instruction (:func:`confine_program`), gets the sandbox's user, a Landlock
   domain in which it can write to its own directory alone, without TCP, a scope of its own, so that it cannot reach its
   init, and the closing filter.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from skillyard.sandbox.native.grounds.landlock.inside.places import SHOWN, WRITABLE
from skillyard.sandbox.native.inside.walls import SMALL_STACK, lessen_stacks
from skillyard.sandbox.native.linux import kernel, landlock

_NICE = 10
"""The keeper must get processors before a fork bomb where nothing else stops that."""

SCOPES = 6
"""The Landlock version that can confine signals."""

OWN_PROC = ("status", "stat", "statm", "maps", "smaps", "smaps_rollup", "cmdline", "comm", "environ", "limits", "io",
            "auxv", "oom_score", "fd", "fdinfo")  # fmt: skip
"""A program may read these of its own below /proc/self. Others tell of mounts, groups, sockets or processes."""


class Rule(NamedTuple):
    """A path below which all may be read and executed, and for a device written."""

    path: str
    device: bool = False

    @property
    def rights(self) -> int:
        return landlock.DEVICES if self.device else landlock.READ


class Build(NamedTuple):
    """The keeper's orders for one sandbox.

    ``uid`` is the user of its programs and ``warden`` that of its init; both are 0 where all are the server's user.
    ``processes`` is RLIMIT_NPROC, which counts by user. For the server's user it is all that this user has, the
    sandbox's limit and some more: an outer bound of the limit that the keeper watches.
    """

    root: str
    uid: int
    warden: int
    disk_bytes: int
    processes: int
    data_bytes: int
    cpus: list[int]

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Build:
        return cls(*json.loads(raw))


class Reach(NamedTuple):
    """The paths that all sandboxes of a zygote may reach, opened: their users may not get there."""

    version: int
    rules: list[tuple[int, int]]
    own_proc: bool


def open_reach(version: int, rules: Sequence[Rule], *, own_proc: bool) -> Reach:
    """Opens the paths of ``rules``. Raises OSError for a missing one."""
    opened = [(os.open(rule.path, os.O_PATH | os.O_CLOEXEC), rule.rights) for rule in rules]
    return Reach(version, opened, own_proc)


def confine_zygote(version: int, rules: Sequence[Rule], homes: str, *, own_proc: bool) -> None:
    """Enters the outer domain of all sandboxes of this zygote and the packages it imports."""
    ruleset = landlock.create(version, tcp=False)
    writable = landlock.writable(version)
    places = [(rule.path, rule.rights) for rule in rules] + [(homes, writable)]
    if own_proc:
        places.append(("/proc", landlock.READ))
    for path, rights in places:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            landlock.allow(ruleset, fd, rights & landlock.handled(version))
        finally:
            os.close(fd)
    landlock.enter(ruleset)


def build(spec: Build, version: int) -> None:
    """Turns this fresh clone into the init of a sandbox. Raises OSError at the step that failed."""
    if spec.cpus:
        os.sched_setaffinity(0, spec.cpus)
    _limit(spec)
    if spec.uid:
        _become_warden(spec)
    kernel.drop_all_held()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    if version >= SCOPES:
        landlock.scope()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    _reaches_nobody()
    os.chdir(f"{spec.root}/workspace")


def _become_warden(spec: Build) -> None:
    """Acts as the sandbox's user, and has other real and saved ids.

    So kill(-1) ends exactly that user's processes, and none of them can signal back (kill(2)).
    """
    os.setresgid(spec.uid, spec.uid, spec.uid)
    os.setresuid(spec.warden, spec.uid, spec.warden)


def _reaches_nobody() -> None:
    """Raises OSError if init, which will signal all processes that it can, reaches the keeper."""
    with suppress(PermissionError):
        os.kill(os.getppid(), 0)
        raise OSError(0, "the walls do not keep its signals in")


def confine_program(spec: Build, reach: Reach) -> None:
    """Confines the process in which foreign code is about to run. Raises OSError."""
    if spec.uid:
        os.setresuid(spec.uid, spec.uid, spec.uid)
    else:
        os.nice(_NICE)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    ruleset = landlock.create(reach.version, tcp=False)
    for fd, rights in reach.rules:
        landlock.allow(ruleset, fd, rights & landlock.handled(reach.version))
    writable = landlock.writable(reach.version)
    for name in WRITABLE:
        _allow(ruleset, f"{spec.root}/{name}", writable)
    for name in SHOWN:
        _allow(ruleset, f"{spec.root}/{name}", landlock.READ)
    if reach.own_proc:
        for name in OWN_PROC:
            with suppress(FileNotFoundError):  # this kernel has no such file
                _allow(ruleset, f"/proc/self/{name}", landlock.READ_FILE | landlock.READ_DIR)
    landlock.enter(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        landlock.allow(ruleset, fd, rights)
    finally:
        os.close(fd)


def _limit(spec: Build) -> None:
    lessen_stacks(SMALL_STACK)
    for kind, value in (
        (resource.RLIMIT_NPROC, spec.processes),
        (resource.RLIMIT_DATA, spec.data_bytes),
        (resource.RLIMIT_FSIZE, spec.disk_bytes),
        (resource.RLIMIT_CORE, 1),  # as skillyard.sandbox.native.inside.walls.core_limit says
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
