"""The e2b backend: one machine of the provider for each sandbox."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillyard.config.backends import E2bSettings
from skillyard.domain.errors import BackendAway, InvalidInput, SandboxFault, SkillyardError, shown
from skillyard.domain.package.platforms import foreign
from skillyard.domain.sandbox.guarantees import Level, Nature, Probe, Protection
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import Agreed, Opener
from skillyard.sandbox.e2b import alone, stage
from skillyard.sandbox.e2b.account import MEND, begun_of, checked, fit, told_by
from skillyard.sandbox.e2b.channel import CommandChannel
from skillyard.sandbox.e2b.lifetime import span
from skillyard.sandbox.e2b.order import lacking, order, pack
from skillyard.sandbox.e2b.probe import LOOK, NAME, WITHOUT, absent, judge
from skillyard.sandbox.e2b.provider import ROOT, KeyStore, Provider
from skillyard.sandbox.e2b.remote import (
    AGAIN_S,
    BOUND_S,
    NOBODY,
    NONCE,
    TIMEOUT,
    Remote,
    RemoteBackend,
    RemoteSandbox,
)
from skillyard.sandbox.e2b.template import fixed_part, guest_name, stage_bytecode, stage_source, waiting_place
from skillyard.sandbox.guest_argv import guest_bundle
from skillyard.sandbox.native.probe import look_inside
from skillyard.sandbox.registry import Kind, Place
from skillyard.threads import to_its_end

if TYPE_CHECKING:
    from e2b import AsyncSandbox

_LOOK_EVERY_S = 60.0
_TRIES = 3
_WITHIN, _BEHIND = 32 * 1024, 256 * 1024
"""Bytes of content that come within the order, or behind it: more is uploaded, in a request of its own."""
_LOOK_LIMITS = Limits(memory_mb=64, cpus=0.5, pids=32, disk_mb=16, timeout_ms=30_000)
_MOST_WITH = 64 * 1024
"""Bytes of an order that come with the command: a longer one follows as its input."""
_ORDER = "SKILLYARD_ORDER"
_START = f"""\
d={{place}}
if [ -p $d/order ] && read -r p <$d/pid && kill -0 $p 2>/dev/null; then
exec {stage.ENDS[0]}<&0 {stage.ENDS[1]}>&1
printf '%s %s\\n' $$ "${_ORDER}" >$d/order
read -r c <$d/over
exit $c
fi
exec 3<<<"${_ORDER}"
unset {_ORDER}
{{start}} 3
"""
"""Gives the order to the stage that waits in the template, or to one that starts now where none does."""
_CHANNEL = (
    f"p={stage.ROOT}/channel.pid; q=$(cat $p 2>/dev/null); "
    '[ -n "$q" ] && grep -qs skillyard /proc/$q/cmdline && kill -9 $q; '
    f"echo $$ > $p; exec python3 -I -S {stage.AGENT} agent text {stage.SOCKET}"
)
"""Opens a channel. The end of the channel before, which nobody reads any more, is ended."""


class E2bBackend(RemoteBackend["AsyncSandbox"]):
    """Machines of the provider that ``settings`` name. ``state`` has the name and the secret of this server there."""

    name = NAME

    def __init__(self, state: Path, settings: E2bSettings, find: KeyStore | None, gate: Plug | None = None) -> None:
        self._provider = Provider(settings, find)
        super().__init__(state, self._provider, settings.max_ttl_s, gate)
        self._settings = settings
        self._look_again_at = 0.0
        self._machines: dict[str, Mapping[str, Any]] = {}
        """The stage's account of a machine, by template."""

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def _look(self) -> Probe:
        template = self._settings.template
        address = self._settings.api_url or self._settings.domain
        facts = {"template": template, "provider": address}
        if not template:
            return absent(f"no template is named; {MEND}", facts)
        try:
            seen, egress = await self._looked_at(template)
            return judge(seen, self._machines[template], facts, egress)
        except BackendAway as error:
            return absent(error.message, facts, away=True)
        except SkillyardError as error:
            return absent(error.message, facts)
        except (LookupError, TypeError, ValueError) as error:
            return absent(f"a test machine tells nothing that we understand: {error}"[:300], facts, MEND)

    async def _looked_at(self, template: str) -> tuple[Mapping[str, Any], Protection]:
        """Returns what a program sees in a machine of a template, and its way out. Raises SkillyardError."""
        sandbox = await self._make(SandboxSpec(limits=_LOOK_LIMITS), f"probe-{secrets.token_hex(8)}", template, {})
        try:
            seen = await look_inside(sandbox, LOOK, bound_ms=_LOOK_LIMITS.timeout_ms)
            egress = await sandbox.way_out.look(sandbox, Level.PROVIDER)
        finally:
            await self.destroy(sandbox.handle)
        return seen, egress

    async def _interpreter(self, of: str) -> object:
        if of not in self._machines:
            await self._looked_at(of)
        return self._machines.get(of, {}).get("interpreter")

    async def _fit(self, spec: SandboxSpec, probe: Probe) -> str:  # noqa: ARG002 - one template's probe is every one's
        ours = self._settings
        if spec.image and spec.image not in (ours.template, *ours.templates):
            raise InvalidInput("image", "must be one of e2b.templates", shown(spec.image))
        template = spec.image or ours.environments.get(spec.environment.name, ours.template)
        if (seen := self._machines.get(template)) is not None:
            fit(spec, template, seen)
        return template

    def _id(self, machine: AsyncSandbox) -> str:
        return str(machine.sandbox_id)

    async def _set_up(
        self, machine: AsyncSandbox, spec: SandboxSpec, of: str, metadata: Mapping[str, str]
    ) -> RemoteSandbox:
        key = self.agent_key(metadata[NONCE])
        channel, agreed = await self._staged(machine, spec, of, key)
        opener = self._opener(machine, channel, key)
        return await self.joined(self._id(machine), metadata, opener, first_s=BOUND_S, agreed=agreed)

    async def _rejoined(self, found: Remote) -> RemoteSandbox:
        machine = await self._provider.connect(found.id, span(_timeout_ms(found), self._max_ttl_s))
        opener = self._opener(machine, None, self.agent_key(found.metadata.get(NONCE, "")))
        return await self.joined(found.id, found.metadata, opener, began=found.started)

    async def _new(self, spec: SandboxSpec, of: str, metadata: Mapping[str, str], ttl_s: int) -> AsyncSandbox:  # noqa: ARG002
        """Returns a new machine. A request whose answer was lost is repeated under its key, and makes none twice."""
        key = secrets.token_hex(16)
        for _ in range(_TRIES - 1):
            try:
                return await self._provider.create(of, metadata, ttl_s, key)
            except BackendAway:
                await asyncio.sleep(AGAIN_S)
        return await self._provider.create(of, metadata, ttl_s, key)

    async def _staged(
        self, machine: AsyncSandbox, spec: SandboxSpec, template: str, key: bytes
    ) -> tuple[CommandChannel, Agreed | None]:
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
            return channel, None
        source = f"{stage.ROOT}/stage-{hashlib.sha256(stage_source()).hexdigest()[:16]}.py"
        if known is None:
            await self._upload(machine, source, stage_source())
            known = self._machines[template] = checked(await self._looked(machine, source))
        guest = f"{stage.BAKED}/guests/{guest_name()}.pyz"
        fit(spec, template, known)
        uploads: dict[str, bytes] = {}
        script, compiled = stage_source(), stage_bytecode()
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
        nonce = secrets.token_hex(16)
        given, archive = order(spec, key.hex(), guest, int(known["processors"]), nonce), b""
        if content := lacking(spec, frozenset(known["content"])):
            with tempfile.TemporaryFile() as packed:
                await to_its_end(pack, content, packed)
                size = packed.tell()
                packed.seek(0)
                if size <= _WITHIN:
                    given["packed"] = base64.b64encode(packed.read()).decode()
                elif size <= _BEHIND:
                    given["archive"], archive = True, packed.read()
                else:
                    await self._upload(machine, stage.ARCHIVE, packed)
        await asyncio.gather(*(self._upload(machine, path, data) for path, data in uploads.items()))
        command, envs = f"exec python3 -I -S {source} start {guest}", {}
        if guest_name() in known["guests"] and known["fixed"] == hashlib.sha256(fixed_part()).hexdigest():
            del given["fixed"]
        said, first = json.dumps(given), archive
        if "fixed" not in given and len(said) <= _MOST_WITH:
            command, envs = _START.format(place=waiting_place(), start=command), {_ORDER: said}
        else:
            first = b"%08x" % len(said) + said.encode() + archive
        channel = await CommandChannel.open(self._provider, machine, command, self._ends(machine), envs=envs)

        async def told() -> None:
            try:
                groups, interpreter = await begun_of(channel)
                if spec.environment.packages is not None:
                    spec.environment.check_fits(foreign(interpreter))
                self._machines[template] = {**known, "groups": groups}
            except BaseException:
                self._machines.pop(template, None)  # it may have been built anew
                raise

        # The agent's first words follow in the same request.
        channel.write(first)
        channel.opens_with(told)
        return channel, Agreed(nonce, channel.opened)

    def _ends(self, machine: AsyncSandbox) -> Callable[[], bool]:
        return lambda: str(machine.sandbox_id) in self._destroying

    async def _upload(self, machine: AsyncSandbox, path: str, data: Any) -> None:
        with self._provider.told():
            await machine.files.write(path, data, user=ROOT, use_octet_stream=True, request_timeout=BOUND_S)

    async def _looked(self, machine: AsyncSandbox, source: str) -> Mapping[str, Any]:
        """Returns what the stage tells of a machine. Raises SandboxFault with its reason."""
        from e2b import CommandExitException

        with self._provider.told():
            try:
                ended: Any = await machine.commands.run(
                    f"exec python3 -I -S {source} look", user=ROOT, cwd="/", timeout=BOUND_S
                )
            except CommandExitException as error:
                ended = error
        return told_by(ended.stdout.encode(errors="replace"), ended.stderr)

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
                    await asyncio.sleep(AGAIN_S)
                else:
                    return channel, channel

        return open_channel

    async def reach(self) -> None:
        """Asks the provider once a minute, or at each look while it is silent.

        Providers count calls.
        """
        if time.monotonic() < self._look_again_at:
            return
        try:
            await self._provider.find(NOBODY)
        except BackendAway:
            self._probe, self._look_again_at = None, 0.0
            raise
        except (InvalidInput, SandboxFault):  # it answered, or is not asked before the settings are mended
            pass
        self._look_again_at = time.monotonic() + _LOOK_EVERY_S


async def _begins(channel: CommandChannel) -> None:
    await begun_of(channel)


def _timeout_ms(machine: Remote) -> float:
    text = machine.metadata.get(TIMEOUT, "")
    return float(text) if text.isdecimal() and len(text) < 12 else 0.0


def _make(place: Place) -> E2bBackend:
    return E2bBackend(place.run_dir / "e2b", place.settings.e2b, place.secret, place.plug)


KIND = Kind(Nature(without=WITHOUT, remote=True), _make)
