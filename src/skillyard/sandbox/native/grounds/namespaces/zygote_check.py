"""The look from outside at the walls of a sandbox whose zygote has run packages' code.

Such code may have spoiled the walls, or left a process that can reach in. The kernel tells nobody the Landlock domain
of another process, nor more about its filters than their number.
"""

from __future__ import annotations

import functools
import os
import resource
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from skillyard.sandbox.native.grounds.namespaces.pid_space import SPACES
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.processes import children, status
from skillyard.sandbox.native.keeper.zygotes.process import ZygoteProcess

_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_FILTERED = "2"
"""SECCOMP_MODE_FILTER."""
_FILTERS = 2
"""The zygote's filter and the closing one."""
_LOOKS = 3


def lacking(sandbox: Sandbox, build: walls.Build, zygote: ZygoteProcess, uid: int) -> str:
    """Returns which wall is missing, or nothing. ``uid`` must be the user of all processes."""
    for _ in range(_LOOKS):
        try:
            if zygote.has_strangers(sandbox.pid):
                return "its zygote runs other processes"
            return _lacking(sandbox, build, zygote, uid)
        except OSError:
            continue
    return "its processes change while they are looked at"


def _lacking(sandbox: Sandbox, build: walls.Build, zygote: ZygoteProcess, uid: int) -> str:
    """Returns what is missing; its processes must be its init and the waiting worker alone. Raises OSError."""
    init, workers = sandbox.pid, children(sandbox.pid)
    if len(workers) != 1 or children(workers[0]):
        return "it has not the processes that it was made with"
    mounts = read_mounts(init)
    for pid in (init, *workers):
        if missing := _process(pid, uid, build):
            return missing
        if read_mounts(pid) != mounts:
            return "its processes see other mounts"
    if _ids(init) != [str(walls.INSIDE_ID), str(uid), "1"] * 2:
        return "it maps other ids"
    if wrong := [name for name in SPACES if _space(init, name) in (_space(zygote.pid, name), "")]:
        return f"it shares namespaces: {', '.join(wrong)}"
    if wrong := [name for name in SPACES if _space(init, name) != _space(workers[0], name)]:
        return f"its processes are in different namespaces: {', '.join(wrong)}"
    if not _grouped(sandbox.group, {init, *workers}):
        return "its processes are not those of its control group"
    return _mounts_lacking(mounts, zygote.mounts, build)


def _process(pid: int, uid: int, build: walls.Build) -> str:
    if missing := process_lacks(pid, _SETS):
        return missing
    found = status(pid)
    if found.get("Uid", "").split() != [str(uid)] * 4:
        return "it has another user id"
    if build.own_uid and (found.get("Gid", "").split() != [str(uid)] * 4 or found.get("Groups", "")):
        return "it has another group id"
    if int(found.get("Seccomp_filters", "0")) != _own_filters() + _FILTERS:
        return "it has other filters"
    for kind, value in walls.limits(build):
        if resource.prlimit(pid, kind) != (value, value):
            return "it has other limits"
    return ""


def process_lacks(pid: int, empty: tuple[str, ...]) -> str:
    """Returns which wall of every isolation is missing; ``empty`` sets hold no capability."""
    found = status(pid)
    if found.get("NoNewPrivs") != "1":
        return "no_new_privs is missing"
    if found.get("Seccomp") != _FILTERED:
        return "the filter of system calls is missing"
    if found.get("Threads") != "1":
        return "it has threads"
    held = [name for name in empty if int(found.get(name, "1"), 16)]
    return f"it holds capabilities: {', '.join(held)}" if held else ""


@functools.cache
def _own_filters() -> int:
    """Returns the number of our starter's filters, which all our processes have too."""
    return int(status(os.getpid()).get("Seccomp_filters", "0"))


def _ids(pid: int) -> list[str]:
    words: list[str] = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", encoding="ascii") as file:
            words += file.read().split()
    return words


def _grouped(group: Group | None, pids: set[int]) -> bool:
    return group is None or all(members == pids for members in group.members())


def _space(pid: int, name: str) -> str:
    """Returns a namespace of a process. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/{name}")


_OWN_BOX, _OWN_PROC, _OWN_TERMINALS = "own box", "own proc", "own terminals"


class Mount(NamedTuple):
    """One line of the table, without the fields that differ between namespaces. ``over`` is the mount below it."""

    device: str
    root: str
    point: str
    options: str
    propagation: str
    kind: str
    source: str
    over: str


def read_mounts(pid: int) -> str:
    """Reads the table of a process. Raises OSError."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return file.read()


