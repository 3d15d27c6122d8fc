"""Builds of packages for jails, in sandboxes that reach the registry alone.

Nothing foreign runs where packages are fetched, but for the build scripts of those that ``packages.source`` names;
install scripts of npm run in a second sandbox, without cache and credentials. The login of a registry stays at the
gate, which uses it for reading alone. A build gives a stream of files, which is unpacked as one that somebody hostile
wrote, and sealed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from skillyard.data_dir import DataDir
from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.errors import InvalidInput, SkillyardError
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import Mount, Stream
from skillyard.domain.work.limits import Limits
from skillyard.faces.cli.jail import home
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.domain.network.session import GateSecret
    from skillyard.domain.work.record import RunRecord
    from skillyard.engine.commands.jail_order import JailOrder
    from skillyard.engine.packages.steps import IndexAccess

_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
MOST_JSON = 1 << 20
_MIB = 1 << 20

_NPM_FETCH = """
set -e
mkdir -p /workspace/tree /workspace/cache/_cacache/content-v2
if [ -d /blobs/npm ]; then
    cp -r /blobs/npm/index-v5 /workspace/cache/_cacache/ || true
    cp -rs /blobs/npm/content-v2/. /workspace/cache/_cacache/content-v2/ || true
    chmod -R u+w /workspace/cache
fi
cd /workspace/tree
login=$1
shift
# The name of that variable is not one of a shell's.
${login:+env "$login"} npm install --ignore-scripts --save-exact --no-bin-links --no-audit --no-fund \\
    --loglevel=error "$@" >&2
tar -cf - .
"""
"""Fetches without foreign code. Of the operator's cache it has links to files, whose digests npm compares."""
_NPM_SCRIPTS = """
set -e
cp -r /skills/fetched /workspace/tree
chmod -R u+w /workspace/tree
cd /workspace/tree
npm rebuild --no-bin-links --loglevel=error >&2
tar -cf - .
"""
"""Runs install scripts, where neither cache nor credentials are."""
_PYPI_BUILD = """
set -e
mkdir /workspace/tree
cd /workspace/tree
export UV_CACHE_DIR=/workspace/cache UV_PYTHON_DOWNLOADS=never
wanted=$1
shift
printf '%s\\n' "$wanted" | /skills/uv -q pip compile --python python3 "$@" \\
    --generate-hashes --no-header --no-emit-index-url -o requirements.lock - >&2
/skills/uv -q pip install --python python3 "$@" --link-mode copy \\
    --require-hashes --target packages -r requirements.lock >&2
rm -rf packages/bin
tar -cf - .
"""


