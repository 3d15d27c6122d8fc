"""The landlock backend: the native one's keeper and zygotes, behind the walls that a plain container leaves."""

from __future__ import annotations

from typing import Any

from skillyard.domain.sandbox.guarantees import Nature, Probe
from skillyard.domain.sandbox.spec import Guest, Prepared, Program, SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.inside.places import real, root_of
from skillyard.sandbox.native.grounds.landlock.probe import probe
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.sandbox import NativeSandbox
from skillyard.sandbox.registry import Kind, Place


class LandlockSandbox(NativeSandbox):
    def __init__(self, link: Link, handle: str, enforced: dict[str, str]) -> None:
        super().__init__(link, handle, enforced)
        self._root = root_of(link.told["homes"], link.told["secret"], handle)
        self._code = link.told["code"]

    def message(self, program: Program) -> tuple[dict[str, Any], bytes]:
        return super().message(Guest(self._placed(program)) if isinstance(program, Guest) else program)

    def files_program(self) -> tuple[str, ...]:
        code = (
            f"import sys; sys.path.insert(0, {self._code!r});"
            " from skillyard.sandbox.native.grounds.landlock.inside.files import main; sys.exit(main(sys.argv[1:]))"
        )
        return ("python3", "-I", "-S", "-c", code)

    def _placed(self, program: Guest) -> dict[str, Any]:
        request = program.request
        skills = {name: {**skill, "root": real(self._root, skill["root"])} for name, skill in request["skills"].items()}
        places = {name: real(self._root, request.get(name, plain)) for name, plain in _PLACES.items()}
        return {**request, **places, "skills": skills}


_PLACES = {"workspace": "/workspace", "blob_root": "/blobs"}


_OWN_IDS = {"uid_base": 1_901_000_000, "uid_count": 16_384}
"""Ids apart from the native backend's, and more: each sandbox takes two."""


class LandlockBackend(NativeBackend):
    """Sandboxes of this host, below ``run_dir`` (made 0700; one backend at a time holds it) and, where each is a
    user of its own, below a directory that every user can enter."""

    name = "landlock"
    program = "skillyard.sandbox.native.grounds.landlock.ground"

    def keeper_options(self) -> dict[str, Any]:
        return super().keeper_options() | _OWN_IDS

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
    backend = LandlockBackend(place.run_dir / "landlock", place.settings.native)
    backend.usual_pids = place.settings.limits.pids
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
KIND = Kind(Nature(rank=3, without=_WITHOUT, network=False), _make)
"""The walls that are left where namespaces are closed."""
