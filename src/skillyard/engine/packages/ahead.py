"""Importing ahead: a warm interpreter imports modules before sandboxes are cloned from it.

Importing a package runs its code in an interpreter that later sandboxes are forked from, before their walls stand. So
it is done only where somebody consented to the packages: the operator, who named the environment, or the one who
approved every skill that asked for them. Packages that code asks for by itself are imported by its own run alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from skillyard.domain.sandbox.spec import EnvironmentRef, SandboxSpec
from skillyard.engine.observer import Fault, ModulesAhead, Observer
from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import Backend
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.packages import EnvironmentSettings
    from skillyard.engine.packages.environment import Environment
    from skillyard.engine.runs.plan import Plan


CURATED: Mapping[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "pandas": ("pandas",),
    "pillow": ("PIL.Image",),
    "matplotlib": ("matplotlib.pyplot",),
    "scipy": ("scipy.stats",),
    "scikit-learn": ("sklearn.base",),
    "openpyxl": ("openpyxl",),
    "lxml": ("lxml.etree",),
    "pyyaml": ("yaml",),
}
"""Well-known modules by distribution (PEP 503), in the order of import. Of those that would pass ``native.preload_mb``
the last are left out. ``tests/conformance/preload`` shows of each real package that its import starts no thread or
process, keeps nothing open, keeps no generator of random numbers but such as each run seeds anew, and reads no variable
of the environment but those of :data:`READS`."""

READS: Mapping[str, str] = {
    "NPY_": "numpy: warnings, and which instructions of the processor are used",
    "NUMPY_": "numpy: large pages, warnings",
    "OPENBLAS_": "OpenBLAS: threads and sizes of its blocks; one thread counts while it is imported",
    "GOTO_": "OpenBLAS under its old name",
    "OMP_": "OpenMP: threads",
    "GOMP_": "OpenMP: threads",
    "ACC_": "OpenMP: devices, and a sandbox has none",
    "KMP_": "OpenMP of others, for which scikit-learn sets them",
    "GFORTRAN_": "the runtime of Fortran: units of files, which no module of these reads",
    "PANDAS_": "pandas: options that `pandas.set_option` sets at any time",
    "PILLOW_": "Pillow: blocks of its memory",
    "MPL": "matplotlib: backend, fonts, and directory; `matplotlib.use` and rcParams set them at any time",
    "MATPLOTLIBRC": "matplotlib: the file of its settings; `matplotlib.rc_file` reads one at any time",
    "FC_": "fontconfig: how fonts are found, the same in every run",
    "FONTCONFIG_": "fontconfig: how fonts are found, the same in every run",
    "FREETYPE_": "FreeType: how fonts are drawn",
    "XDG_": "directories of a user, the same in every run",
    "SCIPY_": "scipy: arrays of other libraries, which needs `preload = false`",
    "SKLEARN_": "scikit-learn: what `sklearn.set_config` sets at any time",
    "JOBLIB_": "joblib: how it starts processes, an argument of each call",
    "LOKY_": "joblib: how it starts processes, an argument of each call",
    "OPENPYXL_": "openpyxl: whether it uses lxml",
    "XML_": "libxml2: where it complains",
    "EXPAT_": "expat: where it complains",
    "OPENSSL_": "OpenSSL: its file of settings, the same in every run, and instructions of the processor",
    "PYPARSING": "pyparsing: warnings",
    "PYTHON": "Python: paths of time zones, documentation and user packages, the same in every run",
    "_PYTHON": "Python: where it was built",
    "SOURCE_DATE_EPOCH": "Python: dates in what it builds",
    "DEB_PYTHON_INSTALL_LAYOUT": "Python, as Debian packages it: where it installs packages",
    "HOME": "set by us, the same in every run",
    "PATH": "set by us, the same in every run",
    "LANG": "set by us, the same in every run",
    "LC_": "set by nobody",
}
"""The start of each variable's name that the imports of the table read, with its meaning. None of them harms anybody. A
run that is given such a variable imports for itself."""


def curated(distributions: Collection[str], modules: Collection[str]) -> tuple[str, ...]:
    """Returns the table's modules that an environment has; ``modules`` are its top-level names."""
    return tuple(
        name
        for distribution, names in CURATED.items()
        if distribution in distributions
        for name in names
        if name.partition(".")[0] in modules
    )


