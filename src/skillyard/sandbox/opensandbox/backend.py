"""The opensandbox backend: one sandbox of an OpenSandbox server for each of ours."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import resources
from inspect import getsource
from pathlib import Path
from typing import IO, Any

from skillyard.config.backends import OpenSandboxSettings
from skillyard.domain.errors import BackendAway, SandboxFault, SandboxGone, SkillyardError, shown
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.package.platforms import foreign, interpreter
from skillyard.domain.sandbox.guarantees import Level, Nature, Probe
from skillyard.domain.sandbox.image import check_image, is_by_digest
from skillyard.domain.sandbox.spec import Held, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import Opener
from skillyard.sandbox.e2b.order import lacking, pack
from skillyard.sandbox.e2b.remote import AGAIN_S, BOUND_S, NOBODY, NONCE, Remote, RemoteBackend, RemoteSandbox, unknown
from skillyard.sandbox.guest_argv import guest_bundle
from skillyard.sandbox.native.probe import look_inside
from skillyard.sandbox.oci.home import loader_text
from skillyard.sandbox.opensandbox import http_entry
from skillyard.sandbox.opensandbox.channel import Door, DoorChannel
from skillyard.sandbox.opensandbox.kept import Kept, KeptContent, kept_of, rest_of, seals_of
from skillyard.sandbox.opensandbox.order import memory, order
from skillyard.sandbox.opensandbox.probe import LOOK, NAME, WITHOUT, absent, address_of, judge
from skillyard.sandbox.opensandbox.server import FILLER, Order, Server, packed, unpacked
from skillyard.sandbox.registry import Kind, Place
from skillyard.threads import answered, to_its_end

_KEY_DIGEST = "skillyard.key-digest"
_SOON_S = 0.01
_FILLS_S = 900
"""The most that a sandbox may take which is filled for a snapshot."""
_LOOK_LIMITS = Limits(memory_mb=96, cpus=0.5, pids=64, disk_mb=16, timeout_ms=30_000)
_MEND = "name an image in opensandbox.image that the server has, with python3 (docs/opensandbox.md)"


class OpenSandboxBackend(RemoteBackend[str]):
    """Sandboxes of the server that ``settings`` name. ``state`` has the name and the secret of this data directory."""

    name, machine = NAME, "sandbox"

    def __init__(self, state: Path, settings: OpenSandboxSettings, gate: Plug | None = None) -> None:
        self._server = Server(settings)
        super().__init__(state, self._server, settings.max_ttl_s, gate)
        self._settings = settings
        self._doors: dict[str, Door] = {}
        self._kept = KeptContent(self._server, lambda: self.server, settings.content_mb << 20, self._filled)
        self._made_of: dict[str, Kept] = {}
        """The snapshot of a sandbox that is being made, by its id."""
        self._images: dict[str, Mapping[str, Any]] = {}
        """The door's account of a sandbox, by image."""

    @property
    def nature(self) -> Nature:
        return KIND.nature

    # the probe

    async def _look(self) -> Probe:
        found = await self._looked(self._settings.image)
        if not found.ready:
            return found
        return replace(found, facts={**found.facts, **await self._languages(found)})

    async def _languages(self, usual: Probe) -> dict[str, str]:
        """Returns what the image of each language is good for, as a sandbox of it shows."""
        others = tuple({*self._settings.images.values()} - {self._settings.image})
        looks = dict(zip(others, await asyncio.gather(*map(self._looked, others)), strict=True))
        told: dict[str, str] = {}
        for language, name in sorted(self._settings.images.items()):
            found = looks.get(name, usual)
            has = found.facts.get("languages", "").split(", ")
            why = "" if language in has else f" lacks the interpreter of {language}"
            if not found.ready:
                why = f" cannot be used: {found.facts.get('why', '')}"
            told[f"image_{language}"] = f"{name}{why}"
        return told

    async def _looked(self, image: str) -> Probe:
        facts = {"image": image, "server": f"{self._settings.protocol}://{self._settings.domain}"}
        if not image:
            return absent("no image is named", facts, _MEND)
        host, _, port = self._settings.domain.partition(":")
        try:
            sandbox = await self._make(SandboxSpec(limits=_LOOK_LIMITS), f"probe-{secrets.token_hex(8)}", image, {})
            try:
                words = (await address_of(host), port or ("443" if self._settings.protocol == "https" else "80"))
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

    def image_of(self, spec: SandboxSpec) -> str:
        return spec.image or self._settings.image_for(spec.language)

    async def _fit(self, spec: SandboxSpec, probe: Probe) -> str:
        """Returns the image of a spec. Raises InvalidInput, SandboxFault for one that does not fit.

        It holds less than the usual one, or is for other packages.
        """
        image = self.image_of(spec)
        if image not in (self._settings.image, *self._settings.images.values()):
            check_image("image", image)
        if image not in self._images:
            found = await self._looked(image)
            if not found.ready:
                raise SandboxFault(f"the image '{image}' cannot be used: {found.facts.get('why', '')}")
            if found.enforced() != probe.enforced():
                self._images.pop(image)
                raise SandboxFault(f"sandboxes of the image '{image}' are held by other walls than the usual ones")
        return image

    async def _interpreter(self, of: str) -> object:
        return self._images.get(of, {}).get("interpreter")

    async def _new(self, spec: SandboxSpec, of: str, metadata: Mapping[str, str], ttl_s: int) -> str:
        order = self._order(spec, of, metadata, ttl_s)
        if (kept := await self._kept.find(spec, of)) is None:
            return await self._server.create(order)
        try:
            id = await self._server.create(replace(order, snapshot=kept.id))
        except BackendAway:
            raise
        except SandboxFault as refused:
            if isinstance(refused, SandboxGone):
                await self._kept.forget(kept)
            return await self._server.create(order)
        self._made_of[id] = kept
        return id

    def _order(self, spec: SandboxSpec, image: str, metadata: Mapping[str, str], ttl_s: int) -> Order:
        return Order(
            image=image,
            command=("python3", "-I", "-S", "-c", _source("http_entry.py")),
            variables={http_entry.VARIABLE: hashlib.sha256(self._token(metadata[NONCE]).encode()).hexdigest()},
            metadata=metadata,
            cpus=spec.limits.cpus,
            memory=memory(spec.limits),
            ttl_s=ttl_s,
        )

    async def _filled(self, spec: SandboxSpec, image: str, name: str) -> str:
        """Makes a snapshot of a sandbox with content, in which nothing else has run. Raises SandboxFault."""
        nonce = secrets.token_hex(16)
        order = self._order(spec, image, {FILLER: self.server, NONCE: nonce}, _FILLS_S)
        id = await answered(self._server.create(order))
        self._kept.filling.add(id)
        try:
            async with asyncio.timeout(_FILLS_S):
                seals = await to_its_end(seals_of, spec)
                await self._started(await self._entered(id, nonce), spec, nonce, seals, keeps=True)
                return await answered(self._server.snapshot(id, name))
        finally:
            with suppress(SkillyardError, TimeoutError):
                await asyncio.shield(self._end(id))
            self._kept.filling.discard(id)

    def _id(self, machine: str) -> str:
        return machine

    async def _set_up(self, machine: str, spec: SandboxSpec, of: str, metadata: Mapping[str, str]) -> RemoteSandbox:
        await self._begun(machine, spec, of, metadata[NONCE])
        digest = of.rpartition("@")[2] if is_by_digest(of) else ""  # the server tells of none
        return await self.joined(machine, metadata, self._opener(machine, metadata[NONCE]), image=digest)

    async def _rejoined(self, found: Remote) -> RemoteSandbox:
        opener = self._opener(found.id, found.metadata.get(NONCE, ""))
        return await self.joined(found.id, found.metadata, opener, left_s=0, began=found.started)

    async def _begun(self, handle: str, spec: SandboxSpec, image: str, nonce: str) -> None:
        """Uploads what the sandbox lacks and has its door start the agent. Raises SandboxFault."""
        entered, kept = await self._entered(handle, nonce), self._made_of.pop(handle, None)
        if kept is None:
            told = await self._started(entered, spec, nonce)
            before, self._images[image] = self._images.get(image, told), told
            if before["interpreter"] != told["interpreter"]:  # the image was replaced, and they are of the earlier one
                await self._kept.forget_all()
        else:
            seals = [] if kept.sure else await to_its_end(seals_of, kept_of(spec))
            try:
                told = await self._started(entered, rest_of(spec), nonce, seals)
            except BackendAway:
                raise
            except SandboxFault:
                await self._kept.forget(kept)
                raise
            kept.sure = True
        if spec.environment.packages is not None:
            spec.environment.check_fits(foreign(told.get("interpreter")))

    async def _entered(self, handle: str, nonce: str) -> Door:
        """Returns the door of a new sandbox when it answers. Raises SandboxFault."""
        entered = await self._door(handle, nonce)
        try:
            async with asyncio.timeout(BOUND_S):
                looks_at = time.monotonic() + AGAIN_S
                while not await entered.ready():
                    if time.monotonic() > looks_at:
                        found = await self._server.find(handle)
                        if found is None or not found.running:
                            raise SandboxFault(f"the sandbox ended before its agent began; {_MEND}")
                        looks_at = time.monotonic() + AGAIN_S
                    await asyncio.sleep(_SOON_S)
        except TimeoutError:
            way = "set opensandbox.use_server_proxy where ports of sandboxes cannot be reached from here"
            if self._settings.use_server_proxy:
                way = "see [server] eip in the server's configuration, which needs the port where it is set"
            raise SandboxFault(f"the sandbox does not answer at {shown(entered.address)}; {way}, or {_MEND}") from None
        return entered

    async def _started(
        self,
        entered: Door,
        spec: SandboxSpec,
        nonce: str,
        seals: Sequence[tuple[str, str]] = (),
        *,
        keeps: bool = False,
    ) -> Mapping[str, Any]:
        """Returns what the door tells of its sandbox, which has its content then. Raises SandboxFault.

        One that ``keeps`` it runs nothing else. ``seals`` are looked at.
        """
        content = lacking(spec, frozenset())
        with tempfile.TemporaryFile() as archive:
            if content:
                await to_its_end(pack, content, archive)
            files: dict[str, bytes | IO[bytes]] = {"guest": guest_bundle(), **({"content": archive} if content else {})}
            await asyncio.gather(*(entered.upload(name, data) for name, data in files.items()))
        programs = {"maker": _source("maker.py") + getsource(interpreter), "loader": loader_text()}
        ours = {**programs, "seals": [*seals], "keeps": keeps}
        given = json.dumps(order(spec, self.agent_key(nonce).hex()) | ours).encode()
        return _checked(*await entered.ask("POST", "start", given))

    async def _door(self, handle: str, nonce: str) -> Door:
        """Returns the door of a sandbox. Raises SandboxGone, SandboxFault."""
        if handle not in self._doors:
            address, headers = await self._server.endpoint(handle)
            self._doors.setdefault(handle, Door(address, headers, self._token(nonce)))
        return self._doors[handle]

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
                    await asyncio.sleep(AGAIN_S)
                else:
                    return channel, channel

        return open_channel

    async def _end(self, id: str) -> None:
        if (known := self._doors.pop(id, None)) is not None:
            await known.close()
        async with asyncio.timeout(BOUND_S):
            while True:
                await self._server.kill(id)
                if await self._server.find(id) is None:
                    return
                await asyncio.sleep(AGAIN_S)

    async def reach(self) -> None:
        """Asks the server for a sandbox that nobody has."""
        try:
            await self._server.find(NOBODY)
        except BackendAway:
            self._probe = None
            raise
        except SandboxFault:  # it answered, or is not asked before the settings are mended
            pass

    async def survey(self) -> Sequence[Held]:
        await self._kept.sweep()
        return await super().survey()

    async def close(self) -> None:
        await self._kept.close()
        await super().close()
        for known in self._doors.values():
            await known.close()
        self._doors.clear()
        await self._server.close()

    # names: metadata hold few characters of few kinds

    def packed(self, name: str, text: str) -> dict[str, str]:
        return packed(name, text)

    def unpacked(self, name: str, metadata: Mapping[str, str]) -> str:
        return unpacked(name, metadata)

    def named(self, key: str) -> dict[str, str]:
        return {_KEY_DIGEST: hashlib.sha256(key.encode()).hexdigest()[:40]}

    def _token(self, nonce: str) -> str:
        return self.made_of(f"door {nonce}").hex()


@cache
def _source(name: str) -> str:
    """Returns a program that runs in sandboxes, the same as long as this server lives."""
    return resources.files(http_entry.__package__).joinpath(name).read_text("utf-8")


def _checked(status: int, said: bytes) -> Mapping[str, Any]:
    """Returns what the door told of its sandbox. Raises SandboxFault for another form, or a lack."""
    try:
        told = parse_json(said)
    except BadJson:
        told = None
    match told:
        case {
            "root": bool(root), "machine": str(), "python": [int(), int()], "packages": str(),
            "processors": int(), "spaces": dict(), "interpreter": str(),
        }:  # fmt: skip
            if not root:
                raise SandboxFault(f"the image runs as a user without rights; our agent needs root there; {_MEND}")
            return dict(told)
    text = "".join(c if c.isprintable() else " " for c in said[:300].decode("utf-8", "replace"))
    raise SandboxFault(f"the agent could not be started in the sandbox ({status}): {text}")


def _make(place: Place) -> OpenSandboxBackend:
    return OpenSandboxBackend(place.run_dir / "opensandbox", place.settings.opensandbox, place.plug)


KIND = Kind(Nature(without=WITHOUT, remote=True, ports=frozenset({http_entry.PORT})), _make)
