"""The opensandbox backend: one sandbox of an OpenSandbox server for each of ours.

The server keeps all state of them, in their metadata. Agents' keys are made of a secret of this data directory, so
that the metadata alone opens none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from skillyard.config.backends import OpenSandboxSettings
from skillyard.domain.errors import BackendAway, InvalidInput, SandboxFault, SkillyardError, shown
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.sandbox.guarantees import Demand, Level, Nature, Probe
from skillyard.domain.sandbox.image import check_image, is_by_digest
from skillyard.domain.sandbox.spec import Held, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import Opener
from skillyard.sandbox.agent_client import plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.content import ContentCache
from skillyard.sandbox.e2b.backend import E2bSandbox
from skillyard.sandbox.e2b.lifetime import Lifetime, span
from skillyard.sandbox.e2b.order import LEASE_S, lacking, pack
from skillyard.sandbox.guest_argv import guest_bundle
from skillyard.sandbox.native.probe import look_inside
from skillyard.sandbox.opensandbox import http_entry
from skillyard.sandbox.opensandbox.channel import Door, DoorChannel
from skillyard.sandbox.opensandbox.order import memory, order
from skillyard.sandbox.opensandbox.probe import LOOK, NAME, WITHOUT, absent, judge
from skillyard.sandbox.opensandbox.server import Order, Remote, Server, packed, unknown, unpacked
from skillyard.sandbox.registry import Kind, Place
from skillyard.sandbox.secret_file import secret_of
from skillyard.sandbox.turns import Turns
from skillyard.threads import answered, to_its_end
from skillyard.values import dataclass

_SERVER, _KEY, _KEY_DIGEST = "skillyard.server", "skillyard.key", "skillyard.key-digest"
_OWNER, _NONCE, _TIMEOUT, _ENFORCED = "skillyard.owner", "skillyard.nonce", "skillyard.timeout", "skillyard.enforced"
_HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_NOBODY = "skillyard-nobody"
_BOUND_S = 120.0
_AGAIN_S, _SOON_S = 0.5, 0.01
_LOOK_LIMITS = Limits(memory_mb=96, cpus=0.5, pids=64, disk_mb=16, timeout_ms=30_000)
_MEND = "name an image in opensandbox.image that the server has, with python3 (docs/opensandbox.md)"


@dataclass(frozen=True, slots=True)
class _Named:
    """The content of a sandbox's metadata."""

    owner: Owner
    nonce: str
    timeout_ms: int
    enforced: Mapping[str, str]


