"""One command: the files that it needs, its output told apart, the files that it leaves.

The command's stdout and stderr go into one log, in the order in which they came. ``\\0`` and a digit mark where the
other stream begins: 1 for stdout, 2 for stderr; ``\\0`` and 0 stand for a NUL of the output. The log begins in stdout,
and has a mark at least every 64 KiB. A program of the sandbox can write anything there, as everywhere.

When the command has ended, every process that it left is ended, and only then its files are looked at. A service that
fails may be started again before that.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from fnmatch import translate

from .errors import SandboxError, UnsupportedLanguage
from .files.walk import open_directory
from .output_files import MAX_DEPTH, MAX_ENTRIES, Left, is_plain
from .programs.follower import Follower, write_all
from .programs.service import Service
from .programs.tools import make_package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .blobs import Blobs

VIEW = "skill"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def run(
    request: Mapping[str, Any], workspace: str, blobs: Blobs, tell: Callable[[dict[str, object]], None]
) -> dict[str, object]:
    """Returns how the command ended: ``exit_code``, and ``signal`` when one ended it.

    ``not_ready`` stands beside them for a service that was ended since it was not ready in time. ``tell`` hears how a
    service goes. Raises OSError, SandboxError, UnsupportedLanguage.
    """
    command = request["command"]
    argv, root = _argv(command), request["skills"][command["skill"]]["root"]
    if command.get("view", True):
        _fill(workspace, root, command, blobs)
    else:
        above, *below = command["workdir"].split("/")
        try:
            os.chdir("/".join([root, *below]) if above == VIEW else workspace)
        except OSError:
            raise SandboxError(f"workdir: the skill has no directory {'/'.join(below)!r}") from None
    env = {**os.environ, "PATH": _path(), "PWD": _here(workspace, command), **command["env"]}
    if request.get("tools"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (make_package(request["tools"]), env.get("PYTHONPATH"))))
    program = argv, env
    if "service" not in command:
        return Follower().follow(*program)
    return Service(command["service"], tell).run(Follower(), *program)


def _fill(workspace: str, root: str, command: Mapping[str, Any], blobs: Blobs) -> None:
    """Makes the view of the skill, brings the inputs, and enters the working directory."""
    top = open_directory(workspace)
    try:
        _make_view(root, top, command.get("place", VIEW))
        for blob_id, path in command["inputs"]:
            _bring(top, blobs.path(blob_id), path)
        os.fchdir(_directory(top, command["workdir"].split("/") if command["workdir"] else []))
    finally:
        os.close(top)


def send_outputs(workspace: str, request: Mapping[str, Any], blobs: Blobs) -> dict[str, object]:
    """Sends the files that the request names; returns notes on the others.

    Each goes under the number of its output, a slash and its path.
    """
    limits = request["files"]
    left = Left(blobs, limits["count"], limits["each_bytes"], limits["bytes"])
    for number, path in enumerate(request["command"]["outputs"]):
        _Search(left, number).send(workspace, path.split("/"))
    notes: dict[str, object] = {"skipped": left.skipped, "more": left.more}
    return {name: value for name, value in notes.items() if value}


def _argv(command: Mapping[str, Any]) -> list[str]:
    """Raises UnsupportedLanguage."""
    language, text = command["language"], command["text"]
    if language in ("javascript", "typescript"):
        return [*_node(language), f"--eval={text}"]
    return [sys.executable if language == "python" else "bash", "-c", text]


def _node(language: str) -> list[str]:
    """Returns the start of a command line of node. Raises UnsupportedLanguage."""
    places = [f"{directory}/node" for directory in _path().split(":") if directory]
    node = next((place for place in places if os.access(place, os.X_OK)), None)
    if node is None:
        raise UnsupportedLanguage(f"language: {language} needs node, and this sandbox has none; use bash or python")
    if language == "javascript":
        return [node]
    import subprocess

    # It reads types by taking them out, from node 22.6 on; others do not know the option.
    argv = [node, "--experimental-strip-types", "--disable-warning=ExperimentalWarning"]
    tried = subprocess.run([*argv, "--eval=let n: number = 0"], capture_output=True, stdin=subprocess.DEVNULL)
    if tried.returncode:
        rule = "needs a node that takes types out (22.6 or newer), and this sandbox has an older one"
        raise UnsupportedLanguage(f"language: {language} {rule}; use javascript")
    return argv


def _here(workspace: str, command: Mapping[str, Any]) -> str:
    """Returns the working directory as callers know it, through the link to the view."""
    view, workdir = command.get("place", VIEW), command["workdir"]
    if view == VIEW or not f"{workdir}/".startswith(f"{view}/"):
        return os.getcwd()
    return f"{workspace}/{VIEW}{workdir[len(view) :]}"


def _path() -> str:
    own = os.path.dirname(sys.executable)
    others = os.environ.get("PATH") or os.defpath
    return others if others.split(":")[0] == own else f"{own}:{others}"


def _make_view(source: str, top: int, view: str) -> None:
    """Makes a writable copy of a skill, whole or not at all. One that is there already stays."""
    if not _is_directory(top, view):
        part = f".part-{os.urandom(8).hex()}"
        _copy_tree(source, top, part)
        os.rename(part, view, src_dir_fd=top, dst_dir_fd=top)
    if view != VIEW:
        _is_directory(top, VIEW, usable=False)
        os.symlink(view, VIEW, dir_fd=top)


def _is_directory(parent: int, name: str, *, usable: bool = True) -> bool:
    """Returns whether a directory that can be used is there. Any other thing goes, a directory out of the way."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
    elif usable:
        os.chmod(name, stat.S_IMODE(mode) | 0o700, dir_fd=parent)
        return True
    else:
        os.rename(name, f".{name}-{os.urandom(4).hex()}", src_dir_fd=parent, dst_dir_fd=parent)
    return False


