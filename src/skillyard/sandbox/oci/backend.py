"""The oci backend: containers of an engine on a unix socket.

The agent is the first process of each. The engine keeps all state of them, in labels.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import BackendAway, InvalidInput, SandboxFault, SandboxGone, SkillyardError, shown
from skillyard.domain.package.platforms import Platform, foreign
from skillyard.domain.sandbox.guarantees import Demand, Level, Nature, Probe, Protection, weaker
from skillyard.domain.sandbox.image import check_image
from skillyard.domain.sandbox.spec import Argv, Held, Owner, SandboxSpec, Stream
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import Opener
from skillyard.sandbox.agent_client import AgentSandbox, plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.content import ContentCache
from skillyard.sandbox.oci import calls, container
from skillyard.sandbox.oci.container import Image, Seat, Shown, Surroundings
from skillyard.sandbox.oci.engine import Engine, EngineRefused
from skillyard.sandbox.oci.home import OURS, Home, Lent
from skillyard.sandbox.oci.pool import Pool, shape_of
from skillyard.sandbox.oci.probe import LOOK, WITHOUT, absent, account, facts_of, judge, seen_outside
from skillyard.sandbox.oci.volumes import TENANT, Volumes
from skillyard.sandbox.registry import Kind
from skillyard.sandbox.turns import Turns
from skillyard.threads import answered

_OWNER_ID, _KEY, _SECRET_OF = f"{OURS}.server", f"{OURS}.key", container.VARIABLE
_LENT_AS, _MADE, _ENFORCED = f"{OURS}.owner", f"{OURS}.made", f"{OURS}.enforced"
_TIMEOUT, _READY = f"{OURS}.timeout_ms", f"{OURS}.ready"
"""The last is set for containers that are made ahead, whose labels tell not whether one is lent, and for which key."""
_HANDLE = re.compile(r"[0-9a-f]{64}")
_AGAIN_S = 0.2
_MISSING = 404
_ENDED = ("exited", "dead")
_SOCKET_MEND = "start Docker, or Podman's 'podman system service', and set oci.socket"
_RIGHT_MEND = "let the server's user open it (with Docker the group docker, which has root's rights), or set oci.socket"
_IMAGE_MEND = "name one in oci.image that the engine has, with python3 (docs/oci.md)"


class OciBackend:
    """Containers of the engine behind ``settings.socket``. ``state`` has the name of this server at the engine."""

    name = "oci"

    def __init__(self, state: Path, settings: OciSettings, gate: Plug | None = None) -> None:
        self._settings, self._gate = settings, gate
        self._home = Home(state)
        self._engine = Engine(settings.socket)
        self._open: dict[str, AgentSandbox] = {}
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._owed: set[str] = set()
        """Containers whose end was asked for and is not confirmed, as while the engine is away."""
        self._creating = Turns()
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._images: dict[str, tuple[Image, Mapping[str, Any], Probe]] = {}
        self._content = ContentCache(state / "content", self.survey)
        self._volumes = Volumes(self._engine, self._home, settings)
        self._around, self._moved = Surroundings(f"{settings.uid}:{settings.uid}", settings.runtime), False
        self._named: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._pool = Pool(settings.ready, self._made_ahead, self._drop)
        self._lent = Lent(state / "lent")

    @property
    def nature(self) -> Nature:
        return KIND.nature

    # the probe

    async def probe(self) -> Probe:
        """A failure is not kept: the engine may be there the next time."""
        async with self._probing:
            if self._probe is None:
                found = await self._look()
                if not found.ready:
                    return found
                self._probe = found
            return self._probe

    async def _look(self) -> Probe:
        facts: dict[str, str] = {"socket": self._settings.socket, "image": self._settings.image}
        if not self._settings.image:
            return absent("no image is named", facts, _IMAGE_MEND)
        mend = _IMAGE_MEND
        try:
            self._told = await self._facts()
            facts |= self._told
            image = await self._image(self._settings.image)
            facts |= {"image_id": image.id, "content": await self._volumes.look()}
            for language, name in sorted(self._settings.images.items()):
                facts[f"image_{language}"] = f"{name} {await self._told_of(name)}"
            mend = ""
            return (await self._known(image, facts))[2]
        except BackendAway as away:
            closed = Path(self._settings.socket).exists() and not os.access(self._settings.socket, os.W_OK)
            return absent(away.message, facts, _RIGHT_MEND if closed else _SOCKET_MEND, away=True)
        except SkillyardError as error:
            return absent(error.message, facts, mend)

    async def _told_of(self, name: str) -> str:
        """Returns the id of a language's image, or why the runs of that language get none. Raises BackendAway."""
        try:
            return (await self._image(name)).id
        except InvalidInput as error:
            self._named.pop(name, None)  # nobody has to look whether it means another one
            return f"cannot be used: {error.message}"

    async def _known(self, image: Image, facts: Mapping[str, str]) -> tuple[Image, Mapping[str, Any], Probe]:
        """Returns an image with what is in force in its containers. Raises SkillyardError."""
        if image.id not in self._images:
            spec = SandboxSpec(limits=Limits(memory_mb=64, cpus=0.5, pids=64, disk_mb=16, timeout_ms=20_000))
            seen, egress = await self._seen(image, spec)
            self._images[image.id] = image, seen, judge(seen, spec, self._around.processors, facts, egress)
        return self._images[image.id]

    async def _facts(self) -> dict[str, str]:
        version, info = await self._engine.version(), await self._engine.call("GET", "/info")
        told = facts_of(version, info, self._settings.runtime)
        self._around = self._around.at(info, is_podman=told["engine"] == "podman")
        return told

    async def _seen(self, image: Image, spec: SandboxSpec) -> tuple[Mapping[str, Any], Protection]:
        """Returns what a program sees in a container of ``image``, and its way out. Raises SkillyardError."""
        sandbox = await self._make(spec, f"probe-{secrets.token_hex(8)}", image, "", {})
        try:
            process = await sandbox.start(Argv(("python3", "-I", "-c", LOOK), cwd="/"), id="look", timeout_ms=20_000)
            text = b"".join([data async for data in process.output(Stream.STDOUT)])
            said = b"".join([data async for data in process.output(Stream.STDERR)])
            await process.wait()
            egress = await sandbox.way_out.look(sandbox, Level.SUPERVISED)
            told = await self._inspect(sandbox.handle)
            outside = {} if told is None else seen_outside(int(told["State"].get("Pid") or 0), sandbox.handle)
        finally:
            await self.destroy(sandbox.handle)
        return {**account(text, said, image.id), "outside": outside}, egress

    async def _image(self, name: str) -> Image:
        """Returns an image that the engine has; none is ever pulled. Raises InvalidInput, BackendAway."""
        try:
            told = await self._engine.call("GET", f"/images/{quote(name)}/json")
        except EngineRefused as refused:
            raise InvalidInput("image", f"the engine has none of that name ({refused.message})", shown(name)) from None
        image = container.image(told)
        if self._named.get(name, image.id) != image.id:  # the name means another image now
            self._pool.drain(lambda shape: shape.image != self._named[name])
            self._probe, self._moved = None, True
        self._named[name] = image.id
        return image

    # the life of a sandbox

    async def create(self, spec: SandboxSpec, key: str) -> AgentSandbox:
        probe = await self.probe()
        if not probe.ready:
            await self._engine.version()  # an engine that is away is a fault, which passes, and not a missing wall
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name, "image")
        if spec.egress is not None:
            probe.demand("egress")
        name = self.image_of(spec)
        async with self._creating.of(key):
            with self._pool.busy():
                sandbox = await self._created(spec, key, name)
                self._pool.aged(sandbox.handle)
                self._pool.lent(sandbox.handle)
            return await plugged(sandbox, spec.egress, self.destroy)

    async def _created(self, spec: SandboxSpec, key: str, name: str) -> AgentSandbox:
        """Returns the sandbox of ``key``: its own, one that was made ahead, or a new one."""
        if (handle := await self._found(key)) is not None:
            return await self.attach(handle)
        image, packages, enforced = await self._fit(name, spec)
        shape = shape_of(spec, image.id)
        if shape is not None:
            sandbox = await self._pool.soon(shape)
            self._pool.want(shape, spec)
            if sandbox is not None:
                return await self._lend(sandbox, spec, key)
        async with self._content.placed(spec, key) as placed:
            return await self._make(placed, key, image, packages, enforced)

    async def _lend(self, ready: AgentSandbox, spec: SandboxSpec, key: str) -> AgentSandbox:
        """Returns a container that was made ahead as that of ``key``. Raises SandboxGone, SandboxFault."""
        ready.timeout_ms = spec.limits.timeout_ms
        self._open[ready.handle] = ready
        self._lent.add(ready.handle, key, spec.owner, spec.limits.timeout_ms)
        if spec.owner is Owner.TASK:  # behind the record, so that a server that is killed leaves none unknown
            try:
                await ready.keep()
            except BaseException:
                await self._engine.finished(self.destroy(ready.handle))
                raise
        return ready

    async def _made_ahead(self, spec: SandboxSpec, id: str) -> AgentSandbox:
        """Makes a container for the pool. Raises SkillyardError."""
        image, packages, enforced = await self._fit(id, spec)
        sandbox = await self._make(spec, f"ready-{secrets.token_hex(16)}", image, packages, enforced, ahead=True)
        del self._open[sandbox.handle]  # nobody is lent it yet
        return sandbox

    async def _drop(self, sandbox: AgentSandbox) -> None:
        await sandbox.close()
        await self._engine.remove(sandbox.handle)

    def image_of(self, spec: SandboxSpec) -> str:
        return spec.image or self._settings.image_for(spec.language)

    async def platform_of(self, spec: SandboxSpec) -> Platform | None:
        await self.probe()
        return foreign((await self._looked(self.image_of(spec)))[1].get("interpreter"))

    async def _looked(self, name: str) -> tuple[Image, Mapping[str, Any], Probe]:
        """Returns the image of that name, with what is in force in its containers. Raises SkillyardError."""
        if name not in (self._settings.image, *self._settings.images.values(), *self._images):
            check_image("image", name)
        return await self._known(await self._image(name), self._told)

    async def _fit(self, name: str, spec: SandboxSpec) -> tuple[Image, str, Mapping[str, str]]:
        """Returns the image of a spec, the place of its packages, and its walls.

        Raises InvalidInput, ProtectionMissing, SandboxFault.
        """
        image, seen, probe = await self._looked(name)
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        # The image's own interpreter looked around: it cannot claim more than the operator's image has.
        enforced = weaker((await self.probe()).enforced(), probe.enforced())
        if spec.environment.packages is None:
            return image, "", enforced
        spec.environment.check_fits(foreign(seen.get("interpreter")))
        return image, str(seen["packages"][0]), enforced

    async def _found(self, key: str) -> str | None:
        """Returns the handle of the live container of ``key``; one that is not live is removed."""
        name = self._lent.handle_of(key) or self._home.name_of(key)
        told = await self._inspect(name)
        if told is not None and told["State"].get("Status") == "running":
            return str(told["Id"])
        if told is not None:
            await self._engine.remove(name)
        self._lent.forget(name)
        return None

    async def _make(
        self,
        spec: SandboxSpec,
        key: str,
        image: Image,
        packages: str,
        enforced: Mapping[str, str],
        *,
        ahead: bool = False,
    ) -> AgentSandbox:
        secret = secrets.token_hex(32)
        labels = {
            _OWNER_ID: self._home.server,
            _KEY: key,
            _LENT_AS: spec.owner.value,
            TENANT: hashlib.sha256(spec.tenant.encode()).hexdigest()[:32] if spec.tenant else "",
            _MADE: repr(time.time()),
            _ENFORCED: json.dumps(dict(enforced)),
            _TIMEOUT: str(spec.limits.timeout_ms),
            _READY: "1" if ahead else "",  # in any case, since an image has labels of its own
        }
        name, profile = self._home.name_of(key), calls.profile(image.architecture)
        content = [*self._home.shown(), *container.content_of(spec, packages)]
        if self._around.is_podman:  # it takes the name of a file where Docker takes the profile itself
            content.append(Shown(profile := self._home.file("calls", profile.encode(), ".json"), ""))
        seats: Mapping[str, Seat] = {}
        try:
            async with self._volumes.placed(content, labels[TENANT]) as seats:
                profile = seats[profile].place if profile in seats else profile
                mounts = container.mounts(content, seats)
                order = container.body(spec, image, self._around, labels, secret, profile, mounts, ahead=ahead)
                made = await answered(self._engine.call("POST", "/containers/create", order, name=name))
            handle = str(made["Id"])
            first = await self._engine.hijack(f"/containers/{handle}/attach?stream=1&stdin=1&stdout=1")
            try:
                await self._engine.call("POST", f"/containers/{handle}/start")
            except BaseException:
                first[1].close()
                raise
            leased = ahead or spec.owner is Owner.RUN
            return await self._attached(handle, leased, spec.limits.timeout_ms, secret, enforced, image.id, first)
        except BaseException as error:
            if isinstance(error, EngineRefused):
                self._volumes.forget(seats.values())
            await self._engine.finished(self._engine.remove(name))
            raise

    async def attach(self, handle: str) -> AgentSandbox:
        if (sandbox := self._open.get(handle)) is not None:
            return sandbox
        told = await self._inspect(handle) if _HANDLE.fullmatch(handle) else None
        labels = {} if told is None else told["Config"].get("Labels") or {}
        if told is None or labels.get(_OWNER_ID) != self._home.server or told["State"].get("Status") != "running":
            raise SandboxGone(f"sandbox {shown(handle)} is unknown here")
        lent = self._lent.of(handle)
        if labels.get(_READY) and lent is None:  # a run of an earlier server's, which ends with it, or nobody's
            raise SandboxGone(f"sandbox {shown(handle)} is unknown here")
        variables = dict(word.partition("=")[::2] for word in told["Config"]["Env"])
        secret = json.loads(variables[_SECRET_OF])["key"]
        leased, enforced = labels[_LENT_AS] == Owner.RUN, json.loads(labels[_ENFORCED])
        timeout_ms = int(labels[_TIMEOUT]) if lent is None else self._lent.timeout_ms(handle)
        image = f"sha256:{str(told['Image']).removeprefix('sha256:')}"
        sandbox = await self._attached(handle, leased, timeout_ms, secret, enforced, image)
        if lent is not None and not leased:  # the server that lent it may have been killed before it did so
            await sandbox.keep()
        return sandbox

    async def _attached(
        self,
        handle: str,
        leased: bool,
        timeout_ms: int,
        secret: str,
        enforced: Mapping[str, str],
        image: str,
        first: tuple[Any, Any] | None = None,
    ) -> AgentSandbox:
        lease_s = container.LEASE_S if leased else None
        reach = Reach(self._opener(handle, first), bytes.fromhex(secret))
        sandbox = AgentSandbox(
            reach, handle, enforced, timeout_ms=timeout_ms, lease_s=lease_s, image=image, gate=self._gate
        )
        try:
            await sandbox.connect()
        except BaseException:
            await sandbox.close()
            raise
        sandbox.new = first is not None
        return self._open.setdefault(handle, sandbox)

    def _opener(self, handle: str, first: tuple[Any, Any] | None) -> Opener:
        """Opens channels by an exec that joins its input and output to the agent's socket.

        The first of a new container is its own input and output, since an exec takes as long as a start.
        """
        opened = [] if first is None else [first]

        async def open_channel() -> tuple[Any, Any]:
            if opened:
                return opened.pop()
            while True:
                try:
                    made = await self._engine.call("POST", f"/containers/{handle}/exec", container.CONNECT)
                    return await self._engine.hijack(f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})
                except EngineRefused:
                    told = await self._inspect(handle)  # engines refuse in their own ways where one has ended
                    if told is None or told["State"].get("Status") != "running":
                        raise SandboxGone(f"sandbox {shown(handle)} is unknown here") from None
                    raise
                except BackendAway:
                    # An engine that is started again is there in seconds. The channel bounds the wait.
                    await asyncio.sleep(_AGAIN_S)

        return open_channel

    async def survey(self) -> Sequence[Held]:
        filters = json.dumps({"label": [f"{_OWNER_ID}={self._home.server}"]})
        lent_before = self._lent.handles()
        listed = await self._engine.call("GET", "/containers/json", all=1, filters=filters)
        await self._volumes.sweep()
        now, found = time.time(), []
        for one in listed:
            handle, labels = str(one["Id"]), one["Labels"]
            if not labels.get(_READY):
                age_s = max(0.0, now - float(labels[_MADE]))
                found.append(Held(handle, labels[_KEY], Owner(labels[_LENT_AS]), age_s))
            elif (lent := self._lent.of(handle)) is not None:
                found.append(lent)
            elif one["State"] in _ENDED:  # an earlier server's, whose agent ended without a lease
                with suppress(SandboxFault, TimeoutError):
                    await self._engine.remove(handle)
        for handle in lent_before - {str(one["Id"]) for one in listed}:
            self._lent.forget(handle)
        return found

    async def stats(self) -> dict[str, int]:
        """Returns how many containers there are: ``sandboxes``, of these ``lent`` and ``ready``."""
        lent, ready = len(await self.survey()), self._pool.count
        return {"sandboxes": lent + ready, "lent": lent, "ready": ready}

    async def standing(self) -> int:
        return len(
            await self._engine.call("GET", "/containers/json", all=1, filters=json.dumps({"label": [_OWNER_ID]}))
        )

    def counts(self) -> dict[str, int]:
        return {"lent": len(self._open), "ready": self._pool.count}

    async def destroy(self, handle: str) -> Usage:
        if handle not in self._destroying:
            self._owed.add(handle)
            task = self._destroying[handle] = asyncio.create_task(self._destroy(handle))
            task.add_done_callback(lambda _: self._destroying.pop(handle))
        return await asyncio.shield(self._destroying[handle])

    async def _destroy(self, handle: str) -> Usage:
        told = await self._inspect(handle) if _HANDLE.fullmatch(handle) else None
        labels = {} if told is None else told["Config"].get("Labels") or {}
        sandbox = self._open.pop(handle, None)
        with self._pool.busy():
            self._pool.aged(handle)
            return await self._ended(handle, labels, sandbox)

    async def _ended(self, handle: str, labels: Mapping[str, str], sandbox: AgentSandbox | None) -> Usage:
        used, ours = Usage(), labels.get(_OWNER_ID) == self._home.server
        if sandbox is not None:
            with suppress(SandboxFault):
                used = await sandbox.end()
        if ours:
            await self._engine.remove(handle)
        self._owed.discard(handle)
        if not ours:
            return Usage()
        self._content.release(labels[_KEY])
        lent = self._lent.of(handle)
        self._lent.forget(handle)
        wall_s = time.time() - float(labels[_MADE]) if lent is None else lent.age_s
        return Usage(used.cpu_ms, used.peak_memory_bytes, max(0.0, wall_s) * 1000)

    async def _inspect(self, name: str) -> Mapping[str, Any] | None:
        try:
            told: Mapping[str, Any] = await self._engine.call("GET", f"/containers/{name}/json")
        except EngineRefused as refused:
            if refused.status == _MISSING:
                return None
            raise
        return told

    async def reach(self) -> None:
        try:
            await self._engine.version()
        except BackendAway:
            self._probe = None  # it may come back with other settings, and without images or content
            self._volumes.forget()
            self._images.clear()
            self._pool.drain(lambda _: False)
            raise

    async def changed(self) -> bool:
        for name in {self._settings.image, *self._settings.images.values()} & self._named.keys():
            try:
                await self._image(name)
            except InvalidInput:  # the engine does not have it any more
                self._probe, self._moved = None, True
        moved, self._moved = self._moved, False
        return moved

    async def prepare(self, spec: SandboxSpec) -> None:
        with suppress(SkillyardError):
            image = await self._image(self.image_of(spec))
            if (shape := shape_of(spec, image.id)) is not None:
                self._pool.want(shape, spec)

    async def close(self) -> None:
        await self._pool.close()
        for handle, sandbox in list(self._open.items()):
            with suppress(SandboxFault):
                told = await self._inspect(handle)
                labels = {} if told is None else told["Config"].get("Labels") or {}
                if labels.get(_LENT_AS) != Owner.TASK:
                    await self.destroy(handle)
            await sandbox.close()
        self._open.clear()
        for handle in tuple(self._owed):
            with suppress(SkillyardError, TimeoutError):
                await self.destroy(handle)
        await self._engine.close()


KIND = Kind(Nature(without=WITHOUT), lambda place: OciBackend(place.run_dir / "oci", place.settings.oci, place.plug))