class OpenSandboxBackend:
    """Sandboxes of the server that ``settings`` name. ``state`` has the name and the secret of this data directory."""

    name = NAME

    def __init__(self, state: Path, settings: OpenSandboxSettings, gate: Plug | None = None) -> None:
        self._state, self._settings, self._gate = state, settings, gate
        self._server = Server(settings)
        self._open: dict[str, E2bSandbox] = {}
        self._doors: dict[str, Door] = {}
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._owed: set[str] = set()
        """Sandboxes whose end was asked for and is not confirmed, as while the server is away."""
        self._creating = Turns()
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._images: dict[str, Mapping[str, Any]] = {}
        """The door's account of a sandbox, by image."""
        self._content = ContentCache(state / "content", self.survey)

    @property
    def nature(self) -> Nature:
        return KIND.nature

    # the probe

    async def probe(self) -> Probe:
        """A failure is not kept: the server may be there the next time."""
        async with self._probing:
            if self._probe is None:
                found = await self._look(self._settings.image)
                if not found.ready:
                    return found
                self._probe = replace(found, facts={**found.facts, **await self._languages(found)})
            return self._probe

    async def _languages(self, usual: Probe) -> dict[str, str]:
        """Returns what the image of each language is good for, as a sandbox of it shows."""
        others = tuple({*self._settings.images.values()} - {self._settings.image})
        looks = dict(zip(others, await asyncio.gather(*map(self._look, others)), strict=True))
        told: dict[str, str] = {}
        for language, name in sorted(self._settings.images.items()):
            found = looks.get(name, usual)
            has = found.facts.get("languages", "").split(", ")
            why = "" if language in has else f" lacks the interpreter of {language}"
            if not found.ready:
                why = f" cannot be used: {found.facts.get('why', '')}"
            told[f"image_{language}"] = f"{name}{why}"
        return told

    async def _look(self, image: str) -> Probe:
        facts = {"image": image, "server": f"{self._settings.protocol}://{self._settings.domain}"}
        if not image:
            return absent("no image is named", facts, _MEND)
        host, _, port = self._settings.domain.partition(":")
        try:
            sandbox = await self._make(SandboxSpec(limits=_LOOK_LIMITS), f"probe-{secrets.token_hex(8)}", image, {})
            try:
                words = (host, port or ("443" if self._settings.protocol == "https" else "80"))
                seen = await look_inside(sandbox, LOOK, *words, bound_ms=_LOOK_LIMITS.timeout_ms)
                egress = await sandbox.way_out.look(sandbox, Level.PROVIDER)
            finally:
                await self.destroy(sandbox.handle)
            inside = self._images[image]
            wanted = {
                "memory": str(memory(_LOOK_LIMITS)),
                "cpus": str(min(_LOOK_LIMITS.cpus, float(inside["processors"]))),
            }
            return judge(seen, inside, wanted, facts, egress)
        except BackendAway as error:
            mend = "start the server, and set opensandbox.domain and opensandbox.protocol"
            return absent(error.message, facts, mend, away=True)
        except SkillyardError as error:
            return absent(error.message, facts)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return absent(f"a test sandbox tells nothing that we understand: {error}"[:300], facts, _MEND)

    # the life of a sandbox

    async def create(self, spec: SandboxSpec, key: str) -> E2bSandbox:
        probe = await self.probe()
        if not probe.ready:
            raise SandboxFault(f"no sandbox can be had: {probe.facts.get('why', '')}")
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name, "image")
        if spec.egress is not None:
            probe.demand("egress")
        image = self.image_of(spec)
        if image not in (self._settings.image, *self._settings.images.values()):
            check_image("image", image)
        async with self._creating.of(key):
            try:
                if (found := await self._found(key)) is not None:
                    sandbox = await self.attach(found)
                else:
                    await self._fit(spec, image, probe)
                    async with self._content.placed(spec, key) as placed:
                        sandbox = await self._make(placed, key, image, probe.enforced())
                return await plugged(sandbox, spec.egress, self.destroy)
            finally:
                self._content.release(key)  # it was uploaded

    def image_of(self, spec: SandboxSpec) -> str:
        return spec.image or self._settings.image_for(spec.language)

    async def _fit(self, spec: SandboxSpec, image: str, usual: Probe) -> None:
        """Raises InvalidInput, SandboxFault for an image that does not fit.

        It holds less than the usual one, or is for other packages.
        """
        if image not in self._images:
            found = await self._look(image)
            if not found.ready:
                raise SandboxFault(f"the image '{image}' cannot be used: {found.facts.get('why', '')}")
            if found.enforced() != usual.enforced():
                self._images.pop(image)
                raise SandboxFault(f"sandboxes of the image '{image}' are held by other walls than the usual ones")
        seen = self._images[image]
        want, has = [list(sys.version_info[:2]), os.uname().machine], [seen["python"], seen["machine"]]
        if spec.environment.packages is not None and want != has:
            told = [f"Python {version[0]}.{version[1]} on {machine}" for version, machine in (want, has)]
            raise InvalidInput("environment", f"its packages are for {told[0]}, and the image '{image}' has {told[1]}")

    async def _found(self, key: str) -> str | None:
        """Returns the handle of the live sandbox of ``key``; others of it are ended."""
        ours = [one async for one in self._server.list({_SERVER: self._name(), _KEY_DIGEST: _digest(key)})]
        live = sorted((one for one in ours if one.running), key=lambda one: (one.started, one.id))
        for one in ours:
            if one not in live[:1]:
                await self._server.kill(one.id)
        return live[0].id if live else None

    async def _make(self, spec: SandboxSpec, key: str, image: str, enforced: Mapping[str, str]) -> E2bSandbox:
        nonce = secrets.token_hex(16)
        limits = spec.limits
        metadata = {
            _SERVER: self._name(),
            _KEY_DIGEST: _digest(key),
            _OWNER: spec.owner.value,
            _NONCE: nonce,
            _TIMEOUT: str(limits.timeout_ms),
            **packed(_KEY, key),
            **packed(_ENFORCED, json.dumps(dict(enforced), separators=(",", ":"))),
        }
        wanted = Order(
            image=image,
            command=("python3", "-I", "-S", "-c", _source("http_entry.py")),
            variables={http_entry.VARIABLE: hashlib.sha256(self._token(nonce).encode()).hexdigest()},
            metadata=metadata,
            cpus=limits.cpus,
            memory=memory(limits),
            ttl_s=span(limits.timeout_ms, self._settings.max_ttl_s),
        )
        try:
            handle = await answered(self._server.create(wanted))
            if not _HANDLE.fullmatch(handle):
                raise SandboxFault(f"the server names a sandbox {shown(handle)}, which cannot be")
            await self._set_up(handle, spec, image, nonce)
            digest = image.rpartition("@")[2] if is_by_digest(image) else ""  # the server tells of none
            made = await self._attached(handle, metadata, wanted.ttl_s, digest)
            made.new = True
            return made
        except BaseException:
            await asyncio.shield(self._remove(key, nonce))
            raise

    async def _set_up(self, handle: str, spec: SandboxSpec, image: str, nonce: str) -> None:
        """Uploads what the sandbox lacks and has its door start the agent. Raises SandboxFault."""
        entered = await self._door(handle, nonce)
        try:
            async with asyncio.timeout(_BOUND_S):
                looks_at = time.monotonic() + _AGAIN_S
                while not await entered.ready():
                    if time.monotonic() > looks_at:
                        found = await self._server.find(handle)
                        if found is None or not found.running:
                            raise SandboxFault(f"the sandbox ended before its agent began; {_MEND}")
                        looks_at = time.monotonic() + _AGAIN_S
                    await asyncio.sleep(_SOON_S)
        except TimeoutError:
            way = "set opensandbox.use_server_proxy where ports of sandboxes cannot be reached from here"
            raise SandboxFault(f"the sandbox does not answer at its address; {way}, or {_MEND}") from None
        uploads = [entered.upload("guest", guest_bundle())]
        content = lacking(spec, frozenset())
        with tempfile.TemporaryFile() as archive:
            if content:
                await to_its_end(pack, content, archive)
                uploads.append(entered.upload("content", archive))
            await asyncio.gather(*uploads)
        given = json.dumps(order(spec, self._agent_key(nonce).hex()) | {"maker": _source("maker.py")}).encode()
        status, said = await entered.ask("POST", "start", given)
        self._images[image] = _checked(status, said)

    async def _door(self, handle: str, nonce: str) -> Door:
        """Returns the door of a sandbox. Raises SandboxGone, SandboxFault."""
        if handle not in self._doors:
            address, headers = await self._server.endpoint(handle)
            self._doors.setdefault(handle, Door(address, headers, self._token(nonce)))
        return self._doors[handle]

    async def attach(self, handle: str) -> E2bSandbox:
        if (sandbox := self._open.get(handle)) is not None:
            return sandbox
        found = await self._server.find(handle) if _HANDLE.fullmatch(handle) else None
        if found is None or not found.running or not self._is_ours(found):
            raise unknown(handle)
        return await self._attached(handle, found.metadata, 0)

    async def _attached(self, handle: str, metadata: Mapping[str, str], left_s: int, image: str = "") -> E2bSandbox:
        named = _named(handle, metadata)
        reach = Reach(self._opener(handle, named.nonce), self._agent_key(named.nonce))
        lease_s = LEASE_S if named.owner is Owner.RUN else None
        ms, gate = named.timeout_ms, self._gate
        sandbox = E2bSandbox(reach, handle, named.enforced, timeout_ms=ms, lease_s=lease_s, image=image, gate=gate)
        most_s = self._settings.max_ttl_s
        sandbox.lifetime = Lifetime(self._server, handle, span(named.timeout_ms, most_s), most_s, left_s)
        try:
            await sandbox.connect()
        except BaseException:
            await sandbox.close()
            raise
        return self._open.setdefault(handle, sandbox)

    def _opener(self, handle: str, nonce: str) -> Opener:
        async def open_channel() -> tuple[DoorChannel, DoorChannel]:
            while True:
                try:
                    channel = await DoorChannel.open(await self._door(handle, nonce))
                except BackendAway:
                    # What was unreachable for a moment is there again. The channel bounds the wait.
                    with suppress(BackendAway):
                        found = await self._server.find(handle)
                        if found is None or not found.running:
                            raise unknown(handle) from None
                    await asyncio.sleep(_AGAIN_S)
                else:
                    return channel, channel

        return open_channel

    async def survey(self) -> Sequence[Held]:
        now = time.time()
        ours = [one async for one in self._server.list({_SERVER: self._name()})]
        found = [one for one in ours if _HANDLE.fullmatch(one.id)]
        return [Held(one.id, _key(one), _owner(one), max(0.0, now - one.started)) for one in found]

    async def standing(self) -> int:
        return sum([_SERVER in one.metadata async for one in self._server.list({})])

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
        if sandbox is not None:
            with suppress(SandboxFault):
                used = await sandbox.end()
            await sandbox.close()
        found = await self._server.find(handle) if _HANDLE.fullmatch(handle) else None
        if found is None or not self._is_ours(found):
            self._owed.discard(handle)
            return Usage()
        await self._killed(found.id)
        self._owed.discard(handle)
        wall_ms = max(0.0, time.time() - found.started) * 1000
        return Usage(used.cpu_ms, used.peak_memory_bytes, wall_ms)

    async def _killed(self, id: str) -> None:
        """Ends a sandbox; returns when the server does not have it any more. Raises SandboxFault."""
        if (known := self._doors.pop(id, None)) is not None:
            await known.close()
        async with asyncio.timeout(_BOUND_S):
            while True:
                await self._server.kill(id)
                if await self._server.find(id) is None:
                    return
                await asyncio.sleep(_AGAIN_S)

    async def _remove(self, key: str, nonce: str) -> None:
        """Ends the sandbox of a failed :meth:`_make`. Where that fails too, its time or the survey ends it."""
        with suppress(SkillyardError, TimeoutError):
            named = {_SERVER: self._name(), _KEY_DIGEST: _digest(key), _NONCE: nonce}
            async for one in self._server.list(named):
                await self._killed(one.id)

    async def reach(self) -> None:
        """Asks the server for a sandbox that nobody has."""
        try:
            await self._server.find(_NOBODY)
        except BackendAway:
            self._probe = None
            raise
        except SandboxFault:  # it answered, or is not asked before the settings are mended
            pass

    async def prepare(self, spec: SandboxSpec) -> None:
        """Makes nothing ahead."""

    async def close(self) -> None:
        for handle, sandbox in list(self._open.items()):
            with suppress(SandboxFault):
                found = await self._server.find(handle)
                if found is None or _owner(found) is not Owner.TASK:
                    await self.destroy(handle)
            await sandbox.close()
        self._open.clear()
        for handle in tuple(self._owed):
            with suppress(SkillyardError, TimeoutError):
                await self.destroy(handle)
        for known in self._doors.values():
            await known.close()
        self._doors.clear()
        await self._server.close()

    # names

    def _is_ours(self, remote: Remote) -> bool:
        return remote.metadata.get(_SERVER) == self._name()

    def _name(self) -> str:
        """Returns the name of this data directory at the server. Sandboxes of others are left alone."""
        return self._made_of("server")[:32]

    def _agent_key(self, nonce: str) -> bytes:
        return bytes.fromhex(self._made_of(f"agent {nonce}"))

    def _token(self, nonce: str) -> str:
        return self._made_of(f"door {nonce}")

    def _made_of(self, text: str) -> str:
        return hmac.digest(secret_of(self._state), text.encode(), "sha256").hex()


