"""What comes out of a build is stored whole and as its lock names it, or not at all."""

from __future__ import annotations

import asyncio
import io
import itertools
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import StoreFault
from skillyard.domain.package.environment import BadLock, BuiltEnvironment, Lock, Pin, Wanted, lock_text, parse_lock
from skillyard.ports.environments import Arrival, BadEnvironment, EnvironmentStore, Origin
from skillyard.stores.clock import SystemClock
from skillyard.stores.files import environments as module
from skillyard.stores.files.environments import LocalEnvironments
from skillyard.testing import environments_suite
from skillyard.testing.memory import ManualClock
from tests.unit.engine.packages.fake_builder import pack
from tests.unit.engine.packages.wheels import info_of, installed, record_digest

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]

HASH = "0" * 64
PLATFORM = "cpython-3.11-linux"
INFO = info_of("alpha", "1.0")


def locked(*pins: tuple[str, str]) -> Lock:
    return Lock(lock_text(Pin(name, version, (HASH,)) for name, version in pins), PLATFORM)


LOCK = locked(("alpha", "1.0"))


@pytest.mark.parametrize("check", environments_suite.CHECKS, ids=lambda check: check.__name__)
async def test_the_port_is_kept(check: Any, tmp_path: Path) -> None:
    numbers = itertools.count()

    @asynccontextmanager
    async def make(clock: ManualClock) -> AsyncIterator[EnvironmentStore]:
        yield LocalEnvironments(tmp_path / str(next(numbers)), clock)

    await check(make)


@pytest.fixture
def store(tmp_path: Path) -> LocalEnvironments:
    return LocalEnvironments(tmp_path / "environments", SystemClock())


async def add(
    store: LocalEnvironments, archive: bytes, lock: Lock = LOCK, *, most_bytes: int = 1 << 20
) -> BuiltEnvironment:
    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(archive), 4096):
            yield archive[at : at + 4096]

    return await store.add(Arrival(lock, ("alpha",), "", most_bytes), chunks())


def left(store: LocalEnvironments) -> list[str]:
    home = store.packages("x").parent
    return [path.name for path in home.iterdir()] if home.is_dir() else []


def alpha(**changed: bytes | None) -> dict[str, bytes]:
    """What a build of alpha gives, with other files (``None`` for none)."""
    files: dict[str, bytes | None] = {**installed("alpha"), **changed}
    return {path: data for path, data in files.items() if data is not None}


async def test_bytecode_counts_and_all_is_found_again(store: LocalEnvironments, tmp_path: Path) -> None:
    files = alpha(**{"alpha/__pycache__/__init__.cpython-311.pyc": b"bytecode"})
    built = await add(store, pack(files))
    assert built.digest == LOCK.digest
    assert (built.distributions, built.modules) == ({"alpha": "1.0"}, ("alpha",))
    assert built.size == sum(map(len, files.values()))
    again = LocalEnvironments(tmp_path / "environments", SystemClock())
    assert (await again.list())[0].distributions == built.distributions
    assert await again.wheel_tags(built.digest) == {"alpha": ("py3-none-any",)}
    assert await again.sweep() == 0
    assert await again.remove(built.digest)
    assert not await again.remove(built.digest)
    assert left(again) == []


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _link(kind: bytes, target: str) -> bytes:
    member = tarfile.TarInfo("alpha/link")
    member.type, member.linkname = kind, target
    return _tar((member, b""))


