"""Content that has only an opener: whole or not there, kept while it is used, within its bound."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import EnvironmentRef, Held, Mount, Owner, SandboxSpec
from skillyard.sandbox.content import ContentCache
from skillyard.testing.sandbox_suite.mounts import opened, tree

pytestmark = pytest.mark.anyio

KIB = 1024


class Host:
    """A cache with room for 100 KiB, and the sandboxes that its backend holds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.held: list[str] = []
        self.cache = self.reopened()

    def reopened(self) -> ContentCache:
        return ContentCache(self.directory, self.survey, 100 * KIB)

    async def survey(self) -> list[Held]:
        return [Held(f"handle of {key}", key, Owner.RUN, 0.0) for key in self.held]

    async def lend(self, key: str, *content: Content) -> list[Path]:
        """Returns the places of what a new sandbox shows."""
        async with self.cache.placed(shows(*content), key) as placed:
            self.held.append(key)
        return [path for mount in placed.mounts if (path := mount.source.path) is not None]

    def destroy(self, key: str) -> None:
        self.held.remove(key)
        self.cache.release(key)

    def there(self) -> set[str]:
        return {path.name for path in self.directory.iterdir() if not path.name.startswith(".")}

    def left(self) -> list[str]:
        """Returns what is neither content nor a mark."""
        return [path.name for path in self.directory.iterdir() if path.name.startswith(".part-")]


def shows(*content: Content) -> SandboxSpec:
    return SandboxSpec(mounts=tuple(Mount(one, f"/blobs/{at}") for at, one in enumerate(content)))


