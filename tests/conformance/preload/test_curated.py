"""The packages that are imported ahead unasked, as the index has them today: their import leaves nothing that runs
would share, and reads nothing that they could bring."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skillyard
from skillyard import Runtime
from skillyard.config.settings import load_settings
from skillyard.engine.observer import ModulesAhead
from skillyard.engine.packages.ahead import CURATED, READS, is_read
from skillyard.engine.packages.environment import base_interpreter, uv_program
from skillyard.stores.disk import remove_tree
from tests.unit.engine.packages import real_index

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(real_index.why_not()), reason=real_index.why_not() or "-"),
]
HERE = Path(__file__).parent
MODULES = [module for modules in CURATED.values() for module in modules]
GENERATORS = """
import json, os, sys
sys.path += sys.argv[1:]
import numpy, numpy.random as r
from skillyard.guest import main

KINDS = [r.PCG64, r.PCG64DXSM, r.Philox, r.SFC64, r.MT19937]
OWN = [r.default_rng(), r.default_rng(7), *(r.Generator(kind(3)) for kind in KINDS)]
STATES = [r.RandomState(5), r.RandomState(r.PCG64(5))]
SEEDS = {"deep": [r.SeedSequence(9)]}
CHILD = r.SeedSequence(11).spawn(1)[0]
for own in OWN:
    own.random(), own.integers(9, dtype="uint32"), own.standard_normal()
for state in STATES:
    state.normal()
main.prepare(True)

def draw():
    drawn = [numpy.random.random(), numpy.random.normal(), numpy.random.get_bit_generator().seed_seq.generate_state(2)]
    for own in OWN:
        drawn += [own.random(), own.integers(2**31, dtype="uint32"), own.standard_normal(), own.spawn(1)[0].random()]
    for state in STATES:
        drawn += [state.normal(), state.normal(), state.randint(2**31)]
    for seed in (SEEDS["deep"][0], CHILD):
        drawn += [seed.generate_state(2), seed.spawn(1)[0].generate_state(2)]
    return [str(value) for value in drawn]

told = []
for _ in range(2):
    come, go = os.pipe()
    if os.fork() == 0:
        main.reseed()
        os.write(go, json.dumps(draw()).encode())
        os._exit(0)
    os.wait()
    told.append(json.loads(os.read(come, 1 << 20)))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All packages of the table."""
    target = tmp_path_factory.mktemp("site")
    words = [str(uv_program()), "pip", "install", "--python", base_interpreter(), "--only-binary", ":all:"]
    subprocess.run([*words, "--target", str(target), *CURATED], check=True, capture_output=True, timeout=600)
    return target


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A library that notes what libraries ask getenv(3) for, and its log; empty where nothing can be compiled."""
    place = tmp_path_factory.mktemp("listener")
    if shutil.which("cc") is None:
        yield "", ""
        return
    log, library = place / "log", place / "getenv.so"
    log.touch()
    words = ["cc", "-shared", "-fPIC", f'-DLOG="{log}"', "-o", str(library), str(HERE / "getenv.c"), "-ldl"]
    subprocess.run(words, check=True, timeout=60)
    yield str(library), str(log)


@pytest.mark.parametrize("module", MODULES)
def test_an_import_leaves_nothing_that_runs_would_share(
    site: Path, listener: tuple[str, str], tmp_path: Path, module: str
) -> None:
    library, log = listener
    command = [base_interpreter(), "-I", "-S", str(HERE / "examine.py"), str(site), _code(), module, log]
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    if library:
        env["LD_PRELOAD"] = library
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout)
    assert (said["threads"], said["children"], said["kept"]) == (1, [], [])
    assert [name for name in {*said["read"], *said["read_in_c"]} if not is_read(name)] == []
    assert set(said["generators"]) <= {"Random", "SeedSequence"}, "of packages' own, and such as runs seed anew"
    changed = {name for name in said["changed"] if not name.startswith("KMP_")}
    assert changed == set()


def test_every_generator_of_numpy_is_seeded_anew(site: Path) -> None:
    ran = subprocess.run(
        [base_interpreter(), "-I", "-S", "-c", GENERATORS, site, _code()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    first, second = json.loads(ran.stdout)
    assert [index for index, (one, other) in enumerate(zip(first, second, strict=True)) if one == other] == []
    assert len(first) > 40


def test_what_is_read_and_why_that_is_harmless_is_told() -> None:
    told = (HERE.parents[2] / "docs" / "preloading.md").read_text()
    assert [name for name in READS if f"| `{name}" not in told] == []
    assert [name for name in CURATED if f"| {name} |" not in told] == []


@pytest.mark.long
@pytest.mark.anyio
async def test_all_of_them_are_there_in_the_second_run(tmp_path: Path) -> None:
    """In one warm interpreter, within the memory that it may have."""
    settings = load_settings(
        data_dir=tmp_path / "data",
        packages=real_index.packages(disk_mb=2048, timeout_s=600),
        environments={"all": {"packages": list(CURATED)}},
    )
    events: list[Any] = []
    code = f"import sys\nHERE = sorted({MODULES!r} & sys.modules.keys())\n".replace("[", "{").replace("]", "}")
    async with Runtime(settings=settings, observer=events.append) as runtime:
        if not (offer := runtime.app.backends.default) or offer.name != "native":
            pytest.skip("native sandboxes do not stand here")
        here = []
        for _ in range(2):
            run = await runtime.run_code(code + "def main(args): return {'here': HERE}", environment="all")
            here.append(run.raise_for_status().output["here"])
            await runtime.app.ahead.settled()
    (said,) = [event for event in events if isinstance(event, ModulesAhead)]
    assert said.faults == {}
    assert here == [[], sorted(MODULES)]
    remove_tree(tmp_path / "data" / "environments")


def _code() -> str:
    """Where our own code is."""
    return os.path.dirname(os.path.dirname(skillyard.__file__))
