"""The corpus, sent to be published: refused with findings, and nothing is left where bundles are spooled and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.errors import BundleRefused, QuotaExceeded
from skillyard.stores.skills.bundles import LocalBundles
from skillyard.stores.skills.snapshots import Snapshots
from tests.bundles import a_skill
from tests.unit.stores.archives.corpus import ATTACKS

pytestmark = pytest.mark.anyio


async def pieces(raw: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(raw), 65_536):
        yield raw[at : at + 65_536]


def left(home: Path) -> list[str]:
    return [str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()]


async def test_nothing_is_left_of_what_is_refused(tmp_path: Path) -> None:
    store = LocalBundles(Snapshots(tmp_path / "snapshots"), tmp_path / "spool")
    store.prepare()
    for attack in ATTACKS:
        with pytest.raises((BundleRefused, QuotaExceeded)) as refused:
            await store.receive(pieces(attack.make()))
        if isinstance(refused.value, BundleRefused):
            assert refused.value.details["findings"][-1]["rule"] == attack.rule, attack.name
        else:
            assert attack.rule == "archive-size"
    assert left(tmp_path) == []
    arrived = await store.receive(pieces(a_skill()))
    assert left(tmp_path) == []
    await arrived.keep()
    assert len(left(tmp_path)) == 3
