"""The gVisor backend: the sandbox port over a keeper of runsc sandboxes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from skillyard.domain.sandbox.guarantees import Nature, Probe
from skillyard.domain.sandbox.spec import Prepared, SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.gvisor import runsc
from skillyard.sandbox.native.grounds.gvisor.probe import absent, probe
from skillyard.sandbox.native.launch import KeeperOptions
from skillyard.sandbox.registry import Kind, Place


@dataclass(frozen=True, slots=True)
class GvisorOptions(KeeperOptions):
    """``runsc`` is a path, or empty for the one on PATH; ``platform`` one of PLATFORMS or ``auto``; ``ready``
    sandboxes are made ahead for each of the shapes used last: each holds some 35 MiB."""

    PROGRAM: ClassVar[str] = "skillyard.sandbox.native.grounds.gvisor.ground"

    ready: int = 1
    runsc: str = ""
    platform: str = "auto"


_DEFAULT_OPTIONS = GvisorOptions()


class GvisorBackend(NativeBackend):
    """Sandboxes with a user-space kernel each, below ``run_dir`` (made 0700; one backend at a time holds it).

    All that the server and its keeper say to each other is the native backend's.
    """

    def __init__(self, run_dir: Path, options: GvisorOptions = _DEFAULT_OPTIONS) -> None:
        self._program = runsc.locate(options.runsc)
        super().__init__(run_dir, dataclasses.replace(options, runsc=self._program))
        self._named = options.runsc

    @property
    def name(self) -> str:
        return "gvisor"

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def look(self) -> Probe:
        if not self._program:
            return absent(f"there is no {self._named or 'runsc on PATH'}", {}, mend=runsc.MEND)
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
    backend = GvisorBackend(place.run_dir / "gvisor", GvisorOptions(**place.options))
    backend.usual_pids = place.usual_pids
    return backend


KIND = Kind(Nature(rank=2, network=False), _make, sections=("native", "gvisor"))
"""Every wall of ours that a user-space kernel needs."""