HOSTILE: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "traversal": (lambda: pack({"../out.py": b"x"}), "goes up with"),
    "absolute": (lambda: pack({"/tmp/out.py": b"x"}), "absolute path"),
    "symlink": (lambda: _link(tarfile.SYMTYPE, "/etc/passwd"), "link"),
    "hardlink": (lambda: _link(tarfile.LNKTYPE, "alpha/__init__.py"), "link"),
    "fifo": (lambda: _link(tarfile.FIFOTYPE, ""), "special|FIFO|kind"),
    "truncated": (lambda: pack(alpha())[:1000], "ends"),
    "no archive": (lambda: b"#!/bin/sh\n" * 1000, "has a header that is not"),
    "too large": (lambda: pack(alpha(**{"alpha/big": bytes(2 << 20)})), "over 1048576 bytes"),
    "nothing": (lambda: pack({}), "did not install 'alpha'"),
    "another distribution": (
        lambda: pack({**alpha(), **installed("extra")}),
        "installed 'extra', which its lock does not name",
    ),
    "another version": (lambda: pack(installed("alpha", "1.1")), r"version 1.1 of 'alpha' instead of 1.0"),
    "a file that nobody records": (lambda: pack(alpha(**{"alpha/more.py": b"x"})), "alpha/more.py, which no"),
    "a file at the top": (lambda: pack(alpha(**{"sitecustomize.py": b"x"})), "sitecustomize.py, which no"),
    "bytecode without its source": (
        lambda: pack(alpha(**{"alpha/__pycache__/other.cpython-311.pyc": b"x"})),
        "other.cpython-311.pyc, which no",
    ),
    "a changed file": (lambda: pack(alpha(**{"alpha/__init__.py": b"other"})), "not what its distribution records"),
    "a file left out": (lambda: pack(alpha(**{"alpha/__init__.py": None})), "left out alpha/__init__.py"),
    "no record": (lambda: pack(alpha(**{f"{INFO}/RECORD": None})), "has no RECORD"),
    "a record that climbs": (
        lambda: pack(alpha(**{f"{INFO}/RECORD": b"../x,sha256=AAAA,1\n"})),
        "names a path outside the environment",
    ),
    "a weak digest": (lambda: pack(alpha(**{f"{INFO}/RECORD": b"alpha/__init__.py,md5=AAAA,1\n"})), "has no digest"),
    "a record of garbage": (lambda: pack(alpha(**{f"{INFO}/RECORD": b'"\xff\x00'})), "cannot be read"),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_is_hostile_is_refused_and_leaves_nothing(
    store: LocalEnvironments, what: str, tmp_path: Path
) -> None:
    make, said = HOSTILE[what]
    with pytest.raises(BadEnvironment, match=said):
        await add(store, make())
    assert left(store) == []
    assert not list(tmp_path.rglob("out.py"))


async def test_who_goes_away_while_it_comes_leaves_nothing(store: LocalEnvironments) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield pack(alpha())[:3000]
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        await store.add(Arrival(LOCK, (), "", 1 << 20), chunks())
    assert left(store) == []


