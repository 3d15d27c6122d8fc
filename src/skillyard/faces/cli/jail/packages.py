"""Packages that jails run: fetched once, in a sandbox that reaches the registry alone.

Install scripts run in that sandbox. All that comes out of it is a stream of files, which is unpacked as one that
somebody hostile wrote, and sealed. Nothing of the operator's configuration enters but the registry's address.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.errors import InvalidInput, SkillyardError, shown
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount, Stream
from skillyard.domain.work.limits import Limits
from skillyard.faces.cli.jail import home

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.domain.work.record import RunRecord
    from skillyard.engine.commands.jail_order import JailOrder

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NPM = re.compile(r"((?:@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*)(?:@([0-9A-Za-z][0-9A-Za-z.+-]*))?")
_PYPI = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?)(?:(?:==|@)([0-9A-Za-z][0-9A-Za-z.!+]*))?")
_ALSO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:(?:[<>=!~]=|[<>])[0-9A-Za-z.!+*,<>=~]+)?")
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_STATE, _TREE = "jail.json", "tree"
_MOST_JSON = 1 << 20
_MIB = 1 << 20

_NPM_BUILD = """
set -e
mkdir /workspace/tree
cd /workspace/tree
npm install --save-exact --no-bin-links --no-audit --no-fund --loglevel=error "$1" >&2
tar -cf - .
"""
_PYPI_BUILD = """
set -e
mkdir /workspace/tree
cd /workspace/tree
export UV_CACHE_DIR=/workspace/cache UV_PYTHON_DOWNLOADS=never
index=$1
shift
printf '%s\\n' "$@" | /skills/uv -q pip compile --python python3 --only-binary :all: --default-index "$index" \
    --generate-hashes --no-header --no-emit-index-url -o requirements.lock - >&2
/skills/uv -q pip install --python python3 --only-binary :all: --default-index "$index" --link-mode copy \
    --require-hashes --target packages -r requirements.lock >&2
