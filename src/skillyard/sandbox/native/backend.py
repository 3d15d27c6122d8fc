"""The native backend: the sandbox port over a keeper."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from skillyard.config.backends import NativeSettings
from skillyard.domain.errors import ProtectionMissing, SandboxCutOff, SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.network.session import Egress
from skillyard.domain.sandbox.content import Content, JailDirectory
from skillyard.domain.sandbox.guarantees import Demand, Nature, Probe
from skillyard.domain.sandbox.spec import EnvironmentRef, Held, Mount, Prepared, SandboxSpec, Start
from skillyard.domain.work.record import Usage
from skillyard.ipc.channel import close_all
from skillyard.ports.gate import Plug
from skillyard.ports.sandbox import Launched
from skillyard.sandbox.content import ContentCache, bound
from skillyard.sandbox.native import launch
from skillyard.sandbox.native.groups.groups import sweep_noted
from skillyard.sandbox.native.keepers import Keepers, held_by, other_versions, stop
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.probe import probe
from skillyard.sandbox.native.sandbox import NativeSandbox, PluggedSandbox, launch_message, listen
from skillyard.sandbox.registry import Kind, Place

_USUAL = NativeSettings()
_GIVEN = 64 * 1024
"""Bytes of a request that any usual channel takes at once."""


class _Create(NamedTuple):
    """A sandbox that the keeper was asked for. Its channel took ``taken`` of ``given`` bytes."""

    link: Link
    answer: asyncio.Future[tuple[dict[str, Any], bytes]]
    taken: int
    given: int


class NativeBackend:
    """Sandboxes of this host, below ``run_dir`` (made 0700; one backend at a time holds it)."""

    name = "native"
    program = "skillyard.sandbox.native.grounds.namespaces.ground"
    """The module whose ``main`` becomes the keeper."""
    knows: tuple[str, ...] = ("read_only", "directories", "terminals")
    """Fields of a spec that its sandboxes can have beside the usual (:meth:`SandboxSpec.refuse_names`)."""
    usual_pids = 16
    """The limits of the probe's sandbox. With the operator's defaults it finds out what would refuse every run."""

    def __init__(self, run_dir: Path, settings: NativeSettings = _USUAL, plug: Plug | None = None) -> None:
        """``plug`` is where sandboxes with ``egress`` are plugged in; without it there are none."""
        self._run_dir = run_dir
        self._settings = settings
        self._plug = plug
        self._link: Link | None = None
        self._keepers = Keepers(
            run_dir, self._start, self.clear, self._linked_by, lambda text: self._on_part_told(text)
        )
        self._connecting = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._enforced: dict[str, str] = {}
        self._sandboxes: dict[str, NativeSandbox] = {}
        self._usages: dict[str, Usage] = {}
        """Those of sandboxes that are gone."""
        self._parting: dict[str, tuple[Link, Usage, asyncio.Future[None]]] = {}
        """The sandboxes whose end the keeper will tell by itself."""
        self._environments: set[str] = set()
        self._content = ContentCache(run_dir / "content", self.survey, settings.content_mb << 20)
        self._keeping: dict[str, str] = {}
        """The key of each sandbox for which content is kept, by handle."""
        self._on_part_end: Callable[[str], None] = _nobody_hears
        self._on_part_fault: Callable[[str], None] = _nobody_hears
        self._on_part_told: Callable[[str], None] = _nobody_hears
        self._gives = True
        """Whether requests go into the channels of sandboxes that wait, without the keeper."""
        self._demands_met: set[tuple[frozenset[str], frozenset[str]]] = set()

    def keeper_options(self) -> dict[str, Any]:
        """Returns the options that the keeper is started with."""
        return self._settings.model_dump(exclude={"content_mb"})

    @property
    def nature(self) -> Nature:
        return KIND.nature

    @property
    def part(self) -> str:
        return "keeper" if self.name == "native" else f"keeper.{self.name}"

    @property
    def older(self) -> str:
        return self._keepers.older

    def keepers_of_other_versions(self) -> dict[str, str]:
        """Returns living keepers of another version: their directories, each with a sentence."""
        return {str(home): text for home, text in other_versions(self._run_dir).items()}

    def attend(self, ended: Callable[[str], None], failed: Callable[[str], None], told: Callable[[str], None]) -> None:
        self._on_part_end, self._on_part_fault, self._on_part_told = ended, failed, told

    async def restart(self) -> None:
        await self._linked()

    async def probe(self) -> Probe:
        if self._probe is None:
            async with self._probing:
                self._probe = self._probe or await self.look()
                self._enforced = self._probe.enforced()
        return self._probe

    async def look(self) -> Probe:
        """Find out by trying. Never raises: what stands in the way is in the result."""
        return await probe(self)

    async def facts(self) -> dict[str, Any]:
        """Returns the keeper's findings about the host. Raises SandboxFault."""
        return await (await self._linked()).facts()

    @property
    def enforces(self) -> Mapping[str, str] | None:
        return self._enforced if self._probe is not None and self.name == "native" else None

    def launch(self, spec: SandboxSpec, key: str, first: Start) -> Coroutine[Any, Any, Launched]:
        """Asks the keeper at once where nothing has to be awaited before."""
        link, asked = self._link, None
        with suppress(SkillyardError):  # the caller meets it when it awaits
            if self._probe is not None and link is not None and link.alive and _is_placed(spec):
                self._demand(spec)
                asked = self._ask(link, spec, key, first)
        return self._launch(spec, key, first, asked)

    async def _launch(self, spec: SandboxSpec, key: str, first: Start, asked: _Create | None) -> Launched:
        sandbox = None
        if asked is not None:
            with suppress(SandboxGone):  # as in _create
                sandbox = await self._answered(spec, asked)
        sandbox = sandbox or await self._make(spec, key, first)
        return Launched(sandbox, sandbox.told_late_s, sandbox.processes[first.id].is_over)

    async def create(self, spec: SandboxSpec, key: str) -> NativeSandbox:
        return await self._make(spec, key, None)

    async def _make(self, spec: SandboxSpec, key: str, first: Start | None) -> NativeSandbox:
        if self._probe is None:
            await self.probe()
        self._demand(spec)
        if _is_placed(spec):
            return await self._create(spec, key, first)
        async with self._content.placed(spec, key) as placed:
            sandbox = await self._create(placed, key, first)
            self._keeping[sandbox.handle] = key
            return sandbox

    async def _create(self, spec: SandboxSpec, key: str, first: Start | None) -> NativeSandbox:
        try:
            return await self.create_unchecked(spec, key, first)
        except SandboxGone:  # with its keeper, before anybody saw of it: the next keeper makes another
            return await self.create_unchecked(spec, key, first)

    @property
    def has_gate(self) -> bool:
        return self._plug is not None

    async def create_unchecked(self, spec: SandboxSpec, key: str, first: Start | None = None) -> NativeSandbox:
        """:meth:`create` without comparing demand and offer: what the probe itself uses."""
        link = self._link if self._link is not None and self._link.alive else await self._linked()
        return await self._answered(spec, self._ask(link, spec, key, first))

    def _ask(self, link: Link, spec: SandboxSpec, key: str, first: Start | None) -> _Create:
        """Asks for a sandbox. Where one waits, its channel gets the request of the guest."""
        shape = self.shape(link, spec)
        start, body = (None, b"") if first is None else launch_message(first)
        ready = link.take(shape) if spec.single and not spec.command else None
        alone = first is not None and not spec.mounts and spec.egress is None and len(body) <= _GIVEN
        request = body if ready is not None and alone and self._gives else b""
        try:
            # First, since the kernel may run the keeper on our processor as soon as it hears of this.
            taken = ready.give(request) if ready is not None and request else 0
            answer = link.ask(
                {
                    "op": "create",
                    "key": key,
                    "owner": spec.owner.value,
                    "single": spec.single,
                    "command": spec.command,
                    "timeout_ms": spec.limits.timeout_ms,
                    "tenant": spec.tenant,
                    "shape": shape,
                    "shows": [_show(mount) for mount in spec.mounts],
                    "listen": _listen(spec),
                    "start": start,
                    "take": "" if ready is None else ready.handle,
                    "begun": taken > 0,
                },
                b"" if taken else body,
                comes=lambda answer: self._made(link, answer, first),
                unwanted=lambda late: self._unwanted(link, late),
            )
        finally:
            if ready is not None:
                ready.channel.close()
        return _Create(link, answer, taken, len(request) if taken else 0)

    async def _answered(self, spec: SandboxSpec, asked: _Create) -> NativeSandbox:
        link, future, taken, given = asked
        try:
            answer, _ = await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it came just before
                self._unwanted(link, future.result()[0])
            raise
        if "gone" in answer:
            raise SandboxGone(answer["gone"])
        if "handle" not in answer:
            raise SandboxFault(f"no sandbox could be made: {answer['error']}")
        if taken < given:
            self._gives = taken == 0
            await self.destroy(answer["handle"])
            raise SandboxGone("its channel did not take the whole request")
        held = self._sandboxes[answer["handle"]]
        if spec.egress is not None:
            await self._plug_in(link, held, spec.egress, answer.get("sockets", ()))
        return held

    def _made(self, link: Link, answer: dict[str, Any], first: Start | None) -> None:
        """Holds a sandbox before the end of its first program, which may be the next word."""
        if (handle := answer.get("handle")) is None:
            return
        held = self._sandboxes.get(handle)
        if held is None:
            held = self._sandboxes[handle] = self.hold(link, handle, self._enforced)
            held.made = str(answer.get("walls", ""))
        if "at" in answer:
            held.told_late_s = max(0.0, time.monotonic() - answer["at"])
        if first is not None:
            held.launched(first)

    async def open_sockets(self, handle: str, asked: dict[str, Any]) -> list[socket.socket]:
        """Listen in a sandbox without handing it to the gate: how the probe looks. Raises SandboxFault."""
        answer, _ = await (await self._linked()).answer({"op": "plug", "handle": handle, "listen": asked})
        sockets: list[socket.socket] = answer["sockets"]
        return sockets

    def hold(self, link: Link, handle: str, enforced: dict[str, str]) -> NativeSandbox:
        """Returns the server's object for a sandbox that the keeper made."""
        if self._plug is None:
            return NativeSandbox(link, handle, enforced)
        return PluggedSandbox(link, handle, enforced, self._plug)

    async def _plug_in(
        self, link: Link, sandbox: NativeSandbox, egress: Egress, sockets: Sequence[socket.socket]
    ) -> None:
        """A sandbox that is not plugged in is not left behind."""
        try:
            assert isinstance(sandbox, PluggedSandbox)
            await sandbox.plug_first(egress, sockets)
        except asyncio.CancelledError:
            self._unwanted(link, {"handle": sandbox.handle})
            raise
        except Exception:
            await self.destroy(sandbox.handle)
            raise

    async def attach(self, handle: str) -> NativeSandbox:
        known = self._sandboxes.get(handle)
        if known is not None:
            return known
        link = await self._linked()
        await self.probe()
        link = self._keepers.of(handle) or link
        answer, _ = await link.answer({"op": "attach", "handle": handle})
        held = self._sandboxes.setdefault(handle, self.hold(link, handle, self._enforced))
        held.made = str(answer.get("walls", ""))
        return held

    async def survey(self) -> Sequence[Held]:
        if self._link is None and not self._keepers.live():
            return []
        held = await held_by(await self._linked())
        return [*held, *await self._keepers.survey()]

    async def destroy(self, handle: str) -> Usage:
        if (parting := self._parting.get(handle)) is not None:
            await asyncio.shield(parting[2])
        known = self._usages.pop(handle, None)
        if known is not None:
            self._forget(handle)
            return known
        if self._link is None and not self._keepers.live():
            return Usage()
        try:
            return await self._destroy(handle)
        except SandboxCutOff:
            if not self._keepers.live():
                return Usage()  # with its keeper, and so are all its processes
            await self.survey()  # finds an older keeper again
            return await self._destroy(handle)
        finally:
            self._forget(handle)

    async def _destroy(self, handle: str) -> Usage:
        link = await self._linked()
        older = self._keepers.of(handle)
        answer, _ = await (older or link).answer({"op": "destroy", "handle": handle})
        if older is not None:
            await self._keepers.destroyed(handle)
        return Usage(**answer["usage"])

    def _forget(self, handle: str) -> None:
        sandbox = self._sandboxes.pop(handle, None)
        if sandbox is not None:
            sandbox.lost()  # for what had not ended by itself and was not told of
        if (key := self._keeping.pop(handle, None)) is not None:
            self._content.release(key)

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        try:
            link = await self._linked()
            if not _is_placed(spec):
                spec = replace(spec, environment=await self._content.with_packages(spec.environment))
            told, _ = await link.answer({"op": "prepare", "shape": self.shape(link, spec), "listen": _listen(spec)})
        except SandboxFault:
            return Prepared()  # a hint: the next create tells the fault
        return Prepared(tuple(told["modules"]), told["faults"], told["memory_mb"] << 20)

    async def stats(self) -> dict[str, Any]:
        """How many sandboxes the keeper holds: ``sandboxes``, of these ``lent`` and ``ready``; its ``zygotes`` and
        ``pid``."""
        answer, _ = await (await self._linked()).answer({"op": "stats"})
        return {name: answer[name] for name in ("pid", "sandboxes", "lent", "ready", "zygotes")}

    async def close(self) -> None:
        link, self._link = self._link, None
        self._keepers.close()
        if link is None or not link.alive:
            return
        try:
            await stop(link)
        finally:
            link.close()

    async def _linked(self) -> Link:
        if self._link is not None and self._link.alive:
            return self._link
        async with self._connecting:
            if self._link is None or not self._link.alive:
                self._link = await self._keepers.connect()
                self._environments.clear()
            return self._link

    async def _start(self, home: Path) -> socket.socket:
        self._content.restarted()
        return await launch.start(home, self.program, self.keeper_options())

    def clear(self, home: Path) -> None:
        """Removes the home of a keeper that has ended, and its traces elsewhere."""
        sweep_noted(str(home))
        shutil.rmtree(home, ignore_errors=True)

    def _linked_by(self, sock: socket.socket) -> Link:
        link = Link(
            sock, lambda *told: self._ended(link, *told), lambda: self._lost(link), self._on_part_fault, self._gone
        )
        return link

    def shape(self, link: Link, spec: SandboxSpec) -> dict[str, Any]:
        """Returns the keeper's ``Shape`` of a sandbox. The keeper learns its environment."""
        environment = spec.environment
        name = _name(environment, spec.directories)
        if name not in self._environments:
            packages = "" if environment.packages is None else self._packages(environment.packages)
            told = {"name": name, "packages": packages, "preload": list(environment.preload)}
            link.tell({"op": "environment", **told, "directories": [asdict(each) for each in spec.directories]})
            if not spec.directories:
                self._environments.add(name)
        limits = spec.limits
        return {
            "environment": name,
            "group": spec.group,
            "memory_mb": limits.memory_mb,
            "cpus": limits.cpus,
            "pids": limits.pids,
            "disk_mb": limits.disk_mb,
            **({"read_only": ",".join(spec.read_only)} if spec.read_only else {}),
            **({"terminals": True} if spec.terminals else {}),
        }

    def _packages(self, content: Content) -> str:
        path = bound(content)
        self._content.pin(path)
        return str(path)

    def _demand(self, spec: SandboxSpec) -> None:
        assert self._probe is not None
        spec.refuse_names(self.name, *self.knows)
        self._demand_protections(self._probe, spec)
        if spec.egress is not None:
            self._probe.demand("egress")
        if spec.forwarding:
            self._probe.demand("forwarding")
        if spec.terminals:
            self._probe.demand("terminals")

    def _demand_protections(self, probe: Probe, spec: SandboxSpec) -> None:
        if (spec.kernel_only, spec.allow_degraded) in self._demands_met:
            return
        if not probe.ready:
            raise ProtectionMissing(f"the {self.name} backend cannot make sandboxes here: " + probe.facts["why"])
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        self._demands_met.add((spec.kernel_only, spec.allow_degraded))

    def _ended(self, link: Link, header: dict[str, Any], body: bytes) -> None:
        handle = header["handle"]
        sandbox = self._sandboxes.get(handle)
        ending = None
        if sandbox is not None and (process := sandbox.processes.get(header["id"])) is not None:
            ending = process.ended(header, body)
        if not header["gone"] and not header.get("parting"):
            return
        usage = Usage(**header["ending"]["usage"]) if ending is None else ending.usage
        if header["gone"]:
            self._usages[handle] = usage
        elif handle not in self._parting:
            self._parting[handle] = link, usage, asyncio.get_running_loop().create_future()

    def _gone(self, handle: str) -> None:
        """Nothing is left of a sandbox whose program's end was told before."""
        if (parting := self._parting.pop(handle, None)) is not None:
            self._usages[handle] = parting[1]
            parting[2].set_result(None)

    def _lost(self, link: Link) -> None:
        for handle in [handle for handle, parting in self._parting.items() if parting[0] is link]:
            self._parting.pop(handle)[2].set_result(None)
        sandboxes = [sandbox for sandbox in self._sandboxes.values() if sandbox.is_of(link)]
        for sandbox in sandboxes:
            del self._sandboxes[sandbox.handle]
            sandbox.lost(cut_off=True)
        if link is self._link:
            self._usages.clear()
            self._on_part_end("its process ended, or its connection")
        else:
            self._keepers.lost(link)

    def _unwanted(self, link: Link, answer: dict[str, Any]) -> None:
        """Its create was cancelled while the keeper was at it."""
        close_all(answer.get("sockets", ()))
        if "handle" in answer and link.alive:
            self._sandboxes.pop(answer["handle"], None)
            link.tell({"op": "destroy", "handle": answer["handle"]})


