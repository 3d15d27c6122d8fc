"""Packages that jails run: fetched once, sealed, and kept under a name with their grants."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount
from skillyard.faces.cli.jail import home
from skillyard.faces.cli.jail.builds import MOST_JSON, PackageFailed, built, read_json, scripts_in
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.domain.work.record import RunRecord

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NPM = re.compile(r"((?:@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*)(?:@([0-9A-Za-z][0-9A-Za-z.+-]*))?")
_PYPI = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?)(?:(?:==|@)([0-9A-Za-z][0-9A-Za-z.!+]*))?")
_ALSO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:(?:[<>=!~]=|[<>])[0-9A-Za-z.!+*,<>=~]+)?")
_STATE, _TREE = "jail.json", "tree"

_PYPI_START = """
import sys
place, name = sys.argv[1:3]
sys.path.insert(0, place)
from importlib.metadata import distributions
found = [entry for one in distributions(path=[place]) for entry in one.entry_points
         if entry.group == "console_scripts" and entry.name == name]
if not found:
    sys.exit(f"no program {name} in the package")
sys.argv[:] = [name, *sys.argv[3:]]
sys.exit(found[0].load()())
"""


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a registry, and its program. ``kind`` is ``npm`` or ``pypi``, ``version`` empty for the newest.

    ``also`` are requirements that are installed with it, as by ``uvx --with``.
    """

    kind: str
    name: str
    version: str
    program: str
    args: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        join = "@" if self.kind == "npm" else "=="
        return f"{self.name}{join}{self.version}" if self.version else self.name


@dataclass(frozen=True, slots=True)
class Installed:
    """A package that was fetched. ``start`` is its command in a jail, ``digest`` that of its files' stream.

    ``grants`` are the options that it was added with.
    """

    name: str
    package: Package
    start: tuple[str, ...]
    digest: str
    grants: Mapping[str, Any]
    scripts: tuple[str, ...] = ()
    """Packages whose install scripts ran in the build."""


def parse(command: Sequence[str]) -> Package:
    """Returns the package of a command of npx, uvx or pipx. Raises InvalidInput for another command or option."""
    words = list(command)
    runner = Path(words.pop(0)).name if words else ""
    if runner == "pipx" and words[:1] == ["run"]:
        words.pop(0)
    elif runner not in ("npx", "uvx"):
        rule = "must be a command of npx, uvx or pipx run, such as: npx -y @modelcontextprotocol/server-memory"
        raise InvalidInput("command", rule, shown(" ".join(command)))
    source, also = "", []
    while words and words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        if option in ("-y", "--yes", "-q", "--quiet"):
            continue
        if option == "--with" and runner == "uvx":
            also.append(_requirement(value or (words.pop(0) if words else "")))
            continue
        if option not in ("-p", "--package", "--from", "--spec") or source:
            raise InvalidInput("command", "has an option that a jail does not know", shown(option))
        source = value or (words.pop(0) if words else "")
    if not words:
        raise InvalidInput("command", "names no package", shown(" ".join(command)))
    kind = "npm" if runner == "npx" else "pypi"
    match = (_NPM if kind == "npm" else _PYPI).fullmatch(source or words[0])
    if match is None:
        raise InvalidInput("command", "must name a package of a registry, with a version or none", shown(words[0]))
    own = match[1].partition("[")[0] if kind == "pypi" else match[1].rpartition("/")[2]
    return Package(kind, match[1], match[2] or "", words[0] if source else own, tuple(words[1:]), tuple(also))


def _requirement(text: str) -> str:
    if not _ALSO.fullmatch(text):
        raise InvalidInput("command", "must name a package of a registry after --with, such as mcp<2", shown(text))
    return text


