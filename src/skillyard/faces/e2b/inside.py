"""Looks at files inside of a sandbox, and changes names there.

Our guest runs this file's text, and calls ``main``, which answers ``{"ok": …}``, or ``{"error": …}`` with a code of
Connect. ``watch`` prints a line of JSON for each event until it is ended; it looks again and again, since no sandbox
may use inotify(7). Standard library only; it imports nothing of ours, and readers of its output trust nothing of it.
Links are followed as any program of the sandbox would follow them.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Seen = dict[str, tuple[int, int, int, int, int]]

MOST_ENTRIES = 10_000
MOST_WATCHED = 20_000
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 1.0
SHARE = 20
"""A watch pauses for at least this many times as long as its look took."""
_FILE, _DIRECTORY, _UNKNOWN = "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_UNSPECIFIED"
_CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "invalid_argument",
    errno.EEXIST: "already_exists",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOSPC: "resource_exhausted",
    errno.EDQUOT: "resource_exhausted",
}
_KINDS = {
    stat.S_IFDIR: "d", stat.S_IFLNK: "L", stat.S_IFIFO: "p", stat.S_IFSOCK: "S", stat.S_IFBLK: "D", stat.S_IFCHR: "Dc",
}  # fmt: skip
"""The letters of Go for kinds of files."""
_CREATE, _WRITE, _REMOVE = "EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE", "EVENT_TYPE_REMOVE"
_RENAME, _CHMOD = "EVENT_TYPE_RENAME", "EVENT_TYPE_CHMOD"


class Refused(Exception):
    """It cannot be done; ``code`` is one of Connect."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def entry(path: str) -> dict[str, Any]:
    """Returns a name as E2B tells it: of a link the kind and the mode of its target. Raises OSError."""
    about = seen = os.lstat(path)
    link = stat.S_ISLNK(about.st_mode)
    told: dict[str, Any] = {}
    if link:
        told = {"symlinkTarget": os.path.realpath(path), "isSymlink": True}
        try:
            seen = os.stat(path)
        except OSError:
            pass
    kind = _DIRECTORY if stat.S_ISDIR(seen.st_mode) else _FILE if stat.S_ISREG(seen.st_mode) else _UNKNOWN
    return {
        "name": os.path.basename(path),
        "type": kind,
        "path": path,
        "size": str(seen.st_size),
        "mode": stat.S_IMODE(seen.st_mode),
        "permissions": _permissions(about.st_mode),
        "owner": _owner(about.st_uid),
        "group": _group(about.st_gid),
        "modifiedTime": _time(about.st_mtime),
        **told,
    }


def _permissions(mode: int) -> str:
    letters = "".join(c if mode >> (8 - at) & 1 else "-" for at, c in enumerate("rwxrwxrwx"))
    return _KINDS.get(stat.S_IFMT(mode), "-") + letters


def _owner(uid: int) -> str:
    import pwd

    try:
        return "user" if uid == os.getuid() else pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)


def _group(gid: int) -> str:
    import grp

    try:
        return "user" if gid == os.getgid() else grp.getgrgid(gid).gr_name
    except (KeyError, OSError):
        return str(gid)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e9):09d}Z"


def look(path: str) -> dict[str, Any]:
    return {"entry": entry(path)}


def real(path: str) -> dict[str, Any]:
    return {"path": os.path.realpath(path)}


def entries(path: str, depth: int) -> dict[str, Any]:
    if not os.path.isdir(path):
        os.lstat(path)
        raise Refused("invalid_argument", f"path is not a directory: {path}")
    found: list[dict[str, Any]] = []
    for name in _below(os.path.realpath(path).rstrip("/"), depth):
        if len(found) == MOST_ENTRIES:
            raise Refused("resource_exhausted", f"there are more than {MOST_ENTRIES} entries")
        try:
            found.append(entry(path.rstrip("/") + name))
        except OSError:
            continue  # removed meanwhile
    return {"entries": found}


def _below(top: str, depth: int, prefix: str = "") -> Iterator[str]:
    for name in sorted(os.listdir(top + prefix or "/")):
        path = f"{prefix}/{name}"
        yield path
        if depth > 1 and os.path.isdir(top + path) and not os.path.islink(top + path):
            try:
                yield from _below(top, depth - 1, path)
            except OSError:
                continue


def make(path: str) -> dict[str, Any]:
    if os.path.isdir(path):
        raise Refused("already_exists", f"directory already exists: {path}")
    if os.path.lexists(path):
        raise Refused("invalid_argument", f"path already exists but it is not a directory: {path}")
    os.makedirs(path, 0o755)
    return {"entry": entry(path)}


