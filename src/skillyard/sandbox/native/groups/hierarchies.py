"""The hierarchies of control groups of this host, and the places for our groups.

A group of version 2 with processes in it hands no controllers down ("no internal processes"), and a service's processes
begin in the very group that is delegated to it (systemd's Delegate=yes, a container's root with its own hierarchy). So
the server and its keeper move into a leaf of it.

Engines mount control groups read-only for a container's root, which may still make groups below the container's own.
In a cgroup namespace the kernel mounts a hierarchy from that group on (cgroup_namespaces(7)).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from skillyard.sandbox.native.groups import groups
from skillyard.sandbox.native.groups.groups import Cgroups
from skillyard.sandbox.native.linux import kernel

NEEDED = ("memory", "pids", "cpu")


def find(name: str) -> Cgroups:
    """Returns the hierarchies in which we may make the group ``name`` for our sandboxes."""
    mounts, unified = mounted()
    own = own_paths()
    if unified and "memory" in groups.words(f"{unified}/cgroup.controllers"):
        return _find_v2(unified, own.get("", "/"), name)
    found = Cgroups(version=1)
    for controller in NEEDED:
        if controller not in mounts:
            found.missing[controller] = "the host mounts no such controller"
            continue
        try:
            found.parents[controller] = found.claim(_parent(mounts[controller], own.get(controller, "/"), name))
        except OSError as error:
            found.missing[controller] = f"cannot make a group: {error.strerror}"
    return found


def _parent(mount: str, own: str, name: str) -> str:
    base = f"{mount}{own}".rstrip("/")
    return f"{base if os.path.isdir(base) else mount}/{name}"


def _find_v2(mount: str, own: str, name: str) -> Cgroups:
    """Takes the nearest group above ours that we may write and that hands controllers down.

    It is most often an ancestor: the root group for root, the user's delegated slice for an ordinary user.
    """
    at = own
    why = "no group above ours may be written"
    while True:
        base = f"{mount}{at}".rstrip("/") or mount
        if os.access(base, os.W_OK):
            try:
                return _claim_v2(base, name)
            except OSError as error:
                why = f"{base}: {_explained(error)}"
        if at in ("/", ""):
            return Cgroups(version=2, missing=dict.fromkeys(NEEDED, why))
        at = os.path.dirname(at)


def _explained(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "it has processes of its own, and so hands no controllers down"
    return error.strerror or str(error)


def _claim_v2(base: str, name: str) -> Cgroups:
    """Makes our group with the controllers of ``base``, which must have memory."""
    had = [each for each in NEEDED if each in groups.words(f"{base}/cgroup.controllers")]
    if "memory" not in had:
        raise OSError(0, "the memory controller is not handed down to it")
    _hand_down(base, had)
    found = Cgroups(version=2)
    found.parents = dict.fromkeys(had, found.claim(f"{base}/{name}"))
    found.missing = {each: f"it is not handed down to {base}" for each in NEEDED if each not in had}
    try:
        _hand_down(found.parents["memory"], had)
    except OSError:
        found.close()
        raise
    return found


def _hand_down(path: str, controllers: Sequence[str]) -> None:
    wanted = set(controllers) - set(groups.words(f"{path}/cgroup.subtree_control"))
    if wanted:
        groups.write(f"{path}/cgroup.subtree_control", " ".join(f"+{controller}" for controller in sorted(wanted)))


def mounted() -> tuple[dict[str, str], str | None]:
    """Returns the mount points of version 1 by controller, and that of version 2."""
    controllers: dict[str, str] = {}
    unified: str | None = None
    for target, kind, options in _own_mounts():
        if kind == "cgroup2":
            unified = unified or target
        else:
            controllers.update({name: target for name in options.split(",") if name in NEEDED})
    return controllers, unified


def own_paths() -> Mapping[str, str]:
    """Returns our own group by controller, ``""`` for version 2."""
    own: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    return own


_LEAF = "skillyard-server"
_MARKS = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd says that a group is ours to divide."""


def make_room() -> None:
    """Moves this process, which starts a keeper, and its parent, the server, into a leaf group.

    It does nothing without need, and for a group that others are in or that is not ours.
    """
    _, unified = mounted()
    if unified is None or "memory" not in groups.words(f"{unified}/cgroup.controllers"):
        return
    own = own_paths().get("", "/")
    base = f"{unified}{own}".rstrip("/")
    members = groups.words(f"{base}/cgroup.procs")
    if os.path.exists(f"{base}/cgroup.type") and _is_ours(base, own) and _are_us(members):
        with suppress(OSError):
            os.makedirs(f"{base}/{_LEAF}", 0o755, exist_ok=True)
            for pid in members:
                groups.write(f"{base}/{_LEAF}/cgroup.procs", pid)


def _is_ours(base: str, own: str) -> bool:
    names = ("cgroup.procs", "cgroup.subtree_control")
    if not all(os.access(f"{base}/{name}", os.W_OK) for name in names):
        return False
    if os.geteuid() != 0:
        return os.stat(base).st_uid == os.geteuid()
    return own == "/" or any(_mark(base, name) == b"1" for name in _MARKS)


def _are_us(members: Iterable[str]) -> bool:
    return {int(pid) for pid in members} <= {os.getpid(), os.getppid()}


def _mark(base: str, name: str) -> bytes:
    with suppress(OSError):
        return os.getxattr(base, name)
    return b""


_CONTROLLERS = frozenset(NEEDED)
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def mount_own() -> None:
    """Mounts each read-only hierarchy once more, over itself, where we may write it. Changes our mount namespace."""
    closed = [found for found in _own_mounts() if os.statvfs(found[0]).f_flag & os.ST_RDONLY]
    if not closed or os.geteuid() != 0:
        return
    try:
        kernel.unshare(kernel.CLONE_NEWCGROUP)
    except OSError:
        return  # then limits are supervised, as the probe will find
    for target, kind, controllers in closed:
        _cover(target, kind, controllers)


def _cover(target: str, kind: str, controllers: str) -> None:
    """Mounts a hierarchy over itself, with a tmpfs between, as the kernel demands."""
    try:
        kernel.mount("between", target, "tmpfs", _QUIET, "size=4k")
    except OSError:
        return
    try:
        kernel.mount("cgroup", target, kind, _QUIET, controllers)
        if os.access(target, os.W_OK):
            return
        kernel.umount(target)
    except OSError:
        pass
    kernel.umount(target)


def _own_mounts() -> Iterator[tuple[str, str, str]]:
    """Yields mount point, file system and controllers (version 1) of the hierarchies for limits."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = [*right.split(), "", "", ""][:3]
            controllers = [name for name in options.split(",") if name not in ("ro", "rw", "none", "xattr")]
            if kind == "cgroup2":
                yield left.split()[4], kind, ""
            elif kind == "cgroup" and not _CONTROLLERS.isdisjoint(controllers):
                yield left.split()[4], kind, ",".join(controllers)
