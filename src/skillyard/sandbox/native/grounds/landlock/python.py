"""The interpreter that sandboxes run, where they can reach it, and the packages of an environment beside it.

There is no mount to show packages where the interpreter looks for them: each environment gets what a virtual
environment is made of (``pyvenv.cfg``), so that every ``python3`` in there finds them and none of the host's.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace

from skillyard.sandbox.native.grounds import interpreter
from skillyard.sandbox.native.grounds.interpreter import Interpreter
from skillyard.sandbox.native.grounds.landlock.area import Area, for_everybody
from skillyard.sandbox.native.grounds.landlock.tree import placing

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"lib/python{_VERSION}/site-packages"


@dataclass(frozen=True, slots=True)
class Shown:
    """``executable`` finds ``packages`` ("" for none); ``place`` is the directory of both."""

    place: str
    executable: str
    packages: str


@dataclass(frozen=True, slots=True)
class Python:
    """``shown`` is the interpreter as sandboxes find it."""

    shown: Interpreter
    variables: Mapping[str, str]
    everybody: bool
    """Whether every user must reach what is shown, or only our own."""

    def path(self, executable: str) -> str:
        places = [os.path.dirname(executable), "/usr/local/bin", "/usr/bin", "/bin"]
        return ":".join(dict.fromkeys(places))

    def show_packages(self, packages: str, area: Area) -> Shown:
        """Called as who can read them, by one process at a time for each. Raises OSError."""
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
    """The base interpreter behind this process, placed in the area when others cannot reach it. Raises OSError."""
    python = interpreter.describe()
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
