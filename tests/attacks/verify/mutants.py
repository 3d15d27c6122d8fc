"""Walls taken away, one at a time, so that each is shown to be needed and each attack to be able to fail.

A mutant is a copy of the package with a few lines behind some modules; the keeper, the zygote and the sandboxes run
from that copy, the server from the real one. Nothing that is shipped can lower a wall: this lives in the tests alone.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import skillyard
from skillyard import own_process
from skillyard.config.backends import NativeSettings
from skillyard.config.settings import Settings
from skillyard.domain.sandbox.guarantees import Probe, Protection
from skillyard.ports.gate import Plug
from skillyard.sandbox import registry
from skillyard.sandbox.native import backend as native
from skillyard.sandbox.native import launch
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.inside.steps import LIBRARY
from skillyard.testing.attacks.canaries import planted, planted_file
from skillyard.verify.home import own_runtime
from skillyard.verify.site import Site

PACKAGE = Path(skillyard.__file__).parent
TABLE = "sandbox/native/grounds/namespaces/table.py"
"""The walls as the compiled part makes them."""
Claims = Mapping[str, Protection]
Outside = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``without`` names what is gone: protections, or a rule of the server in words. ``inside``: source that is put
    behind modules of the copy; ``outside``: changes to the server in this process. ``escapes``: attacks that must
    escape then. ``who``: whose walls these are, ``root``, ``ordinary`` or ``both``. ``canary``: targets are planted.
    ``short``: tried in the default form of the tests. ``network``: its runs have the way out that policy gives, by a
    gate that runs from the copy too. ``leaves``: files of the host that its attacks make. ``at_once``: its attacks
    wait and do not measure, so that they are tried beside each other."""

    id: str
    without: tuple[str, ...]
    how: str
    escapes: tuple[str, ...]
    inside: Mapping[str, str] = field(default_factory=dict)
    outside: Outside | None = None
    who: str = "both"
    canary: bool = False
    short: bool = False
    network: bool = False
    leaves: tuple[str, ...] = ()
    at_once: bool = False

    def __str__(self) -> str:
        return self.id


class Claiming(NativeBackend):
    """Claims what the unharmed backend has: else every run of a mutant would be refused, as it should be."""

    def __init__(self, run_dir: Path, claims: Claims | None, plug: Plug | None = None) -> None:
        super().__init__(run_dir, NativeSettings(ready=1), plug)
        self._claims = claims

    async def probe(self) -> Probe:
        found = await super().probe()
        if self._claims is not None and found.protections is not self._claims:
            assert found.ready, found.facts
            self._probe = found = replace(found, ready=True, protections=self._claims)
            self._enforced = found.enforced()
        return found


def copy_of(mutant: Mutant, directory: Path) -> Path:
    """The package with the mutant's lines; returns its copy of the launcher."""
    target = directory / "skillyard"
    parts = ["__pycache__", "verify", "faces", "bench", "demo", "testing", "bundled"]
    if TABLE not in mutant.inside:  # the lines are of the walls in Python
        parts.append(LIBRARY)
    ignored = shutil.ignore_patterns(*parts)
    shutil.copytree(PACKAGE, target, ignore=ignored)
    for module, source in mutant.inside.items():
        with (target / module).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{source.strip()}\n")
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target / "sandbox" / "native" / "launch.py"


@asynccontextmanager
async def weakened(
    mutant: Mutant, place: Path, monkeypatch: pytest.MonkeyPatch, claims: Claims | None
) -> AsyncIterator[Site]:
    """A site whose sandboxes are the mutant's and whose records claim ``claims``."""
    with tempfile.TemporaryDirectory(
        prefix="skillyard-mutant-"
    ) as copy:  # the sandboxes' users must be able to read it
        monkeypatch.setattr(launch, "__file__", str(copy_of(mutant, Path(copy))))
        monkeypatch.setattr(own_process, "_roots", lambda needs, roots=own_process._roots: [copy, *roots(needs)])
        try:
            async with _site(mutant, place, monkeypatch, claims) as site:
                yield site
        finally:
            for path in mutant.leaves:
                Path(path).unlink(missing_ok=True)


@asynccontextmanager
async def _site(
    mutant: Mutant, place: Path, monkeypatch: pytest.MonkeyPatch, claims: Claims | None
) -> AsyncIterator[Site]:
    if mutant.outside is not None:
        mutant.outside(monkeypatch)
    settings = Settings(data_dir=place / "unused")
    if mutant.network:
        kind = registry.Kind(native.KIND.nature, lambda place: Claiming(place.run_dir, claims, place.plug))
        monkeypatch.setattr(native, "KIND", kind)
        async with own_runtime(settings, place) as runtime:
            yield Site(runtime, None, runtime)
        return
    backend = Claiming(place / "run", claims)
    if not mutant.canary:
        async with own_runtime(settings, place, backend) as runtime:
            yield Site(runtime, None, runtime)
        return
    with planted() as canaries:
        async with own_runtime(settings, place, backend) as runtime:
            with planted_file(canaries, runtime.data_dir.home):
                yield Site(runtime, None, runtime, canaries)