def _copy_tree(source: str, parent: int, name: str) -> None:
    os.mkdir(name, 0o755, dir_fd=parent)
    to, of = open_directory(name, parent), os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _copy_below(of, to)
    finally:
        os.close(to)
        os.close(of)


def _copy_below(of: int, to: int) -> None:
    for entry in os.listdir(of):
        mode = os.stat(entry, dir_fd=of, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(entry, 0o755, dir_fd=to)
            below, made = open_directory(entry, of), open_directory(entry, to)
            try:
                _copy_below(below, made)
            finally:
                os.close(below)
                os.close(made)
        elif stat.S_ISREG(mode):
            _copy(os.open(entry, _FILE, dir_fd=of), to, entry, 0o755 if mode & 0o111 else 0o644)


def _copy(source: int, parent: int, name: str, mode: int) -> None:
    try:
        made = os.open(name, _NEW, mode, dir_fd=parent)
        try:
            while data := os.read(source, 1 << 17):
                write_all(made, data)
        finally:
            os.close(made)
    finally:
        os.close(source)


def _bring(top: int, source: str, path: str) -> None:
    *above, name = path.split("/")
    parent = _directory(top, above)
    try:
        _copy(os.open(source, os.O_RDONLY | os.O_CLOEXEC), parent, name, 0o644)
    except FileExistsError:
        raise SandboxError(f"the input cannot be written to {path!r}: something is there already") from None
    finally:
        os.close(parent)


def _directory(top: int, parts: list[str]) -> int:
    """Opens a directory below ``top``, and makes it when it is missing. Raises OSError."""
    fd = os.dup(top)
    for part in parts:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
            below = open_directory(part, fd)
        finally:
            os.close(fd)
        fd = below
    return fd


class _Search:
    """Finds the files of one output and sends them. No link is followed."""

    def __init__(self, left: Left, number: int) -> None:
        self._left = left
        self._number = number
        self._entries = MAX_ENTRIES
        self._sent: set[str] = set()

    def send(self, workspace: str, parts: list[str]) -> None:
        top = open_directory(workspace)
        try:
            self._below(top, parts, [], exact=not any(map(_is_pattern, parts)))
        finally:
            os.close(top)

    def _below(self, fd: int, parts: list[str], path: list[str], *, exact: bool) -> None:
        here, rest = parts[0], parts[1:]
        if here == "**":
            self._below(fd, rest or ["*"], path, exact=False)
        for name in [here] if exact else self._names(fd, here):
            try:
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                self._entry(fd, name, mode, parts if here == "**" else rest, [*path, name], exact=exact)
            except FileNotFoundError:
                self._skip([*path, *parts], "missing", exact=exact)
            except OSError:
                self._skip([*path, name], "unread", exact=True)

    def _entry(self, fd: int, name: str, mode: int, rest: list[str], path: list[str], *, exact: bool) -> None:
        if not is_plain(name):
            self._skip(path, "name", exact=True)
        elif rest and stat.S_ISDIR(mode) and len(path) <= MAX_DEPTH:
            below = open_directory(name, fd)
            try:
                self._below(below, rest, path, exact=exact)
            finally:
                os.close(below)
        elif rest:
            self._skip([*path, *rest], "missing" if stat.S_ISREG(mode) else "kind", exact=exact)
        elif stat.S_ISREG(mode):
            told = self._told(path)
            if told not in self._sent:
                self._sent.add(told)
                self._left.file(os.open(name, _FILE, dir_fd=fd), told)
        elif not stat.S_ISDIR(mode) or exact:
            self._skip(path, "kind", exact=True)

    def _names(self, fd: int, pattern: str) -> list[str]:
        fits = re.compile(translate("*" if pattern == "**" else pattern)).match
        names = sorted(filter(fits, os.listdir(fd)))
        if len(names) > self._entries:
            self._skip(["…"], "entries", exact=True)
        names = names[: self._entries]
        self._entries -= len(names)
        return names

    def _skip(self, path: list[str], why: str, *, exact: bool) -> None:
        """Tells of a file that is not sent. A pattern promises nothing of names that do not fit."""
        if exact:
            self._left.skip(self._told(path), why)

    def _told(self, path: list[str]) -> str:
        return f"{self._number}/{'/'.join(path)}"


def _is_pattern(part: str) -> bool:
    return any(mark in part for mark in "*?[")