def is_read(variable: str) -> bool:
    return variable.startswith(tuple(READS))


MOST_KNOWN = 256
"""Environments whose importable modules are remembered."""


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules to import ahead: ``own`` are the operator's, ``curated`` the table's."""

    own: tuple[str, ...] = ()
    curated: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.own, *self.curated]))


NONE = Modules()


@dataclass(frozen=True, slots=True)
class Wish:
    """Modules to make ready while runs go on without them."""

    key: str
    backend: Backend
    ref: EnvironmentRef
    modules: Modules


def consented(plan: Plan, environment: Environment, definition: EnvironmentSettings, *, named: bool) -> Modules:
    """Returns the modules that may be imported ahead of a run. ``named``: the operator defined its environment."""
    if definition.preload == () or any(skill.runtime and not skill.runtime.preload for skill in plan.skills):
        return NONE
    if not named and (not plan.skills or plan.request.packages or plan.trust.least):
        return NONE
    built, own = environment.built, (definition.preload or ()) if named else ()
    if built is None or any(is_read(need.name) for skill in plan.skills for need in skill.needs.secrets):
        return Modules(own) if own else NONE
    return Modules(own, curated(built.distributions, built.modules))


class Ahead:
    """The modules imported ahead of runs. ``enabled`` is false where the operator turned it off."""

    def __init__(self, emit: Observer, *, enabled: bool = True) -> None:
        self._emit = emit
        self._enabled = enabled
        self._made: dict[str, tuple[str, ...]] = {}
        self._at_work: set[str] = set()
        self._tasks = Tasks()

    def chosen(
        self, backend: Backend, ref: EnvironmentRef, modules: Modules, group: str
    ) -> tuple[EnvironmentRef, Wish | None]:
        """Returns the environment of a run, and the modules to make ready after it."""
        if modules is NONE or not self._enabled or not modules.all:
            return ref, None
        key = _key(backend, ref, modules.all, group)
        made = self._made.get(key)
        return (ref, Wish(key, backend, ref, modules)) if made is None else (replace(ref, preload=made), None)

    def fulfil(self, wish: Wish, spec: SandboxSpec) -> None:
        """Makes the backend ready for sandboxes like ``spec``; until then runs go on as before."""
        if wish.key not in self._at_work and wish.key not in self._made:
            self._at_work.add(wish.key)
            self._tasks.spawn(self._make(wish, spec), f"import ahead {wish.key}")

    async def settled(self) -> None:
        """Waits until nothing is being made ready."""
        await self._tasks.drain()

    async def close(self) -> None:
        await self._tasks.close()

    async def _make(self, wish: Wish, spec: SandboxSpec) -> None:
        try:
            while len(self._made) >= MOST_KNOWN:
                del self._made[next(iter(self._made))]
            self._made[wish.key] = await self._made_ready(wish, replace(spec, mounts=(), egress=None))
        except Exception as error:  # noqa: BLE001 - a hint that fails costs time only
            self._emit(Fault("preload", error))
        finally:
            self._at_work.discard(wish.key)

    async def _made_ready(self, wish: Wish, spec: SandboxSpec) -> tuple[str, ...]:
        """Returns the modules that can be imported; tries the others again without each that cannot."""
        ref, faults, held = replace(wish.ref, preload=wish.modules.all), dict[str, str](), 0
        while ref.preload:
            prepared = await wish.backend.prepare(replace(spec, environment=ref))
            if prepared is None:
                return wish.modules.own
            held, left = prepared.memory_bytes, tuple(name for name in ref.preload if name not in prepared.faults)
            if left == ref.preload:
                break
            faults |= prepared.faults
            ref = replace(ref, preload=left)
        self._emit(ModulesAhead(ref.name, ref.digest, ref.preload, faults, held))
        return ref.preload


def _key(backend: Backend, ref: EnvironmentRef, modules: tuple[str, ...], group: str) -> str:
    told = hashlib.sha256("\0".join((ref.name, group, *modules)).encode()).hexdigest()[:16]
    return f"{ref.digest}-{backend.name}-{told}"