def _nobody_hears(_: str) -> None:
    """Takes the faults of a keeper that nobody attends."""


def _name(environment: EnvironmentRef, directories: Sequence[JailDirectory] = ()) -> str:
    """Names what sandboxes share; with directories of the host they share nothing."""
    ahead = hashlib.sha256("\n".join(environment.preload).encode()).hexdigest()[:12] if environment.preload else ""
    own = f"+{secrets.token_hex(8)}" if directories else ""
    return f"{environment.name}@{environment.digest}+{ahead}{own}"


def _listen(spec: SandboxSpec) -> dict[str, Any] | None:
    return None if spec.egress is None else listen(spec.egress)


def _show(mount: Mount) -> dict[str, Any]:
    return {"source": str(bound(mount.source)), "target": mount.target, "aliases": list(mount.aliases)}


def _make(place: Place) -> NativeBackend:
    backend = NativeBackend(place.run_dir, place.settings.native, place.plug)
    backend.usual_pids = place.settings.limits.pids
    return backend


KIND = Kind(Nature(rank=1), _make)
"""Every wall of ours, and the speed of a fork."""


def _is_placed(spec: SandboxSpec) -> bool:
    """Whether each mount, and the packages, are at a place on this host."""
    packages = spec.environment.packages
    return all(mount.source.path for mount in spec.mounts) and (packages is None or packages.path is not None)
