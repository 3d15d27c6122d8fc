"""The conformance suite of the environments port."""

from __future__ import annotations

import base64
import hashlib
import io
import stat
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from skillyard.domain.package.environment import BuiltEnvironment, Lock, Pin, Wanted, lock_text, parse_lock
from skillyard.ports.environments import Arrival, BadEnvironment, EnvironmentStore, Origin
from skillyard.testing.memory import ManualClock
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[ManualClock], AbstractAsyncContextManager[EnvironmentStore]]
check = Checks[Maker]()
CHECKS = check.all

_HASH = "0" * 64
_ROOM = 1 << 20
ORIGIN = Origin("cpython-3.11-linux", "https://index.test/simple")
WANTED = Wanted.of(["alpha"])


def locked(name: str, version: str = "1.0") -> Lock:
    return Lock(lock_text([Pin(name, version, (_HASH,))]), ORIGIN.platform)


def installation(name: str, version: str = "1.0") -> dict[str, bytes]:
    """The files of one small distribution, with a true RECORD."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()]
    return {**files, f"{info}/RECORD": "".join([*rows, f"{info}/RECORD,,\n"]).encode()}


def packed(files: Mapping[str, bytes]) -> bytes:
    """As a build sends it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


async def added(store: EnvironmentStore, name: str, files: Mapping[str, bytes] | None = None) -> BuiltEnvironment:
    data = packed(installation(name) if files is None else files)
    return await store.add(Arrival(locked(name), (name,), "", _ROOM), _chunks(data))


@check
async def what_is_added_is_found(make: Maker) -> None:
    async with make(ManualClock()) as store:
        built = await added(store, "alpha")
        expect(built.digest == locked("alpha").digest, "an environment has its lock's digest", built.digest)
        found = await store.find(built.digest)
        expect(found is not None, "it is found by it", found)
        expect(found == built, "as it was given", found)
        known = (dict(built.distributions), built.modules, built.requirements)
        expect(known == ({"alpha": "1.0"}, ("alpha",), ("alpha",)), "what is in it is known", known)
        expect(await store.find("0" * 16) is None, "what was not built is not found", "found")
        tags = {name: tuple(found) for name, found in (await store.wheel_tags(built.digest)).items()}
        expect(tags == {"alpha": ("py3-none-any",)}, "the tags of its wheels are known", tags)


@check
async def it_can_be_read_by_all_and_changed_by_nobody(make: Maker) -> None:
    async with make(ManualClock()) as store:
        home = store.packages((await added(store, "alpha")).digest)
        for path in (home, *home.rglob("*")):
            mode = stat.S_IMODE(path.lstat().st_mode)
            fits = mode == 0o555 or (mode == 0o444 and path.is_file())
            expect(fits, "directories are 0555, files 0444 or 0555", f"{path.name}: {mode:o}")


@check
async def one_that_is_there_stays(make: Maker) -> None:
    async with make(ManualClock()) as store:
        first = await added(store, "alpha")
        inode = store.packages(first.digest).stat().st_ino
        await added(store, "alpha")
        expect(store.packages(first.digest).stat().st_ino == inode, "the first one stays", "another directory")
        expect(len(await store.list()) == 1, "it is there once", await store.list())


@check
async def what_does_not_fit_its_lock_is_refused(make: Maker) -> None:
    true = installation("alpha")
    hostile = {
        "another distribution": {**true, **installation("beta")},
        "another version": installation("alpha", "2.0"),
        "a file that nobody records": {**true, "alpha/more.py": b""},
        "a changed file": {**true, "alpha/__init__.py": b"changed"},
        "a file left out": {path: data for path, data in true.items() if path != "alpha/__init__.py"},
        "a path that climbs": {**true, "../climbed": b""},
        "nothing": {},
    }
    async with make(ManualClock()) as store:
        for what, files in hostile.items():
            await refused(BadEnvironment, added(store, "alpha", files), f"{what} is refused")
            expect(await store.find(locked("alpha").digest) is None, "nothing is left of it", what)
        expect(list(await store.list()) == [], "nothing is left at all", await store.list())


