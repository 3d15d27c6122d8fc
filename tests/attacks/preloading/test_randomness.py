"""No two sandboxes of one warm interpreter draw the same numbers, whatever its modules drew and kept before."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.sandbox.registry import nature
from tests.attacks.preloading.packages import Yard, write_packages
from tests.hosts.landlock import host

pytestmark = pytest.mark.anyio

KEEPER = """
import _random, os, random, secrets, socket, ssl, tempfile, uuid
from cryptography.hazmat.primitives.asymmetric import ec


class Slotted:
    __slots__ = ("own",)


class Stubborn(random.Random):
    def seed(self, a):
        super().seed(a)


PID = os.getpid()
SEEDED = [random.random(), secrets.token_bytes(8), ssl.RAND_bytes(8), uuid.uuid1(), uuid.uuid4()]
CONTEXT = ssl.create_default_context()
KEY = ec.generate_private_key(ec.SECP256R1())
NAMES = tempfile._get_candidate_names()
next(NAMES)
OWN = random.Random()
OWN.gauss(0, 1)
NESTED = {"deep": [(random.Random(5), _random.Random())]}
SLOTTED = Slotted()
SLOTTED.own = random.Random()
STUBBORN = Stubborn(3)


def number(key):
    return key.private_numbers().private_value


def draw():
    return {
        "random": random.random(),
        "secrets": secrets.token_hex(16),
        "ssl": ssl.RAND_bytes(16).hex(),
        "key": str(number(ec.generate_private_key(ec.SECP256R1()))),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "temporary": tempfile.mktemp(),
        "urandom": os.urandom(16).hex(),
    }


def keep():
    return {
        "names": next(NAMES),
        "own": OWN.random(),
        "gauss": OWN.gauss(0, 1),
        "fixed": NESTED["deep"][0][0].random(),
        "bare": NESTED["deep"][0][1].random(),
        "slotted": SLOTTED.own.random(),
        "stubborn": STUBBORN.random(),
    }


def child(into):
    import json
    os.write(into, json.dumps(draw()).encode() + b"\\n")


def children():
    import json, multiprocessing
    seen = []
    for way in ("fork", "multiprocessing", "fork of a fork"):
        come, go = os.pipe()
        if way == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=child, args=(go,))
            process.start()
            process.join()
        elif (pid := os.fork()) == 0:
            if way == "fork" or os.fork() == 0:
                child(go)
            else:
                os.wait()
            os._exit(0)
        else:
            os.waitpid(pid, 0)
        os.close(go)
        seen.append(json.loads(b"".join(iter(lambda: os.read(come, 65536), b""))))
    return seen


def everything(later):
    first = [draw()] if not later else []
    more = children()
    return {"pid": os.getpid(), "zygote": PID, "drawn": [*first, *more, draw()], "kept": keep()}
"""


def _packages(place: Path) -> Path:
    """With the copy of OpenSSL that is linked into cryptography."""
    write_packages(place)
    (place / "keeper.py").write_text(KEEPER)
    for name in ("cryptography", "cffi", "_cffi_backend"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        found = Path(spec.origin)
        if found.name == "__init__.py":
            shutil.copytree(found.parent, place / name)
        else:
            shutil.copy(found, place / found.name)
    return place


@pytest.fixture(scope="module", params=["native", "landlock"])
async def yard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    base = tmp_path_factory.mktemp("randomness")
    if request.param == "native":
        backend: Any = NativeBackend(base / "run", NativeSettings(ready=0))
        if not (probe := await backend.probe()).ready:
            pytest.skip(probe.facts["why"])
        yard = Yard(backend, _packages(base / "packages"))
    else:
        backend = LandlockBackend(base / "run", NativeSettings(ready=0))
        host.need(await backend.probe())
        yard = Yard(backend, _packages(base / "packages"), nature("landlock").without)
    yield yard
    await backend.close()


@pytest.mark.parametrize("later", [False, True], ids=["the run draws first", "its children draw first"])
async def test_no_two_sandboxes_draw_the_same(yard: Yard, later: bool) -> None:
    runs = [(await yard.evaluate(f"[keeper.everything({later})]", "keeper"))[0] for _ in range(3)]
    drawn: dict[str, list[Any]] = {}
    for run in runs:
        for row in [*run["drawn"], run["kept"]]:
            for name, value in row.items():
                drawn.setdefault(name, []).append(value)
    same = {name: values for name, values in drawn.items() if len(set(values)) < len(values)}
    assert same == {}
    assert not [run for run in runs if run["pid"] == run["zygote"]]


async def test_a_program_that_is_started_has_a_generator_of_its_own(yard: Yard) -> None:
    script = "python3 -c 'import ssl, random; print(ssl.RAND_bytes(16).hex(), random.random())'"
    said = [(await yard.shell(script, "keeper")).split() for _ in range(2)]
    assert len({*said[0], *said[1]}) == 4


async def test_no_process_of_a_sandbox_can_have_the_pid_of_its_zygote(yard: Yard) -> None:
    """Libraries tell a fork by their pid. The kernel gives the first 300 pids of a namespace once, in order."""
    if yard.without:
        pytest.skip("sandboxes without a pid namespace of their own: their pids are the host's")
    run = await yard.evaluate("(keeper.PID, __import__('os').getpid())", "keeper")
    assert run[0] < 300 < run[1]