async def test_who_is_cancelled_while_it_is_placed_leaves_it_whole_or_not_at_all(
    store: LocalEnvironments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that places it goes on; nothing is removed under its hands."""
    real, reached, release = module.write_json, threading.Event(), threading.Event()

    def slow(path: Path, data: dict[str, Any], at: float | None = None) -> None:
        reached.set()
        assert release.wait(10)
        real(path, data, at)

    monkeypatch.setattr(module, "write_json", slow)
    adding = asyncio.create_task(add(store, pack(alpha())))
    assert await asyncio.to_thread(reached.wait, 10)
    adding.cancel()
    await asyncio.sleep(0)
    adding.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert sorted(left(store)) == [LOCK.digest, f"{LOCK.digest}.json"]
    assert (store.packages(LOCK.digest) / "alpha" / "__init__.py").is_file()


async def test_two_distributions_may_bring_the_same_path(store: LocalEnvironments) -> None:
    """As old namespace packages do: one of them has won."""
    first = installed("alpha", files={"shared/__init__.py": b"one"})
    second = installed("beta", files={"shared/__init__.py": b"two"})
    built = await add(store, pack({**first, **second}), locked(("alpha", "1.0"), ("beta", "1.0")))
    assert built.modules == ("alpha", "beta", "shared")


@pytest.mark.parametrize(
    ("in_lock", "in_wheel"), [("1.0", "1"), ("1.0.post1", "1.0.post1"), ("2.0+cpu", "2.0+cpu"), ("2.0rc1", "2.0RC1")]
)
async def test_versions_are_the_same_however_they_are_written(
    store: LocalEnvironments, in_lock: str, in_wheel: str
) -> None:
    built = await add(store, pack(installed("alpha", in_wheel)), locked(("alpha", in_lock)))
    assert built.distributions == {"alpha": in_wheel}


async def test_what_a_distribution_signs_needs_no_digest(store: LocalEnvironments) -> None:
    files = alpha(**{f"{INFO}/RECORD.jws": b"{}"})
    files[f"{INFO}/RECORD"] += f"{INFO}/RECORD.jws,,\n".encode()
    assert (await add(store, pack(files))).digest == LOCK.digest


async def test_sha512_counts(store: LocalEnvironments) -> None:
    import base64
    import hashlib

    data = b"VERSION = '1.0'\n"
    digest = base64.urlsafe_b64encode(hashlib.sha512(data).digest()).decode()
    files = alpha(**{f"{INFO}/RECORD": None, "alpha/__init__.py": data})
    lines = [f"{path},sha256={record_digest(found)},\n" for path, found in files.items() if path != "alpha/__init__.py"]
    files[f"{INFO}/RECORD"] = "".join([*lines, f"alpha/__init__.py,sha512={digest},\n"]).encode()
    await add(store, pack(files))


ORIGIN = Origin(PLATFORM, "https://index.test/simple")


async def test_the_oldest_locks_give_way(store: LocalEnvironments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.stores.files.environments.MOST_LOCKS", 10)
    for number in range(12):
        await store.keep_lock(Wanted.of([f"p{number}"]), ORIGIN, LOCK)
    assert await store.lock(Wanted.of(["p0"]), ORIGIN) is None
    assert await store.lock(Wanted.of(["p11"]), ORIGIN) is not None


async def test_a_damaged_lock_is_named(store: LocalEnvironments) -> None:
    wanted = Wanted.of(["alpha"])
    await store.keep_lock(wanted, ORIGIN, LOCK)
    [file] = (store.packages("x").parent / "locks").iterdir()
    file.write_text('{"lock": 3}')
    with pytest.raises(StoreFault, match="is damaged: remove it"):
        await store.lock(wanted, ORIGIN)


@pytest.mark.parametrize(
    "text",
    [
        "alpha\n",
        "alpha>=1 --hash=sha256:" + HASH,
        "alpha==1.0\n",
        "alpha==1.0 --hash=md5:" + HASH[:32],
        "alpha @ https://x/alpha.whl --hash=sha256:" + HASH,
        "--index-url https://evil.test/simple\n",
        "-r /etc/passwd\n",
        "-e .\n",
        f"alpha==1.0 --hash=sha256:{HASH} --global-option=x\n",
        f"alpha==1.0 ; python_version<'3' --hash=sha256:{HASH}\n",
        f"alpha==1.0 --hash=sha256:{HASH}\nAlpha==2.0 --hash=sha256:{HASH}\n",
        "x" * (17 << 20),
    ],
)
def test_a_lock_is_exact_versions_with_digests_and_nothing_else(text: str) -> None:
    with pytest.raises(BadLock):
        parse_lock(text)


@given(st.text(max_size=400))
def test_any_text_is_a_lock_or_refused(text: str) -> None:
    try:
        pins = parse_lock(text)
    except BadLock:
        return
    assert parse_lock(lock_text(pins)) == pins


def test_locks_are_written_one_way() -> None:
    other = "1" * 64
    beta = f"Beta_x==1.0 \\\n    --hash=sha256:{other} \\\n    --hash=sha256:{HASH}"
    text = f"# a comment\n{beta}\nalpha==2 --hash=sha256:{HASH}\n"
    pins = parse_lock(text)
    assert [pin.name for pin in pins] == ["alpha", "beta-x"]
    assert lock_text(pins) == lock_text(reversed(pins))
    assert lock_text(pins).splitlines()[2:4] == ["beta-x==1.0 \\", f"    --hash=sha256:{HASH} \\"]
