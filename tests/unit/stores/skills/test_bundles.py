"""Bundles as they travel: the port's promises, what is synced to the disk, what a bundle calls itself."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard.ports.skills import BundleStore
from skillyard.stores.skills.archives import read_archive
from skillyard.stores.skills.bundles import LocalBundles, own_name
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Tree
from skillyard.testing import bundles_suite
from tests.bundles import note_files, skill_files, tar

pytestmark = pytest.mark.ordinary


@pytest.mark.anyio
@pytest.mark.parametrize("check", bundles_suite.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: Any, tmp_path: Path) -> None:
    numbers = itertools.count()

    @asynccontextmanager
    async def make(max_bytes: int) -> AsyncIterator[BundleStore]:
        home = tmp_path / str(next(numbers))
        bundles = LocalBundles(Snapshots(home / "snapshots"), home / "uploads", max_bytes=max_bytes)
        bundles.prepare()
        yield bundles
        assert list((home / "uploads").iterdir()) == []

    await check(make)


def tree_of(files: dict[str, bytes]) -> Tree:
    unpacked, findings = read_archive(io.BytesIO(tar(files)))
    assert unpacked, findings
    return unpacked.tree


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (skill_files("acme.words.say"), "acme.words.say"),
        (note_files("some-note"), "some-note"),
        ({"skill.toml": b"name = 3"}, ""),
        ({"skill.toml": b"name ="}, ""),
        ({"skill.toml": b"", "SKILL.md": note_files()["SKILL.md"]}, ""),
        ({"SKILL.md": b"# No front matter\n"}, ""),
        ({"SKILL.md": b"\xff\xfe"}, ""),
        ({"README.md": b"x"}, ""),
    ],
)
def test_what_a_bundle_calls_itself(files: dict[str, bytes], name: str) -> None:
    assert own_name(tree_of(files)) == name


@pytest.mark.parametrize("sync", [True, False])
def test_a_snapshot_that_must_last_is_on_the_disk_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    synced: list[str] = []
    plain = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        plain(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    home = Snapshots(tmp_path / "snapshots", sync=sync).store(tree_of(skill_files()))
    if not sync:
        assert synced == []
        return
    assert {"skill.toml", "SKILL.md", "main.py", "code"} < set(synced)
    assert synced[-1] == "snapshots", "and its name after it got it"
    assert home.name not in synced, "nothing of it was synced under its own name: it was whole before"
