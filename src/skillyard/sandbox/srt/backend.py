"""The srt backend: it makes, finds and removes run directories of srt.

Each sandbox has a run directory: its state, the socket of its agent, srt's settings and what srt wrote. A later server
finds the sandboxes of an earlier one there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from skillyard.config.backends import NativeSettings
from skillyard.config.srt import SrtSettings
from skillyard.domain.errors import InvalidInput, SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.sandbox.guarantees import Demand, Level, Nature, Probe
from skillyard.domain.sandbox.spec import Held, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_client import AgentSandbox, plugged
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.bounds import Bounds, removed
from skillyard.sandbox.content import ContentCache
from skillyard.sandbox.native.probe import look_inside
from skillyard.sandbox.registry import Kind, Place
from skillyard.sandbox.srt import bounds, run, stage, tools
from skillyard.sandbox.srt.probe import LOOK, NAME, WITHOUT, absent, judge
from skillyard.sandbox.srt.settings import settings
from skillyard.sandbox.turns import Turns
from skillyard.threads import to_its_end

_BEGINS_S = 60.0
"""Time for an agent to begin, on a host that does much else. One that has ended is told of at once."""
_LOOK_LIMITS = Limits(timeout_ms=30_000, disk_mb=8)


class SrtBackend:
    """Sandboxes below ``srt.local_root``, or ``run_dir``. Those owned as TASK outlive this object."""

    name = NAME

    def __init__(
        self,
        run_dir: Path,
        ours: SrtSettings | None = None,
        native: NativeSettings | None = None,
        gate: Plug | None = None,
    ) -> None:
        self._gate = gate
        self._ours, native = ours or SrtSettings(), native or NativeSettings()
        self._root = self._ours.local_root or run_dir
        self._uids = (native.uid_base + native.uid_count, native.uid_count)
        self._bounds = Bounds(NAME, self._root)
        self._tools: tools.Tools | None = None
        self._open: dict[str, AgentSandbox] = {}
        self._creating = Turns()
        self._naming = asyncio.Lock()
        self._destroying: dict[str, asyncio.Task[Usage]] = {}
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._written = ""
        cache = self._ours.cache_root or run_dir / "content"
        self._content = ContentCache(cache, self.survey, native.content_mb << 20)

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def probe(self) -> Probe:
        async with self._probing:
            if self._probe is None or not self._probe.ready:
                self._probe = await self._look()
            return self._probe

    async def _look(self) -> Probe:
        """Makes a sandbox and looks round in it. Never raises: the result has the reason."""
        facts: dict[str, str] = {}
        try:
            self._written = ""
            self._written = self._digest()
            facts = {**(await self._found()).versions, "srt_settings": self._written}
            with closing(socket.create_server(("127.0.0.1", 0))) as listener, tempfile.NamedTemporaryFile() as canary:
                Path(canary.name).chmod(0o644)
                words = (str(listener.getsockname()[1]), canary.name, str(os.getpid()))
                spec = SandboxSpec(limits=_LOOK_LIMITS)
                sandbox = await self._make(spec, f"probe-{secrets.token_hex(8)}", {})
                try:
                    seen = await look_inside(sandbox, LOOK, *words, bound_ms=_LOOK_LIMITS.timeout_ms)
                    limits = {
                        name: self._bounds.lacking(kind) for name, kind in (("memory", "memory"), ("cpus", "cpu"))
                    }
                    egress = await sandbox.way_out.look(sandbox, Level.SUPERVISED)
                finally:
                    await self.destroy(sandbox.handle)
            return judge(seen, os.geteuid() == 0, _LOOK_LIMITS.disk_mb << 20, facts, limits, egress)
        except SkillyardError as error:
            return absent(error.message, facts)
        except (LookupError, TypeError, ValueError, OSError) as error:
            return absent(f"a test sandbox could not be looked at: {error}", facts)

    def _digest(self) -> str:
        """Returns a digest of srt's settings, whose file may be changed. Raises InvalidInput."""
        return hashlib.sha256(json.dumps(settings(self._ours, stage.WRAPPER), sort_keys=True).encode()).hexdigest()

    async def changed(self) -> bool:
        try:
            changed = self._written not in ("", self._digest())
        except InvalidInput:  # each sandbox is refused as long as the file is wrong
            return False
        if changed:
            self._probe = None
        return changed

    async def _found(self) -> tools.Tools:
        if self._tools is None:
            self._tools = await tools.find(self._ours.command)
        return self._tools

    async def create(self, spec: SandboxSpec, key: str) -> AgentSandbox:
        probe = await self.probe()
        Demand(spec.kernel_only, spec.allow_degraded).check(probe.protections)
        spec.refuse_names(self.name)
        if spec.egress is not None:
            probe.demand("egress")
        async with self._creating.of(key):
            for handle, state in run.states(self._root).items():
                if state["key"] == key and handle not in self._destroying:
                    return await plugged(await self.attach(handle), spec.egress, self.destroy)
            async with self._content.placed(spec, key) as placed:
                sandbox = await self._make(placed, key, probe.enforced())
            return await plugged(sandbox, spec.egress, self.destroy)

    async def _make(self, spec: SandboxSpec, key: str, enforced: dict[str, str]) -> AgentSandbox:
        handle = f"{run.PREFIX}{secrets.token_hex(8)}"
        place = self._root / handle
        found = await self._found()
        state: dict[str, Any] = {"key": key, "owner": spec.owner.value, "enforced": enforced}
        state |= {"began": time.clock_gettime(time.CLOCK_BOOTTIME), "timeout_ms": spec.limits.timeout_ms}
        state |= {"secret": secrets.token_hex(32), "pid": 0, "started": run.NOT_STARTED, "uid": None}
        try:
            async with self._naming:
                run.claim(self._root)
                if os.geteuid() == 0:
                    held = (one["uid"] for one in run.states(self._root).values())
                    state["uid"] = run.free_uid(*self._uids, held)
                state["group"] = await to_its_end(self._bounds.of, handle)
                run.make(place, spec, settings(self._ours, stage.WRAPPER), state)
            if state["group"]:
                self._bounds.make(handle, bounds.starting(spec.limits))
            await to_its_end(run.launch, place, spec, found, state)
            sandbox = await self._attached(handle, state)
            sandbox.new = True
            if state["group"]:
                bounds.tighten(state["group"], spec.limits)
            return sandbox
        except BaseException:
            await self.destroy(handle)
            raise

    async def _attached(self, handle: str, state: dict[str, Any]) -> AgentSandbox:
        place = self._root / handle
        reach = Reach(run.opener(place), bytes.fromhex(state["secret"]), first_s=_BEGINS_S)
        lease_s = run.LEASE_S if state["owner"] == Owner.RUN else None
        sandbox = AgentSandbox(
            reach,
            handle,
            state["enforced"],
            timeout_ms=state["timeout_ms"],
            lease_s=lease_s,
            gate=self._gate,
            proxy_port=stage.PROXY_PORT,
        )
        try:
            await sandbox.connect()
        except SandboxGone:
            raise
        except SandboxFault as fault:
            await sandbox.close()
            if state["pid"] and not run.alive(state):
                raise SandboxGone(f"srt has ended: {run.complaint(place)}") from fault
            raise SandboxFault(f"{fault.message}; srt wrote: {run.complaint(place)}") from fault
        return self._open.setdefault(handle, sandbox)

    async def attach(self, handle: str) -> AgentSandbox:
        if handle not in self._open:
            state = run.states(self._root).get(handle)
            if state is None:
                raise SandboxGone(f"sandbox {handle} is unknown here")
            return await self._attached(handle, state)
        return self._open[handle]

    async def survey(self) -> Sequence[Held]:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        held = run.states(self._root).items()
        return [Held(handle, one["key"], Owner(one["owner"]), now - one["began"]) for handle, one in held]

    async def destroy(self, handle: str) -> Usage:
        place = self._root / handle
        if Path(handle).name != handle or not handle.startswith(run.PREFIX) or not place.is_dir():
            return Usage()
        if handle not in self._destroying:
            task = self._destroying[handle] = asyncio.create_task(self._destroy(handle))
            task.add_done_callback(lambda _: self._destroying.pop(handle))
        return await asyncio.shield(self._destroying[handle])

    async def _destroy(self, handle: str) -> Usage:
        place, used = self._root / handle, Usage()
        state = run.states(self._root).get(handle, {})
        if state and (run.alive(state) or state["started"] == run.NOT_STARTED):
            with suppress(SandboxFault):
                used = await (await self.attach(handle)).end()
        if sandbox := self._open.pop(handle, None):
            await sandbox.close()
        if state:
            await run.ended(state)
            await removed(state.get("group", {}))
        await _remove(place)
        if state:
            self._content.release(state["key"])
        wall_ms = (time.clock_gettime(time.CLOCK_BOOTTIME) - state["began"]) * 1000 if state else None
        return Usage(used.cpu_ms, used.peak_memory_bytes, wall_ms)

    async def prepare(self, spec: SandboxSpec) -> None:
        """Nothing can be made ahead."""

    async def close(self) -> None:
        states = run.states(self._root)
        for handle, sandbox in list(self._open.items()):
            if states.get(handle, {}).get("owner") == Owner.TASK:
                await sandbox.close()
            else:
                await self.destroy(handle)
        self._open.clear()
        self._bounds.close()


async def _remove(place: Path) -> None:
    """Removes a run directory, in which foreign code never wrote."""
    process = await asyncio.create_subprocess_exec("rm", "-rf", "--", str(place), stderr=subprocess.DEVNULL)
    await process.wait()
    if place.exists():
        raise SandboxFault(f"{place} could not be removed")


def _make(place: Place) -> SrtBackend:
    return SrtBackend(place.run_dir / NAME, place.settings.srt, place.settings.native, place.plug)


KIND = Kind(Nature(without=WITHOUT), _make)