rm -rf packages/bin
tar -cf - .
"""
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


def npm_registry() -> str:
    """Returns the address of the operator's npm registry, and no more of its configuration.

    Raises InvalidInput for one with credentials, and where npm is not installed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise InvalidInput("npm", "is not on PATH, and knows the registry; install it")
    # Not in the working directory, whose .npmrc could name another registry.
    asked = subprocess.run(
        [npm, "config", "get", "registry"], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    found = asked.stdout.strip()
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise InvalidInput("registry", "of npm's configuration must be an http address without credentials")
    return found


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
            record, digest = await _built(settings, package, tree)
            start, exact = _started(name, package, tree)
            found = Installed(name, exact, start, digest, grants, _scripts(tree))
            (Path(part) / _STATE).write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
            made = self._home / name
            made.mkdir(mode=0o700)
            tree.rename(made / _TREE)
            (Path(part) / _STATE).rename(made / _STATE)  # last: without it there is no package
        return Added(found, record)


def store_of(settings: Settings) -> Store:
    """Returns the packages that were added."""
    return Store(home.base(settings) / "packages")


@dataclass(frozen=True, slots=True)
class Added:
    """A package that was just fetched, and the record of its build."""

    installed: Installed
    record: RunRecord


class PackageFailed(SkillyardError):
    """A package could not be fetched; the message tells the end of what was said."""

    type = "SandboxError"


class _Collecting:
    """The wires of a build, whose output is unpacked as it comes."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.said = b""
        self.digest = hashlib.sha256()
        self._refused = False
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(maxsize=8)

    async def read(self) -> bytes:
        return b""

    async def write(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDERR:
            self.said = (self.said + data)[-4096:]
        elif data and not self._refused:
            self.digest.update(data)
            await self._pieces.put(data)

    def close(self, stream: Stream) -> None:
        """The end of the whole build ends the files."""

    async def end(self) -> None:
        if not self._refused:
            await self._pieces.put(b"")

    def refuse(self) -> None:
        """Takes no more files, and ends the build."""
        self._refused = True
        while not self._pieces.empty():
            self._pieces.get_nowait()
        if not self.gone.done():
            self.gone.set_result("its files are refused")

    async def files(self) -> AsyncIterator[bytes]:
        while piece := await self._pieces.get():
            yield piece


async def _built(settings: Settings, package: Package, tree: Path) -> tuple[RunRecord, str]:
    """Unpacks a package's files below ``tree``; returns the build's record and their digest."""
    from skillyard.domain.principal import LOCAL
    from skillyard.engine.network.refusals import refusal
    from skillyard.tar_receiver import ReceiverLimits, receive_tar

    order = _order(settings, package)
    wires = _Collecting()
    async with home.runtime(settings, None) as runtime:

        async def run() -> RunRecord:
            try:
                return await runtime.app.jails.run(LOCAL, order, wires)
            finally:
                await wires.end()

        most = ReceiverLimits(order.limits.disk_mb * _MIB)
        running = asyncio.create_task(run())
        refused = ""
        try:
            await receive_tar(wires.files(), tree, most, sealed=True)
        except ArchiveRefused as error:
            refused = str(error)
            wires.refuse()
        finally:
            record = await running
    output = record.output if isinstance(record.output, dict) else {}
    if output.get("exit_code") != 0:
        said = wires.said.decode("utf-8", "replace").strip()[-900:]
        printable = "".join(letter if letter.isprintable() else " " for letter in said)
        why = " ".join(filter(None, (refusal(record.network or {}), printable or record.summary)))
        raise PackageFailed(f"{package.requirement} could not be fetched: {why}")
    if refused:
        raise PackageFailed(f"the files of {package.requirement} are refused: {refused}")
    return record, wires.digest.hexdigest()


def _order(settings: Settings, package: Package) -> JailOrder:
    from skillyard.config.packages import index_rule
    from skillyard.engine.commands.jail_order import JailOrder
    from skillyard.engine.packages.environment import uv_program

    config = settings.packages
    limits = Limits(round(config.timeout_s * 1000), config.memory_mb, 2.0, 512, config.disk_mb)
    order = JailOrder((), limits, labels={"jail": "build"})
    if package.kind == "npm":
        registry = npm_registry()
        variables = {
            "npm_config_registry": registry,
            "npm_config_cache": "/workspace/cache",
            "npm_config_update_notifier": "false",
            "NODE_EXTRA_CA_CERTS": _CERTIFICATES,
        }
        args = ("sh", "-c", _NPM_BUILD, "sh", package.requirement)
        return replace(order, args=args, env=variables, rules=(index_rule(registry),))
    asked = ("sh", "-c", _PYPI_BUILD, "sh", config.index, package.requirement, *package.also)
    mounts = (Mount(Content("uv", uv_program()), "/skills/uv"),)
    env = {"SSL_CERT_FILE": _CERTIFICATES, "UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1"}
    return replace(order, args=asked, mounts=mounts, env=env, rules=config.reach)


def _started(name: str, package: Package, tree: Path) -> tuple[tuple[str, ...], Package]:
    """Returns the command of a package's program, and the package with its exact version."""
    if package.kind == "pypi":
        pinned = package.name.partition("[")[0].lower().replace("_", "-").replace(".", "-")
        text = (tree / "requirements.lock").read_text(encoding="utf-8", errors="replace")[:_MOST_JSON]
        match = re.search(rf"^{re.escape(pinned)}==([0-9A-Za-z.!+]+)", text, re.MULTILINE)
        exact = replace(package, version=match[1]) if match else package
        return ("python3", "-c", _PYPI_START, f"/skills/{name}/packages", package.program), exact
    manifest = _json(tree / "node_modules" / package.name / "package.json")
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


def _scripts(tree: Path) -> tuple[str, ...]:
    """Returns the packages that had install scripts, as npm's lock tells."""
    if not (tree / "package-lock.json").is_file():
        return ()
    packages = _json(tree / "package-lock.json").get("packages")
    found = packages.items() if isinstance(packages, dict) else ()
    return tuple(
        sorted(str(name) for name, told in found if isinstance(told, dict) and told.get("hasInstallScript"))[:50]
    )


def _json(path: Path) -> dict[str, Any]:
    """Returns an object that somebody hostile wrote. Raises PackageFailed."""
    try:
        with path.open("rb") as file:
            raw = file.read(8 * _MOST_JSON + 1)
        told = json.loads(raw) if len(raw) <= 8 * _MOST_JSON else None
    except (OSError, ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise PackageFailed(f"{path.name} of the package cannot be read")
    return told
