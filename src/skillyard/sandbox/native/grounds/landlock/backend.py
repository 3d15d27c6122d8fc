"""The landlock backend: the native one's keeper and zygotes, behind the walls that a plain container leaves."""

from __future__ import annotations

from pathlib import Path

from skillyard.domain.sandbox.guarantees import Nature, Probe
from skillyard.domain.sandbox.spec import Prepared, SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.options import LandlockOptions
from skillyard.sandbox.native.grounds.landlock.probe import probe
from skillyard.sandbox.native.grounds.landlock.sandbox import LandlockSandbox
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.registry import Kind, Place

_DEFAULT_OPTIONS = LandlockOptions()


class LandlockBackend(NativeBackend):
    """Sandboxes of this host, below ``run_dir`` (made 0700; one backend at a time holds it) and, where each is a
    user of its own, below a directory that every user can enter."""

    def __init__(self, run_dir: Path, options: LandlockOptions = _DEFAULT_OPTIONS) -> None:
        super().__init__(run_dir, options)

    @property
    def name(self) -> str:
        return "landlock"

    @property
    def nature(self) -> Nature:
        return KIND.nature

    async def look(self) -> Probe:
        return await probe(self)

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        """Where packages are imported ahead, programs see nothing of /proc: so only what the operator names is."""
        return None if spec.environment.preload else await super().prepare(spec)

    def hold(self, link: Link, handle: str, enforced: dict[str, str]) -> LandlockSandbox:
        return LandlockSandbox(link, handle, enforced)


def _make(place: Place) -> LandlockBackend:
    """Its keeper stands beside the native one; its user ids are apart from those."""
    own = {name: value for name, value in place.options.items() if name not in ("uid_base", "uid_count")}
    backend = LandlockBackend(place.run_dir / "landlock", LandlockOptions(**own))
    backend.usual_pids = place.usual_pids
    return backend


_WITHOUT = frozenset(
    {
        "user_namespace",
        "mount_namespace",
        "pid_namespace",
        "net_namespace",
        "ipc_namespace",
        "read_only_root",
        "private_proc",
    }
)
KIND = Kind(Nature(rank=3, without=_WITHOUT, network=False), _make, sections=("native",))
"""The walls that are left where namespaces are closed."""