def data(name: str, kib: int = 40) -> bytes:
    return hashlib.sha256(name.encode()).digest() * (kib * KIB // 32)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "run" / "content")


async def test_a_file_is_at_a_place_with_the_modes_of_content(host: Host) -> None:
    [path] = await host.lend("one", opened(data("a")))
    assert path == host.directory / hashlib.sha256(data("a")).hexdigest()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (data("a"), 0o444)


async def test_a_tree_is_at_a_place_with_the_modes_of_content(host: Host) -> None:
    stream = tree(("code", None, 0o700), ("code/run", "#!/bin/sh\n", 0o700), ("text", "words", 0o600))
    [path] = await host.lend("one", opened(stream, tree=True))
    modes = {str(each.relative_to(path)): each.stat().st_mode & 0o777 for each in (path, *path.rglob("*"))}
    assert modes == {".": 0o555, "code": 0o555, "code/run": 0o555, "text": 0o444}


async def test_bytes_of_one_digest_can_be_a_file_and_a_tree(host: Host) -> None:
    stream = tree(("text", "words", 0o600))
    file, place = await host.lend("one", opened(stream), opened(stream, tree=True))
    assert (file.read_bytes(), (place / "text").read_text()) == (stream, "words")


async def test_what_has_a_place_stays_where_it_is(host: Host, tmp_path: Path) -> None:
    shown = Content("any", tmp_path)
    assert await host.lend("one", shown) == [tmp_path]
    assert not host.directory.exists()


async def test_it_is_opened_once_for_many(host: Host) -> None:
    times = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal times
        times += 1
        yield data("a")

    shown = replace(opened(data("a")), open=counted)
    await asyncio.gather(*(host.lend(f"sandbox {number}", shown) for number in range(5)))
    assert times == 1
    host.cache = host.reopened()
    await host.lend("later", shown)
    assert times == 1


async def test_room_is_made_of_what_was_used_longest_ago(host: Host) -> None:
    for name in ("a", "b"):
        await host.lend(name, opened(data(name)))
        host.destroy(name)
    await host.lend("again", opened(data("a")))
    host.destroy("again")
    await host.lend("c", opened(data("c")))
    assert host.there() == {hashlib.sha256(data(name)).hexdigest() for name in ("a", "c")}
    assert host.left() == []


async def test_what_sandboxes_have_is_never_removed(host: Host) -> None:
    for name in ("a", "b"):
        await host.lend(name, opened(data(name)))
    with pytest.raises(SandboxFault, match=r"does not fit beside the content in use.*native.content_mb"):
        await host.lend("c", opened(data("c")))
    assert host.there() == {hashlib.sha256(data(name)).hexdigest() for name in ("a", "b")}
    host.destroy("a")
    await host.lend("c", opened(data("c")))
    assert host.there() == {hashlib.sha256(data(name)).hexdigest() for name in ("b", "c")}


async def test_one_that_is_larger_than_all_room_ends_on_the_way(host: Host) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(KIB)

    with pytest.raises(SandboxFault, match="does not fit"):
        await host.lend("one", Content("0" * 64, open=endless))
    assert (host.there(), host.left()) == (set(), [])


async def test_marks_of_sandboxes_that_died_with_their_server_keep_nothing(host: Host) -> None:
    for name in ("lives", "dies"):
        await host.lend(name, opened(data(name)))
    host.held.remove("dies")
    host.cache = host.reopened()
    await host.lend("c", opened(data("c")))
    assert host.there() == {hashlib.sha256(data(name)).hexdigest() for name in ("lives", "c")}


async def test_a_sandbox_that_is_being_made_is_not_taken_for_dead(host: Host) -> None:
    async with host.cache.placed(shows(opened(data("a"))), "early"):
        host.held.append("b")
        with pytest.raises(SandboxFault, match="does not fit"):
            await host.lend("b", opened(data("b")), opened(data("c")))
    assert hashlib.sha256(data("a")).hexdigest() in host.there()


async def test_packages_are_kept_for_warm_interpreters_until_their_keeper_is_another(host: Host) -> None:
    stream = tree(("a", "x" * 40 * KIB, 0o644))
    environment = await host.cache.with_packages(EnvironmentRef(packages=opened(stream, tree=True)))
    assert environment.packages is not None
    assert environment.packages.path is not None
    host.cache.pin(environment.packages.path)
    with pytest.raises(SandboxFault, match="does not fit"):
        await host.lend("b", opened(data("b", 80)))
    host.cache.restarted()
    await host.lend("b", opened(data("b", 80)))
    assert host.there() == {hashlib.sha256(data("b", 80)).hexdigest()}


async def test_a_create_that_fails_keeps_nothing_and_hinders_no_other_of_its_key(host: Host) -> None:
    for known in (False, True):
        if known:
            await host.lend("key", opened(data("a")))
        with pytest.raises(ZeroDivisionError):
            async with host.cache.placed(shows(opened(data("a"))), "key"):
                raise ZeroDivisionError
        marks = [*host.directory.glob(".marks/*/*")]
        assert len(marks) == known


async def test_a_half_of_it_is_never_used(host: Host) -> None:
    """A server that is killed leaves a part, which the next one removes."""
    digest = opened(data("a")).digest
    halfway, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield data("a")[:1000]
        halfway.set()
        await go_on.wait()

    lending = asyncio.create_task(host.lend("one", Content(digest, open=slow)))
    await halfway.wait()
    assert (host.there(), len(host.left())) == (set(), 1)
    killed = host.directory / host.left()[0]
    host.cache = host.reopened()
    [path] = await host.lend("two", opened(data("a")))
    assert path.read_bytes() == data("a")
    assert not killed.exists()
    lending.cancel()
    await asyncio.gather(lending, return_exceptions=True)
    assert host.left() == []


async def test_a_caller_that_goes_away_leaves_no_part(host: Host) -> None:
    begun = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        begun.set()
        await asyncio.Event().wait()

    for as_tree in (False, True):
        begun.clear()
        lending = asyncio.create_task(host.lend("one", Content("0" * 64, open=stuck, tree=as_tree)))
        await begun.wait()
        lending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lending
        assert (host.there(), host.left()) == (set(), [])


async def test_after_a_boot_it_is_empty(host: Host) -> None:
    stream = tree(("d", None, 0o755), ("d/f", "x", 0o644))
    await host.lend("one", opened(data("a")), opened(stream, tree=True))
    (host.directory / ".boot").write_text("another boot")
    host.cache = host.reopened()
    await host.lend("two", opened(data("b", 1)))
    assert host.there() == {hashlib.sha256(data("b", 1)).hexdigest()}


async def test_a_digest_never_names_another_place(host: Host) -> None:
    for digest in ("", "..", "../../etc", "A" * 64, "0" * 63 + "\n"):
        with pytest.raises(SandboxFault, match="must be a SHA-256 in hexadecimal"):
            await host.lend("one", replace(opened(b"x"), digest=digest))


async def test_a_disk_without_room_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(SandboxFault, match=r"cannot be kept on this host: .*No space left"):
        await host.lend("one", opened(data("a")))
    assert (host.there(), host.left()) == (set(), [])
