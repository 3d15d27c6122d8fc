"""The microvm backend: one QEMU machine for each sandbox, restored from a snapshot.

All state is in a directory for each machine, so that another server finds what an earlier one made.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skillyard.config.backends import MicrovmSettings
from skillyard.domain.errors import SandboxFault, SandboxGone, SkillyardError, shown
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.package.platforms import Platform, foreign
from skillyard.domain.sandbox.guarantees import Demand, Level, Nature, Probe
from skillyard.domain.sandbox.spec import Held, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import ChannelLost
from skillyard.sandbox.agent_client import AgentSandbox, plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.bounds import Bounds, join_files, removed
from skillyard.sandbox.content import ContentCache
from skillyard.sandbox.e2b import order as orders
from skillyard.sandbox.microvm import machine
from skillyard.sandbox.microvm.accel import Accelerator
from skillyard.sandbox.microvm.channel import opener
from skillyard.sandbox.microvm.first import seed_message
from skillyard.sandbox.microvm.image import Image, built_at, open_image
from skillyard.sandbox.microvm.machine import Shape, count
from skillyard.sandbox.microvm.probe import LOOK, NAME, WITHOUT, absent, judge
from skillyard.sandbox.microvm.snapshot import GUEST, Snapshots, last_words
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.probe import look_inside
from skillyard.sandbox.oci import container
from skillyard.sandbox.oci.pool import Pool, shape_of
from skillyard.sandbox.registry import Kind, Place
from skillyard.sandbox.turns import Turns
from skillyard.threads import to_its_end

LEASE_S = 8.0
"""How long a machine outlives its server: one that is ready, and one of a run that the kernel does not end with it."""
YOUNG_S = 10.0
"""How long none is restored ahead beside a new sandbox: under emulation a short run takes seconds, and a processor."""
KERNEL_MB = 160
"""Memory of a machine for its kernel, our files and the channels."""
_STEP_MB, _LARGE_MB, _LARGE_STEP_MB = 128, 2048, 512
USUAL = "microvm"
"""The image of machines in a data directory."""
_CONTROLLERS = {"memory": "memory", "pids": "pids", "cpus": "cpu"}
_HANDLE = re.compile(r"vm-[0-9a-f]{16}")
_STATE = "state.json"
_MADE_S = 300.0
_HELLOS = 4
_LOOK_MS = 60_000
_MOST_TOLD = 64 * 1024
_READ = 256 * 1024


class MicrovmBackend:
    """Machines of the image that ``settings`` name, or of ``usual``. ``state`` has all that is kept of them.

    ``limits`` are those of the usual sandbox: its snapshot is made first.
    """

    name = NAME

    def __init__(
        self, state: Path, settings: MicrovmSettings, usual: Path, limits: Limits, gate: Plug | None = None
    ) -> None:
        self._state, self._settings, self._gate = state, settings, gate
        self._directory = Path(settings.image) if settings.image else usual
        self._limits = limits
        self._machines = state / "machines"
        self._bounds = Bounds(NAME, state)
        self._open: dict[str, AgentSandbox] = {}
        self._pool = Pool(settings.ready, self._made_ahead, self._drop, YOUNG_S)
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._creating = Turns()
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._image: Image | None = None
        self._earlier: list[Image] = []
        """Images that were replaced meanwhile: machines of them may just begin."""
        self._built: tuple[int, ...] = ()
        self._accelerator = Accelerator(state, settings)
        self._snapshots = Snapshots(state / "snapshots")
        self._content = ContentCache(state / "content", self.survey)
        self._machine: Mapping[str, Any] = {}
        """The last machine's account of itself."""
        self._interpreter: object = None

    @property
    def nature(self) -> Nature:
        return KIND.nature

    # the probe

    async def probe(self) -> Probe:
        """A failure is not kept: the image may be there the next time."""
        async with self._probing:
            if self._probe is None:
                found = await self._look()
                if not found.ready:
                    return found
                self._probe = found
            return self._probe

    async def _look(self) -> Probe:
        facts: dict[str, str] = {"image": str(self._directory)}
        await to_its_end(_sweep, self._state)
        try:
            if self._image is None or self._built != built_at(self._directory):
                self._built = built_at(self._directory)
                opened = await to_its_end(open_image, self._directory)
                self._earlier += [self._image] if self._image is not None else []
                self._image = opened
            facts |= {"image_digest": self._image.digest, "image_from": self._image.facts.get("from", "")}
            accel = await self._accelerator.found(self._image, self._uid())
            facts |= {"qemu": accel.version, "accel": accel.name, "accel_why": accel.why}
            spec = SandboxSpec(limits=self._limits)
            sandbox = await self._make(spec, f"probe-{secrets.token_hex(8)}", {})
            try:
                seen = await look_inside(sandbox, LOOK, bound_ms=_LOOK_MS)
                egress = await sandbox.way_out.look(sandbox, Level.SUPERVISED)
                around = await to_its_end(self._around, sandbox.handle)
            finally:
                await self.destroy(sandbox.handle)
            self._interpreter = seen.get("interpreter")
            facts["qemu_group"] = ", ".join(around) or self._bounds.lacking("memory")
            return judge(seen, self._machine, self._limits, orders.SPARE, facts, egress, around)
        except SkillyardError as error:
            return absent(error.message, facts)
        except (LookupError, TypeError, ValueError) as error:
            return absent(f"a test machine tells nothing that we understand: {error}"[:300], facts)

    def _around(self, handle: str) -> list[str]:
        """Returns the limits of a control group round the QEMU of a machine. Raises SandboxFault."""
        state = self._state_of(handle) or {}
        if not (account := state.get("group")):
            return []
        if not all(state["pid"] in members for members in Group(account["version"], account["directories"]).members()):
            raise SandboxFault("QEMU is not in the control group that was made for it")
        return [limit for limit, controller in _CONTROLLERS.items() if not self._bounds.lacking(controller)]

    async def changed(self) -> bool:
        if changed := self._built not in ((), built_at(self._directory)):
            self._probe = None
            self._pool.drain(lambda _: False)
        return changed

    # the life of a sandbox

    async def create(self, spec: SandboxSpec, key: str) -> AgentSandbox:
        probe = await self.probe()
        if not probe.ready:
            raise SandboxFault(f"no machine can be had: {probe.facts.get('why', '')}")
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name)
        if spec.egress is not None:
            probe.demand("egress")
        if spec.environment.packages is not None:
            spec.environment.check_fits(await self.platform_of(spec))
        async with self._creating.of(key):
            with self._pool.busy():
                sandbox = await self._created(spec, key, probe)
                self._pool.aged(sandbox.handle)
                self._pool.lent(sandbox.handle)
            return await plugged(sandbox, spec.egress, self.destroy)

    async def _created(self, spec: SandboxSpec, key: str, probe: Probe) -> AgentSandbox:
        """Returns the sandbox of ``key``: its own, one that was made ahead, or a new one."""
        if (handle := self._found(key)) is not None:
            return await self.attach(handle)
        assert self._image is not None
        if (shape := shape_of(spec, self._image.digest)) is not None:
            ready = await self._pool.soon(shape)
            self._pool.want(shape, spec)
            if ready is not None:
                return await self._lent(ready, spec, key)
        try:
            async with self._content.placed(spec, key) as placed:
                return await self._make(placed, key, probe.enforced())
        finally:
            self._content.release(key)  # it was uploaded

    async def _lent(self, ready: AgentSandbox, spec: SandboxSpec, key: str) -> AgentSandbox:
        """Returns a machine that was made ahead as that of ``key``. Raises SandboxGone, SandboxFault."""
        state = self._state_of(ready.handle) or {}
        lent = {"key": key, "made": time.time(), "timeout_ms": spec.limits.timeout_ms, "ready": False}
        _write_state(self._machines / ready.handle, state | lent)
        ready.timeout_ms = spec.limits.timeout_ms
        self._open[ready.handle] = ready
        if spec.owner is Owner.TASK:  # behind its record, so that a server that is killed leaves none unknown
            try:
                await ready.keep()
            except BaseException:
                await asyncio.shield(self.destroy(ready.handle))
                raise
        return ready

    async def _made_ahead(self, spec: SandboxSpec, _: str) -> AgentSandbox:
        """Makes a machine for the pool. Raises SkillyardError."""
        key, probe = f"ready-{secrets.token_hex(16)}", await self.probe()
        try:
            async with self._content.placed(spec, key) as placed:
                sandbox = await self._make(placed, key, probe.enforced(), ahead=True)
        finally:
            self._content.release(key)
        del self._open[sandbox.handle]  # nobody is lent it yet
        return sandbox

    async def _drop(self, sandbox: AgentSandbox) -> None:
        await sandbox.close()
        await self.destroy(sandbox.handle)

    async def platform_of(self, spec: SandboxSpec) -> Platform | None:  # noqa: ARG002 - there is one image
        await self.probe()
        return foreign(self._interpreter)

    def _found(self, key: str) -> str | None:
        """Returns the handle of the machine of ``key`` that lives."""
        for handle, state in self._states().items():
            if state["key"] == key and not state.get("ready") and _lives(state):
                return handle
        return None

    async def _make(
        self, spec: SandboxSpec, key: str, enforced: Mapping[str, str], *, ahead: bool = False
    ) -> AgentSandbox:
        handle = f"vm-{secrets.token_hex(8)}"
        place = self._machines / handle
        group = await to_its_end(self._bounds.of, handle)
        uid, image = self._uid(), self._image
        assert image is not None
        state: dict[str, Any] = {
            "key": key,
            "owner": spec.owner.value,
            "made": time.time(),
            "enforced": dict(enforced),
            "timeout_ms": spec.limits.timeout_ms,
            "secret": secrets.token_hex(32),
            "uid": uid,
            "image": f"sha256:{image.digest}",
            "group": group,
            "ready": ahead,
            "ahead": ahead,
        }
        try:
            place.mkdir(mode=0o700, parents=True)
            _write_state(place, state)
            with tempfile.TemporaryFile() as content:
                await to_its_end(orders.pack, orders.lacking(spec, frozenset()), content)
                size = content.tell() if orders.lacking(spec, frozenset()) else 0
                content.seek(0)
                shape = await self._shape(spec.limits, size)
                saved = await self._snapshots.of(image, shape, uid)
                if state["group"]:
                    self._bounds.make(handle, shape.room())
                async with saved.begun(shape) as begins:
                    dies, groups = spec.owner is Owner.RUN, join_files(state["group"])
                    pid = machine.launch(place, shape, image, uid, handle, *begins, dies=dies, groups=groups)
                state |= {"pid": pid, "began": machine.began(pid)}
                _write_state(place, state)
                leased = ahead or spec.owner is Owner.RUN
                order = _order(spec, state["secret"], shape, size, leased=leased, ahead=ahead)
                order["account"] = self._probe is None
                told = await _ordered(place, order, content)
                self._machine = told if order["account"] else self._machine
            made = await self._attached(handle, state, leased=leased)
            made.new = True
            return made
        except BaseException:
            await asyncio.shield(self.destroy(handle))
            raise

    async def _shape(self, limits: Limits, content: int) -> Shape:
        """Returns the machine for limits, and for content in its memory.

        It has one of few sizes, so that few snapshots serve all.
        """
        assert self._image is not None
        accel = await self._accelerator.found(self._image, None)
        wanted = (container.memory(limits) + content) // (1 << 20) + KERNEL_MB
        step = _STEP_MB if wanted <= _LARGE_MB else _LARGE_STEP_MB
        processors = min(max(1, -int(-limits.cpus // 1)), os.cpu_count() or 1)
        return Shape(accel.qemu, accel.version, accel.name, -(-wanted // step) * step, processors)

    async def attach(self, handle: str) -> AgentSandbox:
        if (sandbox := self._open.get(handle)) is not None:
            return sandbox
        state = self._state_of(handle)
        if state is None or state.get("ready") or not _lives(state):
            raise SandboxGone(f"sandbox {shown(handle)} is unknown here")
        return await self._attached(handle, state, leased=state["owner"] == Owner.RUN)

    async def _attached(self, handle: str, state: Mapping[str, Any], *, leased: bool) -> AgentSandbox:
        lease_s = LEASE_S if leased else None
        reach = Reach(opener(self._machines / handle), bytes.fromhex(state["secret"]))
        enforced, timeout_ms = state["enforced"], state["timeout_ms"]
        sandbox = AgentSandbox(
            reach, handle, enforced, timeout_ms=timeout_ms, lease_s=lease_s, image=state["image"], gate=self._gate
        )
        try:
            await _connect(sandbox)
            if state.get("ahead") and not leased:  # the server that lent it may have been killed before it did so
                await sandbox.keep()
        except BaseException:
            await sandbox.close()
            raise
        return self._open.setdefault(handle, sandbox)

    async def survey(self) -> Sequence[Held]:
        now, found = time.time(), []
        for handle, state in self._states().items():
            age_s = max(0.0, now - state["made"])
            if not state.get("ready"):
                found.append(Held(handle, state["key"], Owner(state["owner"]), age_s))
            elif not _lives(state) and ("pid" in state or age_s > _MADE_S):  # it ended with an earlier server
                await self.destroy(handle)
        return found

    async def stats(self) -> dict[str, int]:
        """Returns how many machines there are: ``sandboxes``, of these ``lent`` and ``ready``."""
        lent, ready = len(await self.survey()), self._pool.count
        return {"sandboxes": lent + ready, "lent": lent, "ready": ready}

    async def standing(self) -> int:
        return count()

    async def destroy(self, handle: str) -> Usage:
        if handle not in self._destroying:
            task = self._destroying[handle] = asyncio.create_task(self._destroy(handle))
            task.add_done_callback(lambda _: self._destroying.pop(handle))
        return await asyncio.shield(self._destroying[handle])

    async def _destroy(self, handle: str) -> Usage:
        if not _HANDLE.fullmatch(handle) or not (place := self._machines / handle).is_dir():
            return Usage()
        state, sandbox = self._state_of(handle) or {}, self._open.pop(handle, None)
        with self._pool.busy():
            self._pool.aged(handle)
            return await self._ended(place, state, sandbox)

    async def _ended(self, place: Path, state: Mapping[str, Any], sandbox: AgentSandbox | None) -> Usage:
        used = Usage()
        if sandbox is not None:
            with suppress(SandboxFault):
                used = await sandbox.end()
            await sandbox.close()
        if "pid" in state:
            await machine.end(state["pid"], state["began"])
        else:  # its server was killed at this moment
            for pid in list(machine.processes_of(place.name)):
                await machine.end(pid, machine.began(pid))
        await removed(state.get("group", {}))
        await to_its_end(shutil.rmtree, place)
        wall_ms = max(0.0, time.time() - state["made"]) * 1000 if state else None
        return Usage(used.cpu_ms, used.peak_memory_bytes, wall_ms)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Has a machine of this shape ready, where such can be made ahead."""
        if not (await self.probe()).ready or self._image is None:
            return
        if (shape := shape_of(spec, self._image.digest)) is not None:
            self._pool.want(shape, spec)

    async def close(self) -> None:
        await self._pool.close()
        for handle, sandbox in list(self._open.items()):
            if (self._state_of(handle) or {}).get("owner") == Owner.TASK:
                await sandbox.close()
            else:
                await self.destroy(handle)
        self._open.clear()
        self._snapshots.close()
        self._bounds.close()
        for image in (*self._earlier, *([self._image] if self._image is not None else [])):
            image.close()
        self._image, self._probe = None, None
        self._earlier.clear()

    # state

    def _states(self) -> dict[str, dict[str, Any]]:
        names = [place.name for place in self._machines.iterdir()] if self._machines.is_dir() else []
        found = {name: self._state_of(name) for name in names}
        return {name: state for name, state in found.items() if state is not None}

    def _state_of(self, handle: str) -> dict[str, Any] | None:
        if not _HANDLE.fullmatch(handle):
            return None
        try:
            found: dict[str, Any] = json.loads((self._machines / handle / _STATE).read_text())
        except FileNotFoundError:
            return None
        return found

    def _uid(self) -> int | None:
        """Returns a user that no machine has; None where this server is not root."""
        if os.geteuid() != 0:
            return None
        taken = {state.get("uid") for state in self._states().values()}
        first, most = self._settings.uid_base, self._settings.uid_count
        for _ in range(1000):
            if (uid := first + secrets.randbelow(most)) not in taken:
                return uid
        raise SandboxFault("no user id is free for a machine; raise microvm.uid_count")


async def _connect(sandbox: AgentSandbox) -> None:
    """Opens the first channel. Under emulation an agent may take longer to begin than one hello may."""
    for _ in range(_HELLOS - 1):
        with suppress(ChannelLost):
            await sandbox.connect()
            return
    await sandbox.connect()


def _order(spec: SandboxSpec, secret: str, shape: Shape, archive: int, *, leased: bool, ahead: bool) -> dict[str, Any]:
    given = orders.order(spec, secret, GUEST, shape.processors)
    del given["fixed"]  # it is in the snapshot
    given["agent"] |= {"lease_s": LEASE_S if leased else None, "ahead": ahead or given["agent"]["ahead"]}
    return given | {"archive": archive}


async def _ordered(place: Path, order: Mapping[str, Any], content: Any) -> dict[str, Any]:
    """Gives a restored machine its entropy, order and content; returns what it tells of itself. Raises SandboxFault."""
    try:
        async with asyncio.timeout(_MADE_S):
            reader, writer = await machine.connect(place, machine.ORDER)
            try:
                writer.write(seed_message() + json.dumps(order).encode() + b"\n")
                await _told(reader)  # the line was taken, and nothing behind it
                while data := await to_its_end(content.read, _READ) if order["archive"] else b"":
                    writer.write(data)
                    await writer.drain()
                return await _told(reader)
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        why = str(error) or type(error).__name__
        raise SandboxFault(f"the machine does not take its order: {why}: {last_words(place)}"[:500]) from None


async def _told(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Returns a line of a machine, which is nobody's yet. Raises SandboxFault, EOFError, ValueError."""
    line = await reader.readline()
    if not line:
        raise EOFError("it ended")
    try:
        told = parse_json(line[:_MOST_TOLD])
    except BadJson as bad:
        raise ValueError(str(bad)) from None
    if not isinstance(told, dict):
        raise ValueError("it tells nothing that we understand")
    if "error" in told:
        raise SandboxFault(f"the sandbox could not be made in its machine: {shown(told['error'])}")
    return told


def _lives(state: Mapping[str, Any]) -> bool:
    return "pid" in state and machine.began(state["pid"]) == state["began"] != ""


def _sweep(state: Path) -> None:
    """Removes the directories of a server that was killed before it had written what they are."""
    before = time.time() - _MADE_S
    for place in (*state.glob(".probe-*"), *(state / "machines").glob("*")):
        if not (place / _STATE).exists() and place.stat().st_mtime < before:
            shutil.rmtree(place, ignore_errors=True)


def _write_state(place: Path, state: Mapping[str, Any]) -> None:
    part = place / "state.part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(state, file)
    part.rename(place / _STATE)


def _make(place: Place) -> MicrovmBackend:
    limits = place.settings.limits.family.defaults
    usual = place.home / USUAL
    return MicrovmBackend(place.run_dir / "microvm", place.settings.microvm, usual, limits, place.plug)


KIND = Kind(Nature(without=WITHOUT), _make)
