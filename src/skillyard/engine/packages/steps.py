"""The steps of a build: one program of ours each, in a sandbox with the package index alone.

The program runs uv. The end of the file finds out why a step failed, from its ending, its output and the connections
that were refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache
from importlib.resources import files
from secrets import token_hex
from typing import Any
from urllib.parse import quote, urlsplit

from skillyard.config.network import NetworkSettings
from skillyard.config.packages import PackagesSettings, index_rule
from skillyard.domain.errors import InvalidInput, SkillyardError
from skillyard.domain.network.policy import OPERATOR, Layer, Policy
from skillyard.domain.network.session import EgressLimits, EgressPlan, GateSecret, host_and_port, new_placeholder
from skillyard.domain.package.platforms import Platform, own
from skillyard.domain.principal import DEFAULT_PROJECT
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, Mount, SandboxSpec, Stream, StreamLimits
from skillyard.domain.secret import Delivery, SecretAct, SecretEvent
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.lending import Lender, Order
from skillyard.engine.network.grant import ability
from skillyard.engine.network.run_network import NetworkGrant
from skillyard.engine.packages.build import BuildLog, calm
from skillyard.engine.packages.environment import BuildFailed, platform_of, standard_library, uv_program
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.secrets.service import SecretBook
from skillyard.engine.tasks import Tasks
from skillyard.engine.text import shorten
from skillyard.ports.gate import Gate
from skillyard.ports.sandbox import Process
from skillyard.values import dataclass

TOKEN_USER = "__token__"  # noqa: S105 - who a token belongs to, by the custom of package indexes
BUILDER = "environments"
"""The user of the secret in the audit."""


@dataclass(frozen=True, slots=True)
class IndexAccess:
    """``address`` is what uv is told."""

    address: str
    secrets: tuple[GateSecret, ...] = ()


async def index_access(config: PackagesSettings, book: SecretBook, build: str) -> IndexAccess:
    """Its use is in the audit when this returns. Raises BuildFailed for a secret that is not stored, StoreFault."""
    if not config.secret or config.offline:
        return IndexAccess(config.index)
    found = await book.find(config.secret, DEFAULT_PROJECT, "")
    if found is None:
        raise BuildFailed(
            f"packages.secret names '{config.secret}', which is not stored: `skillyard secret set {config.secret}`"
        )
    event = SecretEvent(
        at=book.clock.now(),
        act=SecretAct.USED,
        name=config.secret,
        principal=BUILDER,
        project=DEFAULT_PROJECT,
        skill="",
        run_id=build,
        scope=str(found.scope),
        version=found.version,
        delivery=Delivery.GATE.value,
        reason="",
    )
    await book.audit.record([event])
    user, colon, password = found.value.partition(":")
    placeholder = new_placeholder()
    parts = urlsplit(config.index)
    login = f"{quote(user if colon else TOKEN_USER, safe='')}:{placeholder}"
    value = password if colon else found.value
    # Of packages.source, foreign code is in the same sandbox: it may not publish with this login.
    secret = GateSecret(config.secret, placeholder, value, (index_rule(config.index),), reading=True)
    return IndexAccess(parts._replace(netloc=f"{login}@{parts.netloc}").geturl(), (secret,))


MIB = 1024 * 1024
PREFIX = "build_"
"""Prefix of the keys of build sandboxes."""
_TENANT = "\0builds"
"""Whose share of places builds take: nobody's runs wait behind them. Which build is next was decided before."""
_CPUS, _PIDS = 2.0, 512
_HEADERS = 64 * MIB
_LOG = 64 * MIB