def move(path: str, to: str) -> dict[str, Any]:
    os.lstat(path)
    os.makedirs(os.path.dirname(to), 0o755, exist_ok=True)
    if os.path.isdir(to) and not os.path.islink(to) and not os.path.isdir(path):
        raise Refused("invalid_argument", f"the destination is a directory: {to}")
    try:
        os.rename(path, to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        import shutil

        shutil.move(path, to)
    return {"entry": entry(to)}


def remove(path: str) -> dict[str, Any]:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    return {}


def usage(path: str) -> dict[str, Any]:
    """Returns what all processes and files of the sandbox take, by two looks a moment apart."""
    before, began = _spent(), time.monotonic()
    time.sleep(0.1)
    after, took = _spent(), time.monotonic() - began
    disk = os.statvfs(path)
    pages = [_pages(pid) for pid in _processes()]
    return {
        "cpu": max(0.0, (after - before) / os.sysconf("SC_CLK_TCK") / took),
        "memory": sum(pages) * os.sysconf("SC_PAGE_SIZE"),
        "disk_total": disk.f_blocks * disk.f_frsize,
        "disk_used": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
    }


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _spent() -> int:
    total = 0
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return total


def _pages(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared = file.read().split()[:3]
        return int(resident) - int(shared)
    except OSError:
        return 0


def watch(path: str, recursive: bool, with_entry: bool) -> dict[str, Any]:
    if not os.path.isdir(path):
        os.lstat(path)
        raise Refused("invalid_argument", f"path is not a directory: {path}")
    seen, _ = _looked(path, recursive)
    say({"ok": {}})
    took = 0.0
    while True:
        time.sleep(min(MOST_PAUSE_S, max(LEAST_PAUSE_S, SHARE * took)))
        now, took = _looked(path, recursive)
        for name, kind in _changes(seen, now):
            told: dict[str, Any] = {}
            if with_entry and kind not in (_REMOVE, _RENAME):
                try:
                    told = {"entry": entry(os.path.join(path, name))}
                except OSError:
                    told = {}
            say({"name": name, "type": kind, **told})
        seen = now


def _looked(top: str, recursive: bool) -> tuple[Seen, float]:
    """Returns what is below a directory, and the seconds that it took to look. Raises OSError, Refused."""
    began = time.monotonic()
    found: Seen = {}
    for name, about in _scanned(top, "", recursive):
        if len(found) == MOST_WATCHED:
            raise Refused("resource_exhausted", f"there are more than {MOST_WATCHED} names to watch")
        found[name] = (about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return found, time.monotonic() - began


def _scanned(top: str, below: str, recursive: bool) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(os.path.join(top, below)) as names:
            here = sorted(names, key=lambda each: each.name)
    except OSError:
        if not below:
            raise
        return  # removed meanwhile
    for each in here:
        name = os.path.join(below, each.name)
        try:
            about = each.stat(follow_symlinks=False)
        except OSError:
            continue
        yield name, about
        if recursive and stat.S_ISDIR(about.st_mode):
            yield from _scanned(top, name, recursive)


def _changes(before: Seen, now: Seen) -> Iterator[tuple[str, str]]:
    moved = {now[name][0] for name in now.keys() - before.keys()}
    known = {told[0] for told in before.values()}
    for name in before.keys() - now.keys():
        yield name, _RENAME if before[name][0] in moved else _REMOVE
    for name, told in now.items():
        old = before.get(name)
        if old is None or old[0] != told[0]:
            yield name, _CREATE
            if stat.S_ISREG(told[1]) and told[2] and told[0] not in known:
                yield name, _WRITE
        elif stat.S_ISREG(told[1]) and old[2:4] != told[2:4]:
            yield name, _WRITE
        elif old[1] != told[1]:
            yield name, _CHMOD


def say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


OPERATIONS: dict[str, Any] = {
    "look": look, "real": real, "entries": entries, "make": make, "move": move, "remove": remove, "usage": usage,
    "watch": watch,
}  # fmt: skip


def main(args: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": OPERATIONS[args.pop("op")](**args)}
    except Refused as refused:
        told = {"error": refused.code, "message": str(refused)}
    except OSError as error:
        code = _CODES.get(error.errno or 0, "internal")
        told = {"error": code, "message": f"{error.strerror}: {error.filename or ''}"}
    return told
