"""The mounts that a sandbox must have and has, seen from outside (proc_pid_mountinfo(5))."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from skillyard.sandbox.native.inside import walls

_OWN_BOX, _OWN_PROC = "own box", "own proc"


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


def read(pid: int) -> str:
    """Reads the table of a process. Raises OSError."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return file.read()


def lacking(text: str, zygote: str, build: walls.Build, files: Sequence[str], directories: Sequence[str]) -> str:
    """Returns how a sandbox's mounts differ from those that it must have; empty if they do not. ``zygote`` is the table
    of its zygote, taken before packages' code ran in there; the last two are the masked parts of /proc."""
    shared = _parse(zygote, frozenset())
    wanted = Counter(shared + _own(shared, files, directories))
    known = frozenset(mount.device for mount in shared)
    found = Counter(_parse(text, known))
    if found == wanted:
        return _box_lacks(text, known, build)
    points = sorted({mount.point for mount in (*(found - wanted), *(wanted - found))})
    return f"it has other mounts than it was given: {', '.join(points)[:200]}"


def _box_lacks(text: str, known: frozenset[str], build: walls.Build) -> str:
    """Returns the fault of its writable mounts: one tmpfs of the ordered size must hold them all."""
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
    return {"tmpfs": _OWN_BOX, "proc": _OWN_PROC}.get(kind, device)


def _over(parent: tuple[str, str] | None, known: frozenset[str]) -> str:
    """Names the mount below: by its device, as the new /proc hangs on an old one."""
    if parent is None:
        return ""
    device, point = parent
    return f"{point} {'own' if known and device not in known else 'shared'}"


def _own(shared: Sequence[Mount], files: Sequence[str], directories: Sequence[str]) -> list[Mount]:
    """Returns the mounts that :func:`skillyard.sandbox.native.inside.walls.build` adds."""
    at = {mount.point: mount for mount in shared}
    top, null = at["/"], at["/dev/null"]
    quiet = "rw,nosuid,nodev,relatime"
    own = [
        Mount(_OWN_BOX, f"/{name}", point, quiet, "", "tmpfs", "box", "/ shared")
        for name, point in walls.WRITABLE.items()
    ]
    proc = Mount(_OWN_PROC, "/", "/proc", "rw,nosuid,nodev,noexec,relatime", "", "proc", "proc", "/proc shared")
    sys = proc._replace(root="/sys", point="/proc/sys", options=proc.options.replace("rw", "ro", 1), over="/proc own")
    masks = [null._replace(point=f"/proc/{name}", over="/proc own") for name in files]
    masks += [top._replace(root=walls.EMPTY, point=f"/proc/{name}", over="/proc own") for name in directories]
    return [*own, proc, sys, *masks]
