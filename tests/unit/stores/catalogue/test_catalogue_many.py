"""10,000 skills in five versions each, as the project promises them. Prints what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.catalogue import measure

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(3600)]

MIB = 1024 * 1024


async def test_fifty_thousand_bundles(tmp_path: Path) -> None:
    shelf = await measure(tmp_path, names=10_000, versions=5, rounds=60)
    told = shelf.as_dict()
    print(json.dumps(told, indent=2))
    asked = {row["id"]: row for row in told["asked"]}
    assert shelf.start_s < 2
    assert asked["page"]["p50_ms"] < 5
    assert asked["first"]["p50_ms"] < 20
    assert told["noticed_s"] < 5
    assert told["memory_bytes"] < 60 * MIB
