"""Control groups for a container's root: engines mount them read-only, and the groups below the container's own are
still its to make. In a cgroup namespace the kernel mounts a hierarchy from there on (cgroup_namespaces(7))."""

from __future__ import annotations

import os
from collections.abc import Iterator

from skillyard.sandbox.native.linux import kernel

_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def mount() -> None:
    """Over each read-only hierarchy, the same once more, where we may write it. For a mount namespace of one's own."""
    closed = [found for found in _mounted() if os.statvfs(found[0]).f_flag & os.ST_RDONLY]
    if not closed or os.geteuid() != 0:
        return
    try:
        kernel.unshare(kernel.CLONE_NEWCGROUP)
    except OSError:
        return  # then limits are supervised, as the probe will find
    for target, kind, controllers in closed:
        _cover(target, kind, controllers)


def _cover(target: str, kind: str, controllers: str) -> None:
    """The kernel refuses to mount a file system on itself: something else goes between."""
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


def _mounted() -> Iterator[tuple[str, str, str]]:
    """Where, the file system's name, and its controllers (version 1): of those hierarchies that limits need."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = [*right.split(), "", "", ""][:3]
            controllers = [name for name in options.split(",") if name not in ("ro", "rw", "none", "xattr")]
            if kind == "cgroup2":
                yield left.split()[4], kind, ""
            elif kind == "cgroup" and not _CONTROLLERS.isdisjoint(controllers):
                yield left.split()[4], kind, ",".join(controllers)
