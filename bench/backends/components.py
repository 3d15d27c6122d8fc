"""The real components of backends, as the conformance suite of each starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.backends import bare
from bench.backends.bare import Bare
from skillyard.config.sections import Sections
from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.secret import SecretScope
from skillyard.ports.sandbox import Backend
from skillyard.sandbox.e2b.provider import KEY_PROJECT, KEY_SKILL
from skillyard.sandbox.registry import BACKENDS, Place, kind
from skillyard.testing.twin_gate import TwinGate
from skillyard.wiring import make_sealed_stores
from tests.conformance.sandbox import e2b_ground, gvisor_ground, oci_ground, opensandbox_ground
from tests.hosts.e2b_server import API_KEY

_OURS = Path("/usr/local/lib/skillyard-ci")
"""Where ``.ci/setup`` puts programs that are not packages of Debian."""


_MACHINE_MB = 1280
"""Memory of a machine of ours for the usual limits."""


class Lacking(Exception):
    """A component is not to be had here; the message says why."""


@dataclass(frozen=True)
class Component:
    """A component that stands. ``settings`` are sections that name it, ``versions`` what it consists of.

    ``beyond`` are the checks of the suite that its backend does not hold by its nature, with the reasons, and
    ``beyond_in_verify`` those that it holds where the suite is told of its nature. ``patience`` is
    :class:`skillyard.testing.sandbox_suite.Ground`'s.
    """

    versions: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bare: Bare | None = None
    beyond: Mapping[str, str] = field(default_factory=dict)
    beyond_in_verify: Mapping[str, str] = field(default_factory=dict)
    patience: float = 1.0
    ground: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the ground."""
    key: str = ""
    """The provider's key, which the store of secrets holds."""
    rest: Callable[[], None] = lambda: None
    """Returns when what the component makes ahead is there."""

    def load(self, name: str, data_dir: Path) -> Any:
        """Returns settings by which every run has this backend."""
        return load_settings(data_dir=data_dir, policy={"isolation": name}, **self.settings)

    async def prepare(self, data_dir: Path) -> None:
        """Stores the provider's key in a data directory that nobody has opened yet."""
        if self.key:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            store, _ = make_sealed_stores(load_settings(data_dir=data_dir).secrets, DataDir(data_dir))
            await store.set("E2B_API_KEY", self.key, SecretScope(KEY_PROJECT, KEY_SKILL))

    def backend(self, name: str, run_dir: Path, gate: TwinGate) -> Backend:
        """Returns a backend over a run directory. Raises KeyError for one that this release does not have."""
        sections: Sections = self.load(name, run_dir)
        secret = e2b_ground.key if self.key else None
        return kind(name).make(Place(run_dir, run_dir, sections, gate, secret))


Open = Callable[[Path], AbstractContextManager[Component]]


@contextmanager
def _native(_: Path) -> Iterator[Component]:
    shown = (sys.base_prefix,) if not sys.base_prefix.startswith("/usr") else ()
    wrapped = bare.bubblewrap(shown) if shutil.which("bwrap") else None
    yield Component({"kernel": _kernel(), "bubblewrap": _said("bwrap", "--version").split()[-1]}, bare=wrapped)


@contextmanager
def _landlock(_: Path) -> Iterator[Component]:
    from tests.conformance.sandbox.test_landlock_backend import VARIABLES

    ground = {"variables": VARIABLES, "keeps_bounding_set": os.geteuid() != 0}
    yield Component({"kernel": _kernel()}, ground=ground)


@contextmanager
def _gvisor(scratch: Path) -> Iterator[Component]:
    program = _program("runsc", "SKILLYARD_GVISOR__RUNSC", _OURS / "runsc")
    used = bare.RunscRun(program, scratch / "runsc") if os.geteuid() == 0 else None
    versions = {"runsc": _said(program, "--version").split()[-1]}
    ground = {"witness": gvisor_ground._witness}
    yield Component(versions, {"gvisor": {"runsc": program}}, used, patience=4.0, ground=ground)


@contextmanager
def _oci(scratch: Path) -> Iterator[Component]:
    from tests.conformance.sandbox.test_oci_backend import BEYOND

    with oci_ground.engine(scratch) as (docker, settings):
        versions = docker("version", "--format", "{{.Server.Version}}").stdout.strip()
        runtimes = docker("info", "--format", "{{.DefaultRuntime}}").stdout.strip()
        used = bare.DockerRun(f"unix://{settings.socket}", settings.image)
        found = {"dockerd": versions, runtimes: _said(runtimes, "--version").split("\n")[0].split()[-1]}
        yield Component(found, {"oci": settings.model_dump()}, used, BEYOND, patience=3.0)