def check_name(name: str) -> str:
    """Raises InvalidInput for a name that a directory cannot have."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("name", "must be lower-case letters, digits and . _ -, at most 64", shown(name))
    return name


class Store:
    """The packages of jails, in a directory each below ``home``."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self._home.glob(f"[a-z0-9]*/{_STATE}"))

    def find(self, name: str) -> Installed:
        """Raises InvalidInput for a name that was not added."""
        try:
            told = json.loads((self._home / check_name(name) / _STATE).read_text(encoding="utf-8"))
        except OSError:
            known = ", ".join(self.names()) or "none"
            raise InvalidInput("name", f"was not added; known are: {known}", shown(name)) from None
        words = told["package"]
        package = Package(**{**words, "args": tuple(words["args"]), "also": tuple(words.get("also", ()))})
        rest = {**told, "package": package, "start": tuple(told["start"]), "scripts": tuple(told["scripts"])}
        return Installed(**rest)

    def mount(self, found: Installed) -> Mount:
        """Returns the sealed files of a package, as a jail shows them."""
        return Mount(Content(found.digest, self._home / found.name / _TREE), f"/skills/{found.name}")

    def remove(self, name: str) -> None:
        """Raises InvalidInput for a name that was not added."""
        shutil.rmtree(self._home / self.find(name).name)

    async def add(self, settings: Settings, name: str, package: Package, grants: Mapping[str, Any]) -> Added:
        """Fetches a package and keeps it. Raises InvalidInput for a name that is taken, and PackageFailed."""
        check_name(name)
        if (self._home / name).exists():
            raise InvalidInput("name", f"is taken; `skillyard jail remove {name}` makes room", name)
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=self._home, ignore_cleanup_errors=True) as part:
            tree = Path(part) / _TREE
            tree.mkdir(mode=0o755)
            records, digest = await built(settings, package.kind, (package.requirement, *package.also), tree)
            start, exact = _started(name, package, tree)
            found = Installed(name, exact, start, digest, grants, scripts_in(tree))
            (Path(part) / _STATE).write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
            made = self._home / name
            made.mkdir(mode=0o700)
            tree.rename(made / _TREE)
            (Path(part) / _STATE).rename(made / _STATE)  # last: without it there is no package
        return Added(found, records)


def store_of(settings: Settings) -> Store:
    """Returns the packages that were added."""
    return Store(home.own(settings) / "packages")


@dataclass(frozen=True, slots=True)
class Added:
    """A package that was just fetched, and the records of its build."""

    installed: Installed
    records: tuple[RunRecord, ...]

    @property
    def connections(self) -> list[Mapping[str, Any]]:
        """Returns those of the build, the refused ones too. Their names are hostile."""
        return [each for record in self.records for each in (record.network or {}).get("connections", ())]


def _started(name: str, package: Package, tree: Path) -> tuple[tuple[str, ...], Package]:
    """Returns the command of a package's program, and the package with its exact version."""
    if package.kind == "pypi":
        pinned = package.name.partition("[")[0].lower().replace("_", "-").replace(".", "-")
        text = (tree / "requirements.lock").read_text(encoding="utf-8", errors="replace")[:MOST_JSON]
        match = re.search(rf"^{re.escape(pinned)}==([0-9A-Za-z.!+]+)", text, re.MULTILINE)
        exact = replace(package, version=match[1]) if match else package
        return ("python3", "-c", _PYPI_START, f"/skills/{name}/packages", package.program), exact
    manifest = read_json(tree / "node_modules" / package.name / "package.json")
    programs = manifest.get("bin")
    if isinstance(programs, dict):
        only = next(iter(programs.values())) if len(programs) == 1 else None
        programs = programs.get(package.program, only)
    if not isinstance(programs, str) or ".." in PurePosixPath(programs).parts or PurePosixPath(programs).is_absolute():
        raise PackageFailed(f"{package.name} has no program '{package.program}'")
    version = manifest.get("version")
    exact = replace(package, version=version) if isinstance(version, str) else package
    place = PurePosixPath(f"/skills/{name}/node_modules/{package.name}") / programs
    return ("node", str(place)), exact
