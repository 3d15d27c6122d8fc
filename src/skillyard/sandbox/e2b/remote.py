"""Backends over a provider: it keeps one machine for each sandbox of ours.

The provider keeps all state of them, in their metadata. Agents' keys are made of a secret of this data directory, so
that the metadata alone opens none.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from skillyard.domain.errors import BackendAway, SandboxFault, SandboxGone, SkillyardError, shown
from skillyard.domain.foreign_json import parse_json
from skillyard.domain.package.platforms import Platform, foreign
from skillyard.domain.sandbox.guarantees import Demand, Nature, Probe
from skillyard.domain.sandbox.spec import DEFAULT_STREAMS, Held, Owner, Program, SandboxSpec, StreamLimits
from skillyard.domain.work.limits import MINIMUM
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import HELLO_S, Agreed, Opener
from skillyard.sandbox.agent_client import AgentProcess, AgentSandbox, plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.content import ContentCache
from skillyard.sandbox.e2b.lifetime import Lifetime, Renewer, span
from skillyard.sandbox.e2b.order import LEASE_S
from skillyard.sandbox.secret_file import secret_of
from skillyard.sandbox.turns import Turns
from skillyard.threads import answered

SERVER, KEY, OWNER = "skillyard.server", "skillyard.key", "skillyard.owner"
NONCE, TIMEOUT, ENFORCED = "skillyard.nonce", "skillyard.timeout_ms", "skillyard.enforced"
NOBODY = "skillyard-nobody"
"""The id of a machine that does not exist: asking for it makes nothing and shows that the provider answers."""
BOUND_S, AGAIN_S = 120.0, 0.5
_HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

R = TypeVar("R")


class Remote(Protocol):
    """A machine as its provider tells of it. ``started`` is by the provider's clock."""

    @property
    def id(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...
    @property
    def started(self) -> float: ...
    @property
    def running(self) -> bool: ...


class Remotes(Renewer, Protocol):
    """The calls of a provider that all of them have. They raise SandboxFault."""

    async def find(self, id: str, /) -> Remote | None: ...
    def list(self, metadata: Mapping[str, str], /) -> AsyncIterator[Remote]: ...
    async def kill(self, id: str, /) -> None: ...


class RemoteSandbox(AgentSandbox):
    """A sandbox whose machine outlives each program that is started in it."""

    lifetime: Lifetime
    named = "", ""
    """The key of its machine, and the nonce."""
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


class RemoteBackend(Generic[R]):
    """Machines of a provider, which gives each as an ``R``.

    ``state`` has the name and the secret of this data directory there.
    """

    name: str
    machine = "machine"
    """A word for one in messages."""

    def __init__(self, state: Path, remotes: Remotes, max_ttl_s: int, gate: Plug | None) -> None:
        self._state, self._remotes, self._max_ttl_s, self._gate = state, remotes, max_ttl_s, gate
        self._open: dict[str, RemoteSandbox] = {}
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._owed: set[str] = set()
        """Machines whose end was asked for and is not confirmed, as while the provider is away."""
        self._creating = Turns()
        self._listing = asyncio.Lock()
        self._keys: dict[str, str] | None = None
        """Keys that may have a machine there, and its nonce: of earlier servers, and ours until their end."""
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._content = ContentCache(state / "content", self.survey)

    @property
    @abstractmethod
    def nature(self) -> Nature: ...

    @abstractmethod
    async def _look(self) -> Probe:
        """Looks around in a test machine."""

    @abstractmethod
    async def _fit(self, spec: SandboxSpec, probe: Probe) -> str:
        """Returns the template or image for a spec. Raises InvalidInput, SandboxFault where it does not fit."""

    @abstractmethod
    async def _interpreter(self, of: str) -> object:
        """Returns what the interpreter of a template or image told of itself. Raises SandboxFault."""

    @abstractmethod
    async def _new(self, spec: SandboxSpec, of: str, metadata: Mapping[str, str], ttl_s: int) -> R:
        """Has the provider make a machine. Raises SandboxFault."""

    @abstractmethod
    def _id(self, machine: R) -> str: ...

    @abstractmethod
    async def _set_up(self, machine: R, spec: SandboxSpec, of: str, metadata: Mapping[str, str]) -> RemoteSandbox:
        """Starts the agent in a new machine, and joins it. Raises SandboxFault."""

    @abstractmethod
    async def _rejoined(self, found: Remote) -> RemoteSandbox:
        """Joins the agent of a machine that runs. Raises SandboxFault."""

    # the life of a sandbox

    async def probe(self) -> Probe:
        """A failure is not kept: the provider may be there the next time."""
        async with self._probing:
            if self._probe is None:
                found = await self._look()
                if not found.ready:
                    return found
                self._probe = found
            return self._probe

    async def platform_of(self, spec: SandboxSpec) -> Platform | None:
        of = await self._fit(replace(spec, limits=MINIMUM), await self.probe())
        return foreign(await self._interpreter(of))

    async def create(self, spec: SandboxSpec, key: str) -> RemoteSandbox:
        probe = await self.probe()
        if not probe.ready:
            raise SandboxFault(f"no {self.machine} can be had: {probe.facts.get('why', '')}")
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name, "image", *({"terminals"} & probe.abilities.keys()))
        if spec.egress is not None:
            probe.demand("egress")
        async with self._creating.of(key):
            of = await self._fit(spec, probe)
            if spec.environment.packages is not None:
                spec.environment.check_fits(foreign(await self._interpreter(of)))
            try:
                async with self._content.placed(spec, key) as placed:
                    sandbox = await self._make(placed, key, of, probe.enforced())
                return await plugged(sandbox, spec.egress, self.destroy)
            finally:
                self._content.release(key)  # it was uploaded

    async def _make(self, spec: SandboxSpec, key: str, of: str, enforced: Mapping[str, str]) -> RemoteSandbox:
        nonce = secrets.token_hex(16)
        metadata = {
            SERVER: self.server,
            OWNER: spec.owner.value,
            NONCE: nonce,
            TIMEOUT: str(spec.limits.timeout_ms),
            **self.named(key),
            **self.packed(KEY, key),
            **self.packed(ENFORCED, json.dumps(dict(enforced), separators=(",", ":"))),
        }
        earlier, id = None, ""
        if await self._may_have(key, nonce):  # nobody waits for the answer that there is none
            earlier = asyncio.create_task(self._found(key, nonce))
        try:
            machine = await answered(self._new(spec, of, metadata, span(spec.limits.timeout_ms, self._max_ttl_s)))
            began = time.time()
            if not _HANDLE.fullmatch(self._id(machine)):
                raise SandboxFault(f"the provider names a machine {shown(self._id(machine))}, which cannot be")
            id = self._id(machine)
            if earlier is not None and (found := await earlier) is not None:
                await self._end(id)
                return await self.attach(found)
            sandbox = await self._set_up(machine, spec, of, metadata)
        except BaseException as error:
            if earlier is not None:
                earlier.cancel()
                await asyncio.gather(earlier, return_exceptions=True)
            refused = not id and isinstance(error, SandboxFault) and not isinstance(error, BackendAway)
            await asyncio.shield(self._remove(key, nonce, id, refused=refused))
            raise
        sandbox.new, sandbox.began = True, began
        return sandbox

    async def _may_have(self, key: str, nonce: str) -> bool:
        """Returns whether a machine of this key may be there, and notes the new one. Raises SandboxFault."""
        async with self._listing:
            if self._keys is None:
                ours = [one async for one in self._remotes.list({SERVER: self.server})]
                self._keys = {self._key(one): one.metadata.get(NONCE, "") for one in ours}
        known = key in self._keys
        self._keys[key] = nonce
        return known

    def may_have(self, prefix: str, but: str | None) -> bool:
        """Returns what :class:`skillyard.ports.sandbox.Remembering` asks for."""
        if self._keys is None:
            return True
        known = self._open[but].named if but in self._open else None
        return any(one != known for one in self._keys.items() if one[0].startswith(prefix))

    def _ended(self, key: str, nonce: str) -> None:
        """Notes that the machine of a key is gone, where it is the last one that was made for it."""
        if self._keys is not None and self._keys.get(key) == nonce:
            del self._keys[key]

    async def _found(self, key: str, nonce: str) -> str | None:
        """Returns the live machine of ``key``, beside the new one with ``nonce``; others are ended."""
        ours = [one async for one in self._remotes.list({SERVER: self.server, **self.named(key)})]
        ours = [one for one in ours if one.metadata.get(NONCE) != nonce]
        live = sorted((one for one in ours if one.running), key=lambda one: (one.started, one.id))
        for one in ours:
            if one not in live[:1]:
                await self._end(one.id)
        return live[0].id if live else None

    async def _remove(self, key: str, nonce: str, id: str, *, refused: bool) -> None:
        """Ends the machine of a failed :meth:`_make`. Where that fails too, its time or the survey ends it.

        A provider's list may leave out one that it has just made, or is still making: then ``id`` names it, or the key
        stays noted. Where the provider ``refused`` to make one there is none.
        """
        with suppress(SkillyardError, TimeoutError):
            ended = {id} if id else set()
            if id:
                await self._end(id)
            async for one in self._remotes.list({SERVER: self.server, **self.named(key), NONCE: nonce}):
                if one.id not in ended:
                    await self._end(one.id)
                    ended.add(one.id)
            if ended or refused:
                self._ended(key, nonce)

    async def attach(self, handle: str) -> RemoteSandbox:
        if (sandbox := self._open.get(handle)) is not None:
            return sandbox
        found = await self._remotes.find(handle) if _HANDLE.fullmatch(handle) else None
        if found is None or not found.running or not self._is_ours(found):
            raise unknown(handle)
        return await self._rejoined(found)

    async def joined(
        self,
        handle: str,
        metadata: Mapping[str, str],
        opener: Opener,
        *,
        left_s: float | None = None,
        began: float = 0.0,
        image: str = "",
        first_s: float = HELLO_S,
        agreed: Agreed | None = None,
    ) -> RemoteSandbox:
        """Joins an agent. ``left_s`` are certain for its machine, by default its whole span. Raises SandboxFault."""
        try:
            told = parse_json(self.unpacked(ENFORCED, metadata).encode(errors="replace")).items()
            enforced = {str(name): str(level) for name, level in told}
            owner, timeout_ms, nonce = Owner(metadata[OWNER]), int(metadata[TIMEOUT]), metadata[NONCE]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise SandboxFault(f"the provider changed the metadata of {shown(handle)}") from None
        reach = Reach(opener, self.agent_key(nonce), first_s=first_s, agreed=agreed)
        lease_s, gate = LEASE_S if owner is Owner.RUN else None, self._gate
        sandbox = RemoteSandbox(reach, handle, enforced, timeout_ms=timeout_ms, lease_s=lease_s, image=image, gate=gate)
        span_s = span(timeout_ms, self._max_ttl_s)
        left_s = span_s if left_s is None else left_s
        sandbox.lifetime = Lifetime(self._remotes, handle, span_s, self._max_ttl_s, left_s)
        sandbox.began, sandbox.named = began, (self._named(metadata), nonce)
        try:
            await sandbox.connect()
        except BaseException:
            await sandbox.close()
            raise
        return self._open.setdefault(handle, sandbox)

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
            began, named = sandbox.began, sandbox.named
        else:
            found = await self._remotes.find(handle) if _HANDLE.fullmatch(handle) else None
            if found is None or not self._is_ours(found):
                self._owed.discard(handle)
                return Usage()
            began, named = found.started, (self._key(found), found.metadata.get(NONCE, ""))
        async with asyncio.timeout(BOUND_S):
            # What the provider does takes longer than to let go of the channel.
            closing = () if sandbox is None else (sandbox.close(),)
            for done in await asyncio.gather(self._end(handle), *closing, return_exceptions=True):
                if done is not None:
                    raise done
        self._owed.discard(handle)
        self._ended(*named)
        return Usage(used.cpu_ms, used.peak_memory_bytes, max(0.0, time.time() - began) * 1000)

    async def _end(self, id: str) -> None:
        """Ends a machine; returns when the provider does not have it any more. Raises SandboxFault."""
        await self._remotes.kill(id)

    async def survey(self) -> Sequence[Held]:
        now = time.time()
        ours = [one async for one in self._remotes.list({SERVER: self.server})]
        found = [one for one in ours if _HANDLE.fullmatch(one.id)]
        return [Held(one.id, self._key(one), _owner(one), max(0.0, now - one.started)) for one in found]

    async def standing(self) -> int:
        return sum([SERVER in one.metadata async for one in self._remotes.list({})])

    def counts(self) -> dict[str, int]:
        return {"lent": len(self._open), "ready": 0}

    async def prepare(self, spec: SandboxSpec) -> None:
        """Makes nothing ahead."""

    async def close(self) -> None:
        for handle, sandbox in list(self._open.items()):
            with suppress(SandboxFault):
                found = await self._remotes.find(handle)
                if found is None or _owner(found) is not Owner.TASK:
                    await self.destroy(handle)
            await sandbox.close()
        self._open.clear()
        for handle in tuple(self._owed):
            with suppress(SkillyardError, TimeoutError):
                await self.destroy(handle)

    # names

    def packed(self, name: str, text: str) -> dict[str, str]:
        """Returns metadata that hold a text."""
        return {name: text}

    def unpacked(self, name: str, metadata: Mapping[str, str]) -> str:
        """Returns the text of :meth:`packed`. Raises LookupError, ValueError."""
        return metadata[name]

    def named(self, key: str) -> dict[str, str]:
        """Returns the metadata by which the machine of a key is found."""
        return {KEY: key}

    def _key(self, remote: Remote) -> str:
        return self._named(remote.metadata)

    def _named(self, metadata: Mapping[str, str]) -> str:
        try:
            return self.unpacked(KEY, metadata)
        except (LookupError, ValueError):
            return ""

    def _is_ours(self, remote: Remote) -> bool:
        return remote.metadata.get(SERVER) == self.server

    @property
    def server(self) -> str:
        """Returns the name of this data directory at the provider. Machines of others are left alone."""
        return self.made_of("server").hex()[:32]

    def agent_key(self, nonce: str) -> bytes:
        return self.made_of(f"agent {nonce}")

    def made_of(self, text: str) -> bytes:
        """Returns bytes that nobody without this data directory can make."""
        return hmac.digest(secret_of(self._state), text.encode(), "sha256")


def _owner(remote: Remote) -> Owner:
    return Owner.TASK if remote.metadata.get(OWNER) == Owner.TASK else Owner.RUN


def unknown(id: str) -> SandboxGone:
    return SandboxGone(f"sandbox {shown(id)} is unknown here")