@dataclass(frozen=True, slots=True)
class Npm:
    """The operator's npm: its registry, and its cache where there is one. It has no more of the configuration."""

    registry: str
    cache: Path | None

    @classmethod
    def find(cls) -> Npm:
        """Raises InvalidInput for an address with credentials, and where npm is not installed."""
        npm = shutil.which("npm")
        if npm is None:
            raise InvalidInput("npm", "is not on PATH, and knows the registry; install it")
        # Not in the working directory, whose .npmrc could name another registry.
        asked = subprocess.run(
            [npm, "config", "get", "registry", "cache"],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        told = dict(line.partition("=")[::2] for line in asked.stdout.splitlines())
        found = told.get("registry", "")
        parts = urlsplit(found)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidInput("registry", "of npm's configuration must be an http address without credentials")
        cache = Path(told.get("cache") or "/", "_cacache").resolve()
        return cls(found, cache if (cache / "index-v5").is_dir() else None)


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


async def built(
    settings: Settings, kind: str, requirements: Sequence[str], tree: Path
) -> tuple[tuple[RunRecord, ...], str]:
    """Unpacks a package's files below ``tree``; returns the build's records and their digest."""
    if kind == "pypi":
        record, digest = await _unpacked(settings, requirements[0], await _pypi_order(settings, requirements), tree)
        return (record,), digest
    npm = Npm.find()
    record, digest = await _unpacked(settings, requirements[0], await _npm_order(settings, requirements[0], npm), tree)
    if not scripts_in(tree):
        return (record,), digest
    fetched = tree.rename(tree.with_name("fetched"))
    tree.mkdir(mode=0o755)
    again, digest = await _unpacked(settings, requirements[0], _scripts_order(settings, npm, digest, fetched), tree)
    return (record, again), digest


async def _unpacked(settings: Settings, requirement: str, order: JailOrder, tree: Path) -> tuple[RunRecord, str]:
    """Runs one step of a build and unpacks its files. Raises PackageFailed."""
    from skillyard.domain.principal import LOCAL
    from skillyard.engine.network.refusals import refusal
    from skillyard.tar_receiver import ReceiverLimits, receive_tar

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
        raise PackageFailed(f"{requirement} could not be fetched: {why}")
    if refused:
        raise PackageFailed(f"the files of {requirement} are refused: {refused}")
    return record, wires.digest.hexdigest()


def _order(settings: Settings, args: tuple[str, ...]) -> JailOrder:
    from skillyard.engine.commands.jail_order import JailOrder

    config = settings.packages
    limits = Limits(round(config.timeout_s * 1000), config.memory_mb, 2.0, 512, config.disk_mb)
    return JailOrder(args, limits, labels={"jail": "build"})


async def _access(settings: Settings) -> IndexAccess:
    """Returns the way to the index, with the use of its secret in the audit. Raises BuildFailed."""
    from skillyard.engine.packages.steps import IndexAccess, index_access
    from skillyard.wiring import local_secrets

    if not settings.packages.secret or settings.packages.offline:
        return IndexAccess(settings.packages.index)
    async with local_secrets(settings, DataDir(settings.data_dir)) as book:
        return await index_access(settings.packages, book, "jail")


async def _npm_order(settings: Settings, requirement: str, npm: Npm) -> JailOrder:
    from skillyard.config.packages import index_rule
    from skillyard.engine.packages.steps import TOKEN_USER

    offline, rule, login = settings.packages.offline, index_rule(npm.registry), ""
    secrets: tuple[GateSecret, ...] = ()
    access = await _access(settings) if rule == index_rule(settings.packages.index) else None
    if access is not None and access.secrets:
        parts, there = urlsplit(access.address), urlsplit(npm.registry)
        place, secrets = f"npm_config_//{there.netloc}{there.path.rstrip('/')}/", access.secrets
        both = f"{unquote(parts.username or '')}:{parts.password}"
        token = parts.username == TOKEN_USER
        login = f"{place}:_authToken={parts.password}" if token else f"{place}:_auth={_base64(both)}"
    trusted = {} if secrets else {"NODE_EXTRA_CA_CERTS": _CERTIFICATES}
    args = ("sh", "-c", _NPM_FETCH, "sh", login, *(["--offline"] if offline else []), requirement)
    mounts = () if npm.cache is None else (Mount(HostDirectory(npm.cache), "/blobs/npm"),)
    env = {**_npm_env(npm), **trusted}
    rules = () if offline else (rule,)
    return replace(_order(settings, args), env=env, mounts=mounts, rules=rules, gated=secrets)


def _scripts_order(settings: Settings, npm: Npm, digest: str, fetched: Path) -> JailOrder:
    from skillyard.config.packages import index_rule

    order = _order(settings, ("sh", "-c", _NPM_SCRIPTS))
    mounts = (Mount(Content(digest, fetched), "/skills/fetched"),)
    rules = () if settings.packages.offline else (index_rule(npm.registry),)
    return replace(order, env={**_npm_env(npm), "NODE_EXTRA_CA_CERTS": _CERTIFICATES}, mounts=mounts, rules=rules)


def _npm_env(npm: Npm) -> dict[str, str]:
    return {
        "npm_config_registry": npm.registry,
        "npm_config_cache": "/workspace/cache",
        "npm_config_update_notifier": "false",
    }


async def _pypi_order(settings: Settings, requirements: Sequence[str]) -> JailOrder:
    from skillyard.engine.packages.environment import uv_program

    config, access = settings.packages, await _access(settings)
    words = ["--no-index"] if config.offline else ["--default-index", access.address]
    mounts = [Mount(Content("uv", uv_program()), "/skills/uv")]
    if (wheels := config.wheels_directory()) is not None:
        mounts.append(Mount(wheels, "/blobs/wheels"))
        words += ["--find-links", "/blobs/wheels"]
    words += ["--only-binary", ":all:", *(word for name in config.source for word in ("--no-binary", name))]
    # With a secret the gate opens the connection, and names the certificates itself.
    trusted = {} if access.secrets else {"SSL_CERT_FILE": _CERTIFICATES}
    env = {**trusted, "UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1"}
    order = _order(settings, ("sh", "-c", _PYPI_BUILD, "sh", "\n".join(requirements), *words))
    rules = () if config.offline else config.reach
    return replace(order, mounts=tuple(mounts), env=env, rules=rules, gated=access.secrets)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def scripts_in(tree: Path) -> tuple[str, ...]:
    """Returns the packages that had install scripts, as npm's lock tells."""
    if not (tree / "package-lock.json").is_file():
        return ()
    packages = read_json(tree / "package-lock.json").get("packages")
    found = packages.items() if isinstance(packages, dict) else ()
    return tuple(
        sorted(str(name) for name, told in found if isinstance(told, dict) and told.get("hasInstallScript"))[:50]
    )


def read_json(path: Path) -> dict[str, Any]:
    """Returns an object that somebody hostile wrote. Raises PackageFailed."""
    try:
        with path.open("rb") as file:
            raw = file.read(8 * MOST_JSON + 1)
        told = json.loads(raw) if len(raw) <= 8 * MOST_JSON else None
    except (OSError, ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise PackageFailed(f"{path.name} of the package cannot be read")
    return told
