"""Which hierarchies of control groups this host has, and where in them we may make groups (cgroups(7))."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from skillyard.sandbox.native.groups import files
from skillyard.sandbox.native.groups.groups import Cgroups

NEEDED = ("memory", "pids", "cpu")


def find(name: str) -> Cgroups:
    """The hierarchies of this host in which we may make the group ``name`` for our sandboxes' groups."""
    mounts, unified = mounted()
    own = own_paths()
    if unified and "memory" in files.words(f"{unified}/cgroup.controllers"):
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
    """The nearest group above ours that we may write and that hands down what we need.

    A group with processes of its own cannot hand controllers down (the no-internal-process rule), so it is most
    often an ancestor: the root for root, the user's delegated slice for an ordinary user.
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
    """With those controllers that ``base`` has; memory must be one of them."""
    had = [each for each in NEEDED if each in files.words(f"{base}/cgroup.controllers")]
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
    wanted = set(controllers) - set(files.words(f"{path}/cgroup.subtree_control"))
    if wanted:
        files.write(f"{path}/cgroup.subtree_control", " ".join(f"+{controller}" for controller in sorted(wanted)))


def mounted() -> tuple[dict[str, str], str | None]:
    """Version 1 mount points by controller, and the version 2 mount point (proc_pid_mountinfo(5))."""
    controllers: dict[str, str] = {}
    unified: str | None = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = [*right.split(), "", "", ""][:3]
            target = left.split()[4]
            if kind == "cgroup2":
                unified = unified or target
            elif kind == "cgroup":
                controllers.update({name: target for name in options.split(",") if name in NEEDED})
    return controllers, unified


def own_paths() -> Mapping[str, str]:
    """Controller (``""`` for version 2) → our own group."""
    own: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    return own
