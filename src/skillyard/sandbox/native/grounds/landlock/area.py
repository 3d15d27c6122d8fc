"""The directory of the host that holds a keeper's sandboxes, their interpreter and packages.

Everybody may pass through it, since each sandbox has a user of its own, and nobody but us can list it. It holds
``homes`` (a directory a sandbox), ``code`` (our modules that run inside), ``python`` (an interpreter that others could
not reach where it is), and ``environments`` (packages, likewise).

No mount can show packages where the interpreter looks for them. So each environment has the layout of a virtual
environment (``pyvenv.cfg``), and every ``python3`` in there finds its packages and none of the host's.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from skillyard.sandbox.native.grounds.landlock.inside.places import SHOWN, WRITABLE
from skillyard.sandbox.native.grounds.landlock.tree import placing, removal
from skillyard.sandbox.native.grounds.root import Interpreter, find_interpreter, inside_modules

_FOR_ALL = ("/tmp", "/var/tmp", "/run", "/dev/shm")  # noqa: S108 - a fresh private name below it is taken
_NOTE = "area"
"""A file of the run directory that names the area, for the keeper after one that was killed."""

_GROUNDS = "skillyard/sandbox/native/grounds"
_MODULES = ("places", "walls", "zygote")


@dataclass(frozen=True, slots=True)
class Area:
    path: str
    secret: str
    executable: bool
    """Whether what is written there can be executed."""

    @property
    def homes(self) -> str:
        return f"{self.path}/homes"

    @property
    def code(self) -> str:
        return f"{self.path}/code"


def make(run_dir: str, *, own_uids: bool) -> Area:
    """Makes a fresh area and removes that of a killed keeper. Raises OSError with the reason."""
    sweep(run_dir)
    parent = _parent(run_dir) if own_uids else run_dir
    path = f"{parent}/skillyard-{secrets.token_hex(8)}"
    os.mkdir(path, 0o711)
    with open(f"{run_dir}/{_NOTE}", "w", encoding="utf-8") as note:
        note.write(path)
    os.chmod(path, 0o711)
    for name in ("homes", "environments"):
        os.mkdir(f"{path}/{name}")
        os.chmod(f"{path}/{name}", 0o711)
    _write_code(f"{path}/code")
    return Area(path, secrets.token_hex(16), not os.statvfs(path).f_flag & os.ST_NOEXEC)


def discard(run_dir: str, area: Area) -> None:
    """Removes the area, even if the run directory is gone. Nothing runs in it any more."""
    _remove(area.path)
    sweep(run_dir)


def sweep(run_dir: str) -> None:
    """Removes the area of a keeper that has ended."""
    note = f"{run_dir}/{_NOTE}"
    try:
        with open(note, encoding="utf-8") as file:
            path = file.read()
    except FileNotFoundError:
        return
    _remove(path)
    os.unlink(note)


def _remove(path: str) -> None:
    parent, name = os.path.split(path)
    if name.startswith("skillyard-"):
        with suppress(FileNotFoundError):
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if _is_ours(fd, name):
                    for _ in removal(fd, name):
                        pass
            finally:
                os.close(fd)


def _is_ours(parent: int, name: str) -> bool:
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _parent(run_dir: str) -> str:
    """Returns a directory that every user can enter.

    A file system that allows execution is best, then that of the data directory, on which files can be linked.
    """
    ours = os.stat(run_dir).st_dev
    able = [path for path in _FOR_ALL if os.path.isdir(path) and os.access(path, os.W_OK) and for_everybody(path)]
    if not able:
        raise OSError(0, f"no directory for sandboxes: none of {', '.join(_FOR_ALL)} can be written and entered by all")
    return min(able, key=lambda path: (_noexec(path), os.stat(path).st_dev != ours))


def _noexec(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def for_everybody(path: str) -> bool:
    """Returns whether any user may go to ``path`` and read it, or pass through it."""
    at = os.path.realpath(path)
    while at != "/":
        about = os.stat(at)
        if not about.st_mode & (0o001 if stat.S_ISDIR(about.st_mode) else 0o004):
            return False
        at = os.path.dirname(at)
    return True


def make_home(root: str, uid: int) -> None:
    """Makes the directory of a sandbox with the user ``uid``; 0 stands for our own. Raises OSError."""
    os.mkdir(root, 0o710)
    os.mkdir(f"{root}/dev", 0o755)
    os.chmod(f"{root}/dev", 0o755)
    for name in WRITABLE:
        os.mkdir(f"{root}/{name}", 0o700)
        if uid:
            os.chown(f"{root}/{name}", uid, uid)
    for name in SHOWN:
        os.mkdir(f"{root}/{name}", 0o755)
        os.chmod(f"{root}/{name}", 0o755)
    if uid:
        os.chown(root, 0, uid)


def showing(root: str, source: str, target: str, aliases: tuple[str, ...]) -> Iterator[None]:
    """Shows ``source`` in a sandbox in which nothing foreign runs yet. Raises OSError."""
    yield from placing(source, f"{root}{target}")
    for alias in aliases:
        os.symlink(os.path.basename(target), f"{root}{alias}")


def _own_modules() -> Iterator[tuple[str, Path | None]]:
    for name in (_GROUNDS, f"{_GROUNDS}/landlock", f"{_GROUNDS}/landlock/inside"):
        yield f"{name}/__init__.py", None
    for name in _MODULES:
        yield f"{_GROUNDS}/landlock/inside/{name}.py", Path(__file__).parent / "inside" / f"{name}.py"


def _write_code(path: str) -> None:
    for name, source in (*inside_modules(), *_own_modules()):
        target = f"{path}/{name}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        text = b"" if source is None else source.read_bytes()
        with open(target, "wb") as file:
            file.write(text)
        os.chmod(target, 0o644)
    for at, _, _ in os.walk(path):
        os.chmod(at, 0o755)


_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"lib/python{_VERSION}/site-packages"


@dataclass(frozen=True, slots=True)
class Shown:
    """An environment: ``executable`` finds ``packages`` ("" for none) below ``place``."""

    place: str
    executable: str
    packages: str


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter, ``shown`` where sandboxes find it."""

    shown: Interpreter
    variables: Mapping[str, str]
    everybody: bool
    """Whether every user must reach what is shown, or only our own."""

    def path(self, executable: str) -> str:
        places = [os.path.dirname(executable), "/usr/local/bin", "/usr/bin", "/bin"]
        return ":".join(dict.fromkeys(places))

    def show_packages(self, packages: str, area: Area) -> Shown:
        """Makes an environment of packages unless it is there. Raises OSError.

        The caller can read them, and no other process makes the same environment meanwhile.
        """
        place = f"{area.path}/environments/{hashlib.sha256(packages.encode()).hexdigest()}"
        if not os.path.isdir(place):
            fresh = f"{place}.{os.getpid()}"
            self._make(fresh, packages)
            os.rename(fresh, place)
        site = f"{place}/{_SITE}"
        return Shown(place, f"{place}/bin/python3", os.path.realpath(site) if packages else "")

    def _make(self, place: str, packages: str) -> None:
        os.makedirs(f"{place}/bin")
        os.makedirs(os.path.dirname(f"{place}/{_SITE}"))
        with open(f"{place}/pyvenv.cfg", "w", encoding="utf-8") as file:
            file.write(f"home = {os.path.dirname(self.shown.executable)}\ninclude-system-site-packages = false\n")
        for name in ("python3", "python", f"python{_VERSION}"):
            os.symlink(self.shown.executable, f"{place}/bin/{name}")
        if packages and self.everybody and not for_everybody(packages):
            for _ in placing(packages, f"{place}/{_SITE}"):
                pass
        elif packages:
            os.symlink(packages, f"{place}/{_SITE}")
        else:
            os.mkdir(f"{place}/{_SITE}")


def find(area: Area, *, everybody: bool) -> Python:
    """Returns the base interpreter of this process, copied into the area if need be.

    Raises OSError.
    """
    python = find_interpreter()
    if not everybody or for_everybody(python.executable):
        return Python(python, {}, everybody)
    prefix = os.path.commonpath(python.directories) if python.directories else ""
    if not prefix:
        raise OSError(0, f"no sandbox can reach the interpreter {python.executable}: use one that everybody can read")
    place = f"{area.path}/python"
    masked = frozenset(python.masked)
    os.mkdir(place)
    directories = tuple(f"{place}{path.removeprefix(prefix)}" for path in python.directories)
    for path, target in zip(python.directories, directories, strict=True):
        for _ in placing(path, target, masked):
            pass
    executable = f"{place}{python.executable.removeprefix(prefix)}"
    shown = replace(python, executable=executable, directories=directories)
    shared = {"LD_LIBRARY_PATH": f"{place}/lib"} if sysconfig.get_config_var("Py_ENABLE_SHARED") else {}
    return Python(shown, shared, everybody)
