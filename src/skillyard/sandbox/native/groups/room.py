"""Room for groups in one that was delegated to us (systemd's Delegate=yes, a container's root with its own hierarchy).

A group of version 2 with processes in it hands no controllers down (cgroups(7), "no internal processes"), and a
service's processes begin in the very group that it is given: so the server and its keeper move into a leaf of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from skillyard.sandbox.native.groups import files, hierarchies

LEAF = "skillyard-server"
_MARKS = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd says that a group is ours to divide."""


def make() -> None:
    """For the process that starts a keeper, beside its parent, the server. Does nothing where there is no need, where
    others are in that group too, or where it is not ours."""
    _, unified = hierarchies.mounted()
    if unified is None or "memory" not in files.words(f"{unified}/cgroup.controllers"):
        return
    own = hierarchies.own_paths().get("", "/")
    base = f"{unified}{own}".rstrip("/")
    members = files.words(f"{base}/cgroup.procs")
    if os.path.exists(f"{base}/cgroup.type") and _is_ours(base, own) and _are_us(members):
        with suppress(OSError):
            os.makedirs(f"{base}/{LEAF}", 0o755, exist_ok=True)
            for pid in members:
                files.write(f"{base}/{LEAF}/cgroup.procs", pid)


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