def _mounts_lacking(text: str, zygote: str, build: walls.Build) -> str:
    """Returns how a sandbox's mounts differ from those that it must have; empty if they do not.

    ``zygote`` is the table of its zygote from before packages' code ran in there.
    """
    shared = _parse(zygote, frozenset())
    wanted = Counter(shared + _own(shared, build))
    known = frozenset(mount.device for mount in shared)
    found = Counter(_parse(text, known))
    if found == wanted:
        return _box_lacks(text, known, build)
    points = sorted({mount.point for mount in (*(found - wanted), *(wanted - found))})
    return f"it has other mounts than it was given: {', '.join(points)[:200]}"


def _box_lacks(text: str, known: frozenset[str], build: walls.Build) -> str:
    """Returns a fault unless one tmpfs of the ordered size holds all writable mounts."""
    lines = [line.split(" ") for line in text.split("\n") if line]
    own = {(words[2], words[-1]) for words in lines if words[2] not in known and words[-3] == "tmpfs"}
    size = f"size={build.disk_bytes >> 10}k,nr_inodes={build.inodes},"
    return "" if len(own) == 1 and size in next(iter(own))[1] else "its disk is not limited"


def _parse(text: str, known: frozenset[str]) -> list[Mount]:
    """Parses the table. With ``known`` devices, others are told by their kind: each sandbox has its own tmpfs and
    /proc."""
    lines = [line.split(" ") for line in text.split("\n") if line]
    points = {words[0]: (words[2], words[4]) for words in lines}
    mounts = []
    for words in lines:
        _, parent, device, base, point, options, *rest = words
        end = rest.index("-")
        kind, source = rest[end + 1 : end + 3]
        mounts.append(
            Mount(
                _named(device, kind, known),
                base,
                point,
                options,
                " ".join(rest[:end]),
                kind,
                source,
                _over(points.get(parent), known),
            )
        )
    return mounts


def _named(device: str, kind: str, known: frozenset[str]) -> str:
    if not known or device in known:
        return device
    return {"tmpfs": _OWN_BOX, "proc": _OWN_PROC, "devpts": _OWN_TERMINALS}.get(kind, device)


def _over(parent: tuple[str, str] | None, known: frozenset[str]) -> str:
    """Names the mount below: by its device, as the new /proc hangs on an old one."""
    if parent is None:
        return ""
    device, point = parent
    return f"{point} {'own' if known and device not in known else 'shared'}"


def _own(shared: Sequence[Mount], build: walls.Build) -> list[Mount]:
    """Returns the mounts that :func:`skillyard.sandbox.native.inside.walls.build` adds."""
    at = {mount.point: mount for mount in shared}
    top, null = at["/"], at["/dev/null"]
    quiet = "nosuid,nodev,relatime"
    box = Mount(_OWN_BOX, "/", walls.TMP, f"rw,{quiet}", "", "tmpfs", "box", "/ shared")
    own = [box] + [
        box._replace(
            root=f"/{name}",
            point=point,
            options=f"{_access(name, build)},{quiet}",
            over=f"{walls.TMP} own" if point == walls.TMP else box.over,
        )
        for name, point in walls.WRITABLE.items()
    ]
    proc = Mount(_OWN_PROC, "/", "/proc", "rw,nosuid,nodev,noexec,relatime", "", "proc", "proc", "/proc shared")
    sys = proc._replace(root="/sys", point="/proc/sys", options=proc.options.replace("rw", "ro", 1), over="/proc own")
    masks = [null._replace(point=f"/proc/{name}", over="/proc own") for name in build.proc_files]
    empty = top._replace(root=walls.EMPTY, over="/proc own")
    masks += [empty._replace(point=f"/proc/{name}") for name in build.proc_directories]
    if build.terminals:
        own.append(
            Mount(
                _OWN_TERMINALS, "/", walls.TERMINALS, "rw,nosuid,noexec,relatime", "", "devpts", "terminals", "/ shared"
            )
        )
    return [*own, proc, sys, *masks]


def _access(name: str, build: walls.Build) -> str:
    return "ro" if name in build.closed else "rw"