@check
async def what_ends_early_leaves_nothing(make: Maker) -> None:
    data = packed(installation("alpha"))
    async with make(ManualClock()) as store:
        arrival = Arrival(locked("alpha"), ("alpha",), "", _ROOM)
        await refused(BadEnvironment, store.add(arrival, _chunks(data[:2000])), "a part of an archive is refused")
        small = Arrival(locked("alpha"), ("alpha",), "", 10)
        await refused(BadEnvironment, store.add(small, _chunks(data)), "more than may come is refused")
        expect(list(await store.list()) == [], "nothing is left", await store.list())
        expect(await store.sweep() == 0, "nothing is left to be swept", "something")


@check
async def what_is_known_of_the_build_is_added(make: Maker) -> None:
    async with make(ManualClock()) as store:
        built = await added(store, "alpha")
        await store.annotate(built.digest, build_ms=12.5, log="blob:log")
        found = await store.find(built.digest)
        told = found and (found.build_ms, found.log)
        expect(told == (12.5, "blob:log"), "how it was built is kept", told)
        await store.annotate("0" * 16, build_ms=1, log="")


@check
async def the_one_that_was_used_last_comes_first(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock) as store:
        names = {}
        for name in ("alpha", "beta", "gamma"):
            names[(await added(store, name)).digest] = name
            clock.advance(10_000)
        await store.touch(locked("alpha").digest)
        order = [names[built.digest] for built in await store.list()]
        expect(order == ["alpha", "gamma", "beta"], "the one that was used last comes first", order)
        await store.touch("0" * 16)


@check
async def what_is_removed_is_gone_and_its_lock_stays(make: Maker) -> None:
    async with make(ManualClock()) as store:
        built = await added(store, "alpha")
        await store.keep_lock(WANTED, ORIGIN, built.lock)
        expect(await store.remove(built.digest), "it was there", False)
        expect(not await store.remove(built.digest), "it is gone", True)
        expect(not store.packages(built.digest).exists(), "its files are gone", store.packages(built.digest))
        expect(await store.find(built.digest) is None, "it is not found", "found")
        stored = await store.lock(WANTED, ORIGIN)
        expect(stored is not None and stored.lock == built.lock, "its lock stays", stored)
        expect(await store.forget_lock(built.digest) == 1, "until it is forgotten", "none")
        expect(await store.lock(WANTED, ORIGIN) is None, "then it is gone too", "there")


@check
async def a_lock_is_of_requirements_platform_index_and_source(make: Maker) -> None:
    clock = ManualClock()
    async with make(clock) as store:
        await store.keep_lock(WANTED, ORIGIN, locked("alpha"))
        stored = await store.lock(WANTED, ORIGIN)
        known = stored and (stored.lock, stored.requirements, stored.index, stored.resolved_at)
        expect(known == (locked("alpha"), ("alpha",), ORIGIN.index, clock.now()), "a lock is kept with its date", known)
        others = {
            "requirements": (Wanted.of(["beta"]), ORIGIN),
            "held": (Wanted(WANTED.requirements, parse_lock(locked("alpha").text)), ORIGIN),
            "platform": (WANTED, Origin("other", ORIGIN.index)),
            "index": (WANTED, Origin(ORIGIN.platform, "https://other.test")),
            "source": (WANTED, Origin(ORIGIN.platform, ORIGIN.index, ("alpha",))),
        }
        for what, (wanted, origin) in others.items():
            expect(await store.lock(wanted, origin) is None, "another origin has another lock", what)
        await store.keep_lock(WANTED, ORIGIN, locked("alpha", "2.0"))
        stored = await store.lock(WANTED, ORIGIN)
        expect(stored is not None and stored.lock == locked("alpha", "2.0"), "a later lock takes its place", stored)


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 1000):
        yield data[at : at + 1000]


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
