"""The gVisor backend: the sandbox port over a keeper of runsc sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skillyard.config.backends import GvisorSettings, NativeSettings
from skillyard.domain.sandbox.guarantees import Nature, Probe
from skillyard.domain.sandbox.spec import Prepared, SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.gvisor import runsc
from skillyard.sandbox.native.grounds.gvisor.probe import absent, probe
from skillyard.sandbox.registry import Kind, Place

_USUAL, _USUAL_NATIVE = GvisorSettings(), NativeSettings()


class GvisorBackend(NativeBackend):
    """Sandboxes with a user-space kernel each, below ``run_dir`` (made 0700; one backend at a time holds it).

    All that the server and its keeper say to each other is the native backend's.
    """

    name = "gvisor"
    program = "skillyard.sandbox.native.grounds.gvisor.ground"

    def __init__(
        self, run_dir: Path, settings: GvisorSettings = _USUAL, native: NativeSettings = _USUAL_NATIVE
    ) -> None:
        super().__init__(run_dir, native)
        self._gvisor = settings
        self._runsc = runsc.locate(settings.runsc)

    def keeper_options(self) -> dict[str, Any]:
        return {**super().keeper_options(), **self._gvisor.model_dump(), "runsc": self._runsc}

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def look(self) -> Probe:
        if not self._runsc:
            return absent(f"there is no {self._gvisor.runsc or 'runsc on PATH'}", {}, mend=runsc.MEND)
        return await probe(self)

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        """Each sandbox has an interpreter of its own: importing ahead would cost every one of them."""
        return None if spec.environment.preload else await super().prepare(spec)

    async def outside(self, handle: str) -> dict[str, Any]:
        """What a sandbox is on the host: ``platform``; of its sentry ``status`` and ``spaces`` (/proc/PID/status and
        ns); ``uids`` of all its processes, as the keeper counts them. Raises SandboxGone."""
        answer, _ = await (await self._linked()).answer({"op": "outside", "handle": handle})
        return answer


def _make(place: Place) -> GvisorBackend:
    """Its keeper stands beside the native one, and takes a block of user ids of its own from the same range."""
    backend = GvisorBackend(place.run_dir / "gvisor", place.settings.gvisor, place.settings.native)
    backend.usual_pids = place.settings.limits.pids
    return backend


KIND = Kind(Nature(rank=2, network=False), _make)
"""Every wall of ours that a user-space kernel needs."""