@contextmanager
def _srt(scratch: Path) -> Iterator[Component]:
    from tests.conformance.sandbox.test_srt_backend import BEYOND

    program = _program("srt", "SKILLYARD_SRT__COMMAND", _OURS / "srt/node_modules/.bin/srt")
    settings = {"srt": {"command": program}}
    used = bare.srt(program, scratch / "srt.json")
    found = {"srt": _said(program, "--version").split()[-1], "node": _said("node", "--version")}
    ground = {"keeps_bounding_set": True}
    bounding = dict.fromkeys(
        ("privileges-regaining", "special-files-capabilities-in-files"),
        "srt leaves the bounding set as it is: without a capability, and with no_new_privs, nothing comes of it",
    )
    yield Component(found, settings, used, BEYOND, bounding, patience=3.0, ground=ground)


@contextmanager
def _e2b(scratch: Path) -> Iterator[Component]:
    from tests.conformance.sandbox.test_e2b_backend import BEYOND

    with e2b_ground.stand_in(scratch) as provider:
        url = f"http://127.0.0.1:{provider.port}"
        versions = {"e2b (SDK)": version("e2b"), "provider": "a stand-in of the tests"}
        used = bare.E2bSdk(url, API_KEY, e2b_ground.BAKED)
        settings = provider.settings.model_dump() | {"template": e2b_ground.BAKED}
        yield Component(versions, {"e2b": settings}, used, BEYOND, patience=2.0, key=API_KEY, rest=provider.rest)


@contextmanager
def _opensandbox(scratch: Path) -> Iterator[Component]:
    from tests.conformance.sandbox.test_opensandbox_backend import BEYOND

    with opensandbox_ground.open_sandbox(scratch) as server:
        settings = server.settings()
        python = str(opensandbox_ground.SERVER.parent / "python")
        ask = "from importlib.metadata import version; print(version('opensandbox-server'))"
        versions = {
            "opensandbox-server": _said(python, "-c", ask),
            "opensandbox (SDK)": version("opensandbox"),
            "dockerd": server.docker("version", "--format", "{{.Server.Version}}").stdout.strip(),
            "execd, egress": "stand-ins of the tests",
        }
        given = {**settings.model_dump(exclude={"api_key"}), "api_key": settings.key()}
        yield Component(versions, {"opensandbox": given}, bare.OpenSandboxSdk(settings), BEYOND, patience=3.0)


@contextmanager
def _microvm(scratch: Path) -> Iterator[Component]:
    ground = import_module("tests.conformance.sandbox.microvm_ground")
    beyond = import_module("tests.conformance.sandbox.test_microvm_backend").BEYOND
    image = Path(ground.IMAGE)
    if not image.exists():
        raise Lacking(f"{image} is not there: .ci/setup long makes it")
    settings = {"microvm": {**ground.SETTINGS.model_dump(exclude={"ready"}), "image": str(image)}}
    versions = {"QEMU": _said("qemu-system-x86_64", "--version").split("version ")[-1], "accelerator": "emulation"}
    used = bare.QemuRestored(image, scratch / "qemu", _MACHINE_MB)
    yield Component(versions, settings, used, beyond, patience=10.0, ground={"witness": ground.witness})


COMPONENTS: dict[str, Open] = {
    "native": _native,
    "gvisor": _gvisor,
    "landlock": _landlock,
    "oci": _oci,
    "srt": _srt,
    "e2b": _e2b,
    "opensandbox": _opensandbox,
    **({"microvm": _microvm} if "microvm" in BACKENDS else {}),
}
"""How the component of each backend is started: a backend that joins the registry has one row here."""


def _kernel() -> str:
    return os.uname().release.partition("-")[0]


def _program(name: str, variable: str, installed: Path) -> str:
    """Returns the path of a program. Raises Lacking."""
    found = os.environ.get(variable) or (str(installed) if installed.exists() else shutil.which(name))
    if not found:
        raise Lacking(f"{name} is not installed: .ci/setup does it, or name it in {variable}")
    return found


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not here"
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
