"""The programs that the backend is made of: node, srt, and the helpers that srt starts."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

from skillyard.domain.errors import SandboxFault, shown
from skillyard.values import dataclass

PACKAGE = "@anthropic-ai/sandbox-runtime"
OLDEST, NEWEST = (0, 0, 80), (0, 0, 999)
"""The versions of srt that are taken, both included: earlier ones have other settings, later ones were not tried."""
HELPERS = ("bwrap", "socat", "rg", "prlimit", "setsid", "setpriv", "mount")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Helpers are looked for where the stage shows them."""
MEND = f"install node, bubblewrap, socat, ripgrep and util-linux, and run npm install -g {PACKAGE}@0.0.83"
_ASKED_S = 60.0


@dataclass(frozen=True, slots=True)
class Tools:
    """``modules`` is the directory with srt and its libraries, ``script`` its program below."""

    node: Path
    modules: Path
    script: Path
    versions: dict[str, str]


async def find(command: str) -> Tools:
    """Returns the tools of this host; ``command`` is the path of srt, or empty. Raises SandboxFault with a remedy."""
    absent = [tool for tool in HELPERS if shutil.which(tool, path=PATH) is None]
    node = shutil.which("node")
    if node is None:
        absent.insert(0, "node")
    named = shutil.which(command or "srt")
    if named is None:
        absent.append(command or "srt")
    if absent or node is None or named is None:
        raise SandboxFault(f"not installed: {', '.join(absent)}; {MEND}")
    script = Path(named).resolve()
    package = _package(script)
    version = _version(package)
    versions = {
        "srt": version,
        "node": await _said(node, "--version"),
        "bwrap": await _said(helper("bwrap"), "--version"),
    }
    return Tools(Path(node).resolve(), _modules(package), script, versions)


def _package(script: Path) -> Path:
    for directory in script.parents:
        if (directory / "package.json").is_file():
            return directory
    raise SandboxFault(f"{script} does not belong to the npm package {PACKAGE}; {MEND}")


def _version(package: Path) -> str:
    """Returns the version of srt. Raises SandboxFault for another package and for a version that is not taken."""
    try:
        told = json.loads((package / "package.json").read_text("utf-8"))
        name, version = str(told["name"]), str(told["version"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SandboxFault(f"{package}/package.json cannot be read: {error}") from None
    if name != PACKAGE:
        raise SandboxFault(f"srt.command names the npm package {shown(name)}, which is not {PACKAGE}; {MEND}")
    numbers = re.fullmatch(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version)
    if numbers is None or not OLDEST <= tuple(map(int, numbers.groups())) <= NEWEST:
        taken = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise SandboxFault(f"srt {shown(version)} is not one that is taken; taken are {taken}; {MEND}")
    return version


def _modules(package: Path) -> Path:
    """Returns the directory ``node_modules`` that srt was installed in."""
    modules = package.parent.parent
    if modules.name != "node_modules":
        raise SandboxFault(f"{package} does not lie in a directory node_modules; {MEND}")
    return modules


def helper(name: str) -> str:
    """Returns the path of a helper. Raises SandboxFault where it is missing."""
    path = shutil.which(name, path=PATH)
    if path is None:
        raise SandboxFault(f"not installed: {name}; {MEND}")
    return path


async def _said(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    async with asyncio.timeout(_ASKED_S):
        said, _ = await process.communicate()
    return said.decode("utf-8", "replace").strip()[:100]


def python() -> str:
    """Returns the plain interpreter behind the virtual environment that the server may run in."""
    return str(Path(sys.base_prefix) / "bin" / "python3")


@functools.cache
def site_directories() -> tuple[str, ...]:
    """Returns the places of packages of the plain interpreter; the first takes those of a run."""
    found = [path for path in site.getsitepackages([sys.base_prefix]) if Path(path).is_dir()]
    others = ("/usr/lib/python3/dist-packages", *_versioned())
    return tuple(dict.fromkeys((*found, *(path for path in others if Path(path).is_dir()))))


def _versioned() -> list[str]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [f"/usr/local/lib/{version}/dist-packages", f"/usr/local/lib/{version}/site-packages"]