@cache
def _source(name: str) -> str:
    """Returns a program that runs in sandboxes, the same as long as this server lives."""
    return resources.files(http_entry.__package__).joinpath(name).read_text("utf-8")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def _checked(status: int, said: bytes) -> Mapping[str, Any]:
    """Returns what the door told of its sandbox. Raises SandboxFault for another form, or a lack."""
    try:
        told = parse_json(said)
    except BadJson:
        told = None
    match told:
        case {
            "root": bool(root), "machine": str(), "python": [int(), int()], "packages": str(),
            "processors": int(), "spaces": dict(),
        }:  # fmt: skip
            if not root:
                raise SandboxFault(f"the image runs as a user without rights; our agent needs root there; {_MEND}")
            return dict(told)
    text = "".join(c if c.isprintable() else " " for c in said[:300].decode("utf-8", "replace"))
    raise SandboxFault(f"the agent could not be started in the sandbox ({status}): {text}")


def _named(handle: str, metadata: Mapping[str, str]) -> _Named:
    """Returns what metadata say. Raises SandboxFault."""
    try:
        enforced = parse_json(unpacked(_ENFORCED, metadata).encode(errors="replace"))
        told = {str(name): str(level) for name, level in enforced.items()}
        return _Named(Owner(metadata[_OWNER]), metadata[_NONCE], int(metadata[_TIMEOUT]), told)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise SandboxFault(f"the server changed the metadata of {shown(handle)}") from None


def _key(remote: Remote) -> str:
    try:
        return unpacked(_KEY, remote.metadata)
    except ValueError:
        return ""


def _owner(remote: Remote) -> Owner:
    return Owner.TASK if remote.metadata.get(_OWNER) == Owner.TASK else Owner.RUN


def _make(place: Place) -> OpenSandboxBackend:
    return OpenSandboxBackend(place.run_dir / "opensandbox", place.settings.opensandbox, place.plug)


KIND = Kind(Nature(without=WITHOUT, remote=True, ports=frozenset({http_entry.PORT})), _make)