class Steps:
    """``at_work`` are the keys of the sandboxes that there are."""

    def __init__(
        self,
        config: PackagesSettings,
        network: NetworkSettings,
        backends: Backends,
        lender: Lender,
        gate: Gate | None,
        book: SecretBook,
        *,
        usual: str,
    ) -> None:
        """Makes the steps of all builds.

        ``usual`` names an environment without packages, whose warm interpreter builds may use.
        """
        self._config = config
        self._reach = network
        self._backends = backends
        self._lender = lender
        self._gate = gate
        self._book = book
        self._usual = usual
        self._tasks = Tasks()
        self.at_work: set[str] = set()

    @property
    def source(self) -> tuple[str, ...]:
        """Returns what is built from source."""
        return self._config.source

    @property
    def most_bytes(self) -> int:
        """More than a build's disk cannot come out of it."""
        return self._config.disk_mb * MIB + _HEADERS

    async def output(
        self, asked: Mapping[str, Any], platform: Platform | None, log: BuildLog, most_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Yields what the program writes to standard output; what it says goes to ``log``. It has to be closed.

        It works for ``platform``, None for this server's own, which uv is told where its sandbox may have another one.
        Raises BuildFailed, at the end too: what came before is then worth nothing.
        """
        key = PREFIX + token_hex(8)
        self.at_work.add(key)
        try:
            async with aclosing(self._output(key, asked, platform, log, most_bytes)) as output:
                async for chunk in output:
                    yield chunk
        except BuildFailed:
            raise
        except SkillyardError as error:
            raise BuildFailed(f"the build has no sandbox: {error.message}") from error
        finally:
            self.at_work.discard(key)

    async def _output(
        self, key: str, asked: Mapping[str, Any], platform: Platform | None, log: BuildLog, most_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        offer = await self._offer()
        access = await index_access(self._config, self._book, key)
        other = platform or (own() if await platform_of(offer, self._usual) is not None else None)
        told = {**asked, **self._where(access, other)}
        order = Order(key, _TENANT, offer, self._spec(offer), self._network(access), trimmed=True)
        async with self._lender.lend(order) as loan:
            try:
                await loan.begin()
                sandbox, guest = await loan.open({"env": {}})
                program = Argv(("python3", "-I", "-S", "-c", _program()), env=guest["env"], stdin=True)
                timeout_ms = round(self._config.timeout_s * 1000)
                streams = StreamLimits(most_bytes + _LOG)
                process = await sandbox.start(program, id=key, timeout_ms=timeout_ms, streams=streams)
                reading = self._tasks.spawn(_listen(process, log), f"log of {key}")
                try:
                    with suppress(SkillyardError):  # it ended early: how, is told below
                        await process.send(json.dumps(told).encode())
                        await process.close_stdin()
                    async for chunk in process.output(Stream.STDOUT):
                        yield chunk
                    ending = await process.wait()
                    await reading
                finally:
                    reading.cancel()
            finally:
                seen = await self._tasks.shielded(loan.end(), f"end of {key}")
        if ending.outcome is not Outcome.EXIT or ending.code:
            text = log.whole()[-16_384:].decode("utf-8", "replace")
            raise BuildFailed(explained(self._config, ending, text, seen or {}, other))

    async def _offer(self) -> Offer:
        """The default isolation, or the strongest with a network where uv cannot work in that one."""
        backends = self._backends
        offer = backends.default
        if offer is None:
            raise BuildFailed("no isolation stands yet")
        offer.check_ready()
        why = await self._unfit(offer)
        if not why:
            return offer
        other = await backends.with_network()
        if other is not None and other.refusal is None and not await self._unfit(other):
            return other
        raise BuildFailed(
            f"isolation '{offer.name}' {why}, and {other.name if other else 'no other one'} does not stand here: "
            "put wheels into a directory, and name it in packages.wheels with packages.offline = true"
        )

    async def _unfit(self, offer: Offer) -> str:
        """Returns why no build can work in its sandboxes; empty where one can."""
        try:
            there = await platform_of(offer, self._usual)
            runs = there is None or there.runs(own())
        except InvalidInput:
            runs = False
        if not runs:
            return "has another processor or C library than this server's uv"
        lacks = ability(offer, self._gate is not None)
        if self._config.offline or lacks.level is not Level.MISSING:
            return ""
        return "gives a build no network" + (f" ({lacks.why})" if lacks.why else "")

    def _spec(self, offer: Offer) -> SandboxSpec:
        config = self._config
        limits = Limits(round(config.timeout_s * 1000), config.memory_mb, _CPUS, _PIDS, config.disk_mb)
        mounts = [Mount(Content("uv", uv_program()), "/skills/uv")]
        if (wheels := config.wheels_directory()) is not None:
            mounts.append(Mount(wheels, "/blobs/wheels"))
        return SandboxSpec(
            limits=limits,
            environment=standard_library(self._usual),
            mounts=tuple(mounts),
            single=True,
            command=True,
            kernel_only=offer.demand.kernel_only,
            allow_degraded=offer.demand.allow_degraded,
        )

    def _network(self, access: IndexAccess) -> NetworkGrant | None:
        gate = self._gate
        if self._config.offline or gate is None:
            return None
        network = self._reach
        policy = Policy((Layer(OPERATOR, self._config.reach),), network.hosts, network.nat64)
        hidden = Redaction(secret.value for secret in access.secrets) if access.secrets else NOTHING
        return NetworkGrant(gate, EgressPlan(policy, EgressLimits(), access.secrets), hidden)

    def _where(self, access: IndexAccess, other: Platform | None) -> dict[str, Any]:
        config = self._config
        return {
            "index": access.address,
            "offline": config.offline,
            "wheels_shown": config.wheels is not None,
            "source": list(config.source) if other is None else [],
            # Without the patch number, which is not in the lock's name: the first image to ask would choose for all.
            "other": None if other is None else [other.python, other.uv],
        }


async def _listen(process: Process, log: BuildLog) -> None:
    async for chunk in process.output(Stream.STDERR):
        log.add(chunk)


@lru_cache
def _program() -> str:
    return files("skillyard.engine.packages").joinpath("inside.py").read_text(encoding="utf-8")


MOST = 900
_NAME = r"([A-Za-z0-9][A-Za-z0-9._-]*)"
_UNKNOWN = re.compile(rf"\b{_NAME} was not found in the (?:package registry|provided package locations)")
_NO_WHEEL = re.compile(rf"\b{_NAME}(?:[=<>!~]=?\S+)? has no wheels with a matching ([^(]+?) \(")
_SOURCE = re.compile(rf"\b{_NAME}(?:==(\S+))? has no usable wheels")
_BUILD = re.compile(rf"Failed to build [`']?{_NAME}")
_HINT = re.compile(r"^hint: (.+)$", re.MULTILINE)
_CAUSES = re.compile(r"^\s+cause: (.+)$", re.MULTILINE)
_MISMATCH = re.compile(r"Hash mismatch for [`'](\S+?)[`']")
_FETCH = re.compile(r"Failed to (?:fetch|download)\S* [`']?(\S+?)[`']?\s*$", re.MULTILINE)
_DENIED = re.compile(r"(?:returned a |\(|HTTP Error )(40[13])[ :]")
_FULL = re.compile(r"No space left on device|os error 28\b")
_NO_MEMORY = re.compile(
    r"Cannot allocate memory|memory allocation of \d+ bytes failed|os error 12\b|Tokio executor failed|"
    r"failed to spawn thread"
)
_REACHING = re.compile(r"error sending request|tunnel error|dns error|Failed to fetch|Failed to download|urlopen error")


def explained(
    config: PackagesSettings,
    ending: Ending,
    text: str,
    network: Mapping[str, Any],
    other: Platform | None = None,
) -> str:
    """Returns why a step failed.

    ``text`` is the end of the log, written by others. ``network`` is the record of the gate. ``other`` is the platform
    that uv was told.
    """
    text = calm(text)
    said = _limit(config, ending, text) or _refused(network, text) or _from_uv(config, text, other)
    if not said and ending.outcome is not Outcome.EXIT:
        said = ": ".join(filter(None, (_ended(ending), _last(text))))
    return shorten(" ".join((said or _last(text) or _ended(ending)).split()), MOST)


def _limit(config: PackagesSettings, ending: Ending, text: str) -> str:
    if ending.outcome is Outcome.MEMORY or (ending.outcome is not Outcome.TIMEOUT and _NO_MEMORY.search(text)):
        return f"the build needs more than its memory of {config.memory_mb} MiB (packages.memory_mb)"
    if ending.outcome in (Outcome.DISK, Outcome.OUTPUT) or _FULL.search(text):
        return f"the build needs more than its disk of {config.disk_mb} MiB (packages.disk_mb)"
    if ending.outcome is Outcome.TIMEOUT:
        return f"the build took longer than {config.timeout_s:g} s (packages.timeout_s)"
    if ending.outcome is Outcome.PROCESSES:
        return "the build started more processes than a sandbox may have"
    return ""


def _refused(network: Mapping[str, Any], text: str) -> str:
    refused = [c for c in network.get("connections", ()) if not c["allowed"] and c["host"]]
    if not refused or not _REACHING.search(text):
        return ""
    last = max(refused, key=lambda connection: connection["last_ms"])
    where = calm(host_and_port(last["host"], last["port"]))
    why = calm(last["reason"]).replace("network.rules", "packages.network")
    return f"the build may not reach {where}: {why}. Which hosts builds may reach is the setting packages.network"


def _from_uv(config: PackagesSettings, text: str, other: Platform | None) -> str:
    if match := _MISMATCH.search(text):
        return (
            f"{match[1]} is not what was locked: the index gives a file with another SHA-256. If that is meant, "
            "`skillyard environment build --refresh` resolves anew"
        )
    if match := _DENIED.search(text):
        return f"the index wants credentials or does not accept them (HTTP {match[1]}): see packages.secret"
    if match := _UNKNOWN.search(text):
        where = "in packages.wheels" if config.offline else f"in the index {config.index}"
        return f"there is no package '{match[1]}' {where}"
    if match := _NO_WHEEL.search(text):
        where = "this platform" if other is None else str(other)
        return f"'{match[1]}' has no wheel for {where} (the {match[2].strip()} does not fit). {_hints(text)}"
    if match := _SOURCE.search(text):
        version = f" {match[2]}" if match[2] else ""
        if other is not None:
            rule = (
                f"'{match[1]}'{version} has no wheel, only a source distribution, and only wheels are taken for {other}"
            )
            return f"{rule}: ask for another version, or use an image with the Python and the platform of this server"
        return (
            f"'{match[1]}'{version} has no wheel, only a source distribution, and only wheels are taken: "
            f'packages.source = ["{match[1]}"] lets it be built from source, in the build\'s sandbox'
        )
    if match := _BUILD.search(text):
        return f"'{match[1]}' could not be built from source: {_last(text)}"
    if "No solution found" in text:
        return f"the requirements cannot be met together: {_causes(text)}"
    if match := _FETCH.search(text):
        return f"{'the index' if not config.offline else 'a file'} cannot be read: {match[1]}: {_last_cause(text)}"
    return ""


def _causes(text: str) -> str:
    """The paragraph behind ``cause:``, without the steps of a proof: why, not that."""
    _, _, rest = text.partition("cause: ")
    body = " ".join(rest.partition("\nhint:")[0].split())
    body = re.sub(r"(?:And because [^.]*?,|,) we can conclude that your requirements are unsatisfiable\.?$", "", body)
    return body.replace("we can conclude that ", "").strip()


def _last_cause(text: str) -> str:
    return next(reversed(_CAUSES.findall(text)), "it said nothing")


def _hints(text: str) -> str:
    return " ".join(_without_flags(_HINT.findall(text)))


def _without_flags(hints: Iterable[str]) -> list[str]:
    """Drops hints about options of uv's command line, which nobody can set here."""
    return [hint for hint in hints if "`--" not in hint]


def _last(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    start = next((at for at, line in enumerate(lines) if line.startswith(("error:", "Error:"))), max(0, len(lines) - 3))
    return " ".join(lines[start : start + 6])


def _ended(ending: Ending) -> str:
    if ending.outcome is Outcome.EXIT:
        return f"the build ended with code {ending.code} and said nothing"
    if ending.outcome is Outcome.SIGNAL:
        return f"the build was ended by signal {ending.signal}"
    return f"the build's sandbox ended: {ending.reason or ending.outcome.value}"
