"""The e2b backend: one machine of the provider for each sandbox.

The provider keeps all state of them, in their metadata. Agents' keys are made of a secret of this data directory, so
that the metadata alone opens none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillyard.config.backends import E2bSettings
from skillyard.domain.errors import BackendAway, InvalidInput, SandboxFault, SkillyardError, shown
from skillyard.domain.foreign_json import parse_json
from skillyard.domain.sandbox.guarantees import Demand, Level, Nature, Probe
from skillyard.domain.sandbox.spec import DEFAULT_STREAMS, Held, Owner, Program, SandboxSpec, StreamLimits
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import HELLO_S, Opener
from skillyard.sandbox.agent_client import AgentProcess, AgentSandbox, plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.content import ContentCache
from skillyard.sandbox.e2b import alone, stage
from skillyard.sandbox.e2b.account import MEND, checked, fit, groups_of, told_by
from skillyard.sandbox.e2b.channel import CommandChannel
from skillyard.sandbox.e2b.lifetime import Lifetime, span
from skillyard.sandbox.e2b.order import ARCHIVE, LEASE_S, lacking, order, pack
from skillyard.sandbox.e2b.probe import LOOK, NAME, WITHOUT, absent, judge
from skillyard.sandbox.e2b.provider import ROOT, KeyStore, Machine, Provider, unknown
from skillyard.sandbox.e2b.template import guest_name, stage_source
from skillyard.sandbox.guest_argv import bytecode, guest_bundle
from skillyard.sandbox.native.probe import look_inside
from skillyard.sandbox.registry import Kind, Place
from skillyard.sandbox.secret_file import secret_of
from skillyard.sandbox.turns import Turns
from skillyard.threads import answered, to_its_end

if TYPE_CHECKING:
    from e2b import AsyncSandbox

_OURS = "skillyard"
_SERVER, _KEY, _OWNER = f"{_OURS}.server", f"{_OURS}.key", f"{_OURS}.owner"
_NONCE, _TIMEOUT, _ENFORCED = f"{_OURS}.nonce", f"{_OURS}.timeout_ms", f"{_OURS}.enforced"
_HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_BOUND_S = 120.0
_AGAIN_S = 0.5
_LOOK_EVERY_S = 60.0
_NOBODY = "skillyard-nobody"
"""The id of a machine that does not exist: asking for it makes nothing and shows that the provider answers."""
_TRIES = 3
_LOOK_LIMITS = Limits(memory_mb=64, cpus=0.5, pids=32, disk_mb=16, timeout_ms=30_000)
_CHANNEL = (
    f"p={stage.ROOT}/channel.pid; q=$(cat $p 2>/dev/null); "
    '[ -n "$q" ] && grep -qs skillyard /proc/$q/cmdline && kill -9 $q; '
    f"echo $$ > $p; exec python3 -I -S {stage.AGENT} agent text {stage.SOCKET}"
)
"""Opens a channel. The end of the channel before, which nobody reads any more, is ended."""


class E2bSandbox(AgentSandbox):
    """A sandbox whose machine outlives each program that is started in it."""

    lifetime: Lifetime
    began = 0.0
    """By the clock of the provider, or of this server that made it."""

    async def start(
        self,
        program: Program,
        *,
        id: str,
        timeout_ms: int | None = None,
        streams: StreamLimits = DEFAULT_STREAMS,
    ) -> AgentProcess:
        await self.lifetime.cover(self.timeout_ms if timeout_ms is None else timeout_ms)
        return await super().start(program, id=id, timeout_ms=timeout_ms, streams=streams)

    async def close(self) -> None:
        await self.lifetime.close()
        await super().close()


class E2bBackend:
    """Machines of the provider that ``settings`` name. ``state`` has the name and the secret of this server there."""

    name = NAME

    def __init__(self, state: Path, settings: E2bSettings, find: KeyStore | None, gate: Plug | None = None) -> None:
        self._state, self._settings, self._gate = state, settings, gate
        self._provider = Provider(settings, find)
        self._open: dict[str, E2bSandbox] = {}
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._owed: set[str] = set()
        """Machines whose end was asked for and is not confirmed, as while the provider is away."""
        self._creating = Turns()
        self._probing = asyncio.Lock()
        self._look_again_at = 0.0
        self._probe: Probe | None = None
        self._machines: dict[str, Mapping[str, Any]] = {}
        """The stage's account of a machine, by template."""
        self._content = ContentCache(state / "content", self.survey)

    @property
    def nature(self) -> Nature:
        return KIND.nature

    # the probe

    async def probe(self) -> Probe:
        """A failure is not kept: the provider may be there the next time."""
        async with self._probing:
            if self._probe is None:
                found = await self._look()
                if not found.ready:
                    return found
                self._probe = found
            return self._probe

    async def _look(self) -> Probe:
        template = self._settings.template
        address = self._settings.api_url or self._settings.domain
        facts = {"template": template, "provider": address}
        if not template:
            return absent(f"no template is named; {MEND}", facts)
        try:
            spec = SandboxSpec(limits=_LOOK_LIMITS)
            sandbox = await self._make(spec, f"probe-{secrets.token_hex(8)}", template, {})
            try:
                seen = await look_inside(sandbox, LOOK, bound_ms=_LOOK_LIMITS.timeout_ms)
                egress = await sandbox.way_out.look(sandbox, Level.PROVIDER)
            finally:
                await self.destroy(sandbox.handle)
            return judge(seen, self._machines[template], facts, egress)
        except BackendAway as error:
            return absent(error.message, facts, away=True)
        except SkillyardError as error:
            return absent(error.message, facts)
        except (LookupError, TypeError, ValueError) as error:
            return absent(f"a test machine tells nothing that we understand: {error}"[:300], facts, MEND)

    # the life of a sandbox

    async def create(self, spec: SandboxSpec, key: str) -> E2bSandbox:
        probe = await self.probe()
        if not probe.ready:
            raise SandboxFault(f"no machine can be had: {probe.facts.get('why', '')}")
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name, "image", *({"terminals"} & probe.abilities.keys()))
        if spec.egress is not None:
            probe.demand("egress")
        template = self._template(spec)
        async with self._creating.of(key):
            try:
                async with self._content.placed(spec, key) as placed:
                    sandbox = await self._make(placed, key, template, probe.enforced())
                return await plugged(sandbox, spec.egress, self.destroy)
            finally:
                self._content.release(key)  # it was uploaded

    def _template(self, spec: SandboxSpec) -> str:
        """Returns the template of a spec. Raises InvalidInput."""
        ours = self._settings
        if spec.image and spec.image not in (ours.template, *ours.templates):
            raise InvalidInput("image", "must be one of e2b.templates", shown(spec.image))
        template = spec.image or ours.environments.get(spec.environment.name, ours.template)
        if (seen := self._machines.get(template)) is not None:
            fit(spec, template, seen)
        return template

    async def _found(self, key: str, nonce: str) -> str | None:
        """Returns the live machine of ``key``, beside the new one with ``nonce``; others are ended."""
        ours = [one async for one in self._provider.list({_SERVER: self._server(), _KEY: key})]
        ours = [one for one in ours if one.metadata.get(_NONCE) != nonce]
        live = sorted((one for one in ours if one.running), key=lambda one: (one.started, one.id))
        for one in ours:
            if one not in live[:1]:
                await self._provider.kill(one.id)
        return live[0].id if live else None

    async def _make(self, spec: SandboxSpec, key: str, template: str, enforced: Mapping[str, str]) -> E2bSandbox:
        nonce = secrets.token_hex(16)
        metadata = {
            _SERVER: self._server(),
            _KEY: key,
            _OWNER: spec.owner.value,
            _NONCE: nonce,
            _TIMEOUT: str(spec.limits.timeout_ms),
            _ENFORCED: json.dumps(dict(enforced), separators=(",", ":")),
        }
        ttl_s = span(spec.limits.timeout_ms, self._settings.max_ttl_s)
        # A machine of this key, as an earlier server left it, is rare: nobody waits for the answer that there is none.
        earlier = asyncio.create_task(self._found(key, nonce))
        try:
            machine = await answered(self._created(template, metadata, ttl_s))
            began = time.time()
            if (found := await earlier) is not None:
                await self._provider.kill(machine.sandbox_id)
                return await self.attach(found)
            channel = await self._set_up(machine, spec, template, self._key_of(nonce))
            sandbox = await self._attached(machine, metadata, ttl_s, began, channel)
        except BaseException:
            earlier.cancel()
            await asyncio.gather(earlier, return_exceptions=True)
            await asyncio.shield(self._remove(key, nonce))
            raise
        sandbox.new = True
        return sandbox

    async def _created(self, template: str, metadata: Mapping[str, str], ttl_s: int) -> AsyncSandbox:
        """Returns a new machine. A request whose answer was lost is repeated under its key, and makes none twice."""
        key = secrets.token_hex(16)
        for _ in range(_TRIES - 1):
            try:
                return await self._provider.create(template, metadata, ttl_s, key)
            except BackendAway:
                await asyncio.sleep(_AGAIN_S)
        return await self._provider.create(template, metadata, ttl_s, key)

    async def _set_up(self, machine: AsyncSandbox, spec: SandboxSpec, template: str, key: bytes) -> CommandChannel:
        """Has the stage of a machine make the sandbox; returns the first channel to its agent.

        Raises SandboxFault.
        """
        known = self._machines.get(template)
        if known is None and not await alone.has_root(self._provider, machine):
            known = self._machines[template] = await alone.account(self._provider, machine)
        if known is not None and not known["root"]:
            fit(spec, template, known)
            alone.refuse(spec, template)
            channel = await alone.begun(self._provider, machine, spec, key, known, self._ends(machine))
            channel.opens_with(partial(_begins, channel))
            return channel
        source = f"{stage.ROOT}/stage-{hashlib.sha256(stage_source()).hexdigest()[:16]}.py"
        if known is None:
            await self._upload(machine, source, stage_source())
            known = self._machines[template] = checked(await self._looked(machine, source))
        guest = f"{stage.BAKED}/guests/{guest_name()}.pyz"
        fit(spec, template, known)
        uploads: dict[str, bytes] = {}
        script, compiled = stage_source(), bytecode("stage.py", stage_source())
        ours = known["python"] == [*sys.version_info[:2]]  # it need not be compiled there
        if ours and known["compiled"] == hashlib.sha256(compiled).hexdigest():
            source = f"{stage.BAKED}/stage.pyc"
        elif known["stage"] == hashlib.sha256(script).hexdigest():
            source = f"{stage.BAKED}/stage.py"
        elif ours:
            source = f"{source}c"
            uploads[source] = compiled
        else:
            uploads[source] = script
        if guest_name() not in known["guests"]:
            guest = f"{stage.ROOT}/{guest_name()}.pyz"
            uploads[guest] = guest_bundle()
        given = order(spec, key.hex(), guest, int(known["processors"]))
        if content := lacking(spec, frozenset(known["content"])):
            with tempfile.TemporaryFile() as packed:
                await to_its_end(pack, content, packed)
                packed.seek(0)
                await self._upload(machine, ARCHIVE, packed)
        await asyncio.gather(*(self._upload(machine, path, data) for path, data in uploads.items()))
        command = f"exec python3 -I -S {source} start {guest}"
        channel = await CommandChannel.open(self._provider, machine, command, self._ends(machine))

        async def told() -> None:
            try:
                self._machines[template] = {**known, "groups": await groups_of(channel)}
            except BaseException:
                self._machines.pop(template, None)  # it may have been built anew
                raise

        # The agent's first words follow in the same request.
        said = json.dumps(given).encode()
        channel.write(b"%08x" % len(said) + said)
        channel.opens_with(told)
        return channel

    def _ends(self, machine: AsyncSandbox) -> Callable[[], bool]:
        return lambda: str(machine.sandbox_id) in self._destroying

    async def _upload(self, machine: AsyncSandbox, path: str, data: Any) -> None:
        with self._provider.told():
            await machine.files.write(path, data, user=ROOT, use_octet_stream=True, request_timeout=_BOUND_S)

    async def _looked(self, machine: AsyncSandbox, source: str) -> Mapping[str, Any]:
        """Returns what the stage tells of a machine. Raises SandboxFault with its reason."""
        from e2b import CommandExitException

        with self._provider.told():
            try:
                ended: Any = await machine.commands.run(
                    f"exec python3 -I -S {source} look", user=ROOT, cwd="/", timeout=_BOUND_S
                )
            except CommandExitException as error:
                ended = error
        return told_by(ended.stdout.encode(errors="replace"), ended.stderr)

    async def attach(self, handle: str) -> E2bSandbox:
        if (sandbox := self._open.get(handle)) is not None:
            return sandbox
        found = await self._provider.find(handle) if _HANDLE.fullmatch(handle) else None
        if found is None or not found.running or not self._is_ours(found):
            raise unknown(handle)
        ttl_s = span(_timeout_ms(found), self._settings.max_ttl_s)
        machine = await self._provider.connect(handle, ttl_s)
        return await self._attached(machine, found.metadata, ttl_s, found.started)

    async def _attached(
        self,
        machine: AsyncSandbox,
        metadata: Mapping[str, str],
        ttl_s: int,
        began: float,
        channel: CommandChannel | None = None,
    ) -> E2bSandbox:
        try:
            owner, timeout_ms = Owner(metadata[_OWNER]), int(metadata[_TIMEOUT])
            enforced = {
                str(name): str(level)
                for name, level in parse_json(metadata[_ENFORCED].encode(errors="replace")).items()
            }
            key = self._key_of(metadata[_NONCE])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise SandboxFault(f"the provider changed the metadata of {shown(machine.sandbox_id)}") from None
        lease_s = LEASE_S if owner is Owner.RUN else None
        handle = str(machine.sandbox_id)
        if not _HANDLE.fullmatch(handle):
            raise SandboxFault(f"the provider names a machine {shown(handle)}, which cannot be")
        reach = Reach(self._opener(machine, channel, key), key, first_s=HELLO_S if channel is None else _BOUND_S)
        sandbox = E2bSandbox(reach, handle, enforced, timeout_ms=timeout_ms, lease_s=lease_s, gate=self._gate)
        sandbox.lifetime = Lifetime(self._provider, handle, ttl_s, self._settings.max_ttl_s, ttl_s)
        sandbox.began = began
        try:
            await sandbox.connect()
        except BaseException:
            await sandbox.close()
            raise
        return self._open.setdefault(handle, sandbox)

    def _opener(self, machine: AsyncSandbox, first: CommandChannel | None, key: bytes) -> Opener:
        opened = [] if first is None else [first]
        ways: list[Callable[[], Awaitable[CommandChannel]]] = []
        ends = self._ends(machine)

        async def open_channel() -> tuple[CommandChannel, CommandChannel]:
            if opened:
                channel = opened.pop()
                return channel, channel
            while True:
                try:
                    if not ways:
                        by_root = await alone.has_root(self._provider, machine)
                        here = self._provider, machine
                        command = partial(CommandChannel.open, *here, _CHANNEL, ends)
                        ways.append(command if by_root else partial(alone.joined, *here, key, ends))
                    channel = await ways[0]()
                except BackendAway:
                    # A provider that was unreachable for a moment is there again. The channel bounds the wait.
                    await asyncio.sleep(_AGAIN_S)
                else:
                    return channel, channel

        return open_channel

    async def survey(self) -> Sequence[Held]:
        now = time.time()
        ours = [one async for one in self._provider.list({_SERVER: self._server()})]
        found = [one for one in ours if _HANDLE.fullmatch(one.id)]
        return [Held(one.id, one.metadata.get(_KEY, ""), _owner(one), max(0.0, now - one.started)) for one in found]

    async def standing(self) -> int:
        return sum([_SERVER in one.metadata async for one in self._provider.list({})])

    def counts(self) -> dict[str, int]:
        return {"lent": len(self._open), "ready": 0}

    async def destroy(self, handle: str) -> Usage:
        if handle not in self._destroying:
            self._owed.add(handle)
            task = self._destroying[handle] = asyncio.create_task(self._destroy(handle))
            task.add_done_callback(lambda _: self._destroying.pop(handle))
        return await asyncio.shield(self._destroying[handle])

    async def _destroy(self, handle: str) -> Usage:
        sandbox, used = self._open.pop(handle, None), Usage()
        if sandbox is not None:  # it is ours, and lived until now
            if not sandbox.at_rest:
                with suppress(SandboxFault):
                    used = await sandbox.end()
            await sandbox.close()
            began = sandbox.began
        else:
            found = await self._provider.find(handle) if _HANDLE.fullmatch(handle) else None
            if found is None or not self._is_ours(found):
                self._owed.discard(handle)
                return Usage()
            began = found.started
        async with asyncio.timeout(_BOUND_S):
            await self._provider.kill(handle)  # its answer says that the machine is gone
        self._owed.discard(handle)
        return Usage(used.cpu_ms, used.peak_memory_bytes, max(0.0, time.time() - began) * 1000)

    async def _remove(self, key: str, nonce: str) -> None:
        """Ends the machine of a failed :meth:`_make`. Where that fails too, its time or the survey ends it."""
        with suppress(SkillyardError, TimeoutError):
            async for one in self._provider.list({_SERVER: self._server(), _KEY: key, _NONCE: nonce}):
                await self._provider.kill(one.id)

    async def reach(self) -> None:
        """Asks the provider once a minute, or at each look while it is silent.

        Providers count calls.
        """
        if time.monotonic() < self._look_again_at:
            return
        try:
            await self._provider.find(_NOBODY)
        except BackendAway:
            self._probe, self._look_again_at = None, 0.0
            raise
        except (InvalidInput, SandboxFault):  # it answered, or is not asked before the settings are mended
            pass
        self._look_again_at = time.monotonic() + _LOOK_EVERY_S

    async def prepare(self, spec: SandboxSpec) -> None:
        """Makes nothing ahead."""

    async def close(self) -> None:
        for handle, sandbox in list(self._open.items()):
            with suppress(SandboxFault):
                found = await self._provider.find(handle)
                if found is None or _owner(found) is not Owner.TASK:
                    await self.destroy(handle)
            await sandbox.close()
        self._open.clear()
        for handle in tuple(self._owed):
            with suppress(SkillyardError, TimeoutError):
                await self.destroy(handle)

    # names

    def _is_ours(self, machine: Machine) -> bool:
        return machine.metadata.get(_SERVER) == self._server()

    def _server(self) -> str:
        """Returns the name of this data directory at the provider. Machines of others are left alone."""
        return hmac.digest(secret_of(self._state), b"server", "sha256").hex()[:32]

    def _key_of(self, nonce: str) -> bytes:
        return hmac.digest(secret_of(self._state), f"agent {nonce}".encode(), "sha256")


async def _begins(channel: CommandChannel) -> None:
    await groups_of(channel)


def _owner(machine: Machine) -> Owner:
    return Owner.TASK if machine.metadata.get(_OWNER) == Owner.TASK else Owner.RUN


def _timeout_ms(machine: Machine) -> float:
    text = machine.metadata.get(_TIMEOUT, "")
    return float(text) if text.isdecimal() and len(text) < 12 else 0.0


def _make(place: Place) -> E2bBackend:
    return E2bBackend(place.run_dir / "e2b", place.settings.e2b, place.secret, place.plug)


KIND = Kind(Nature(without=WITHOUT, remote=True), _make)
