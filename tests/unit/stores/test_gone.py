"""The time at which a sandbox was gone comes to the record of its run behind that run's end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skillyard.testing.records_suite import ended, running

pytestmark = pytest.mark.anyio


async def test_an_ended_record_gets_it_and_stays_as_it_is(makers: Any) -> None:
    async with makers.records() as store:
        heard: list[str] = []
        await store.insert(running(1))
        await store.note_gone("run_1", 2.5)
        assert await store.get("run_1") == running(1), "a live one is not changed"
        last = ended(running(1), usage={"cpu_ms": 1.25, "source": "cgroup"}, summary="a\ud800b \u20ac")
        assert await store.finish(last)
        store.listen(lambda record: heard.append(record.run_id))
        await store.note_gone("run_1", 2.5)
        await store.note_gone("run_2", 2.5)
        assert await store.get("run_1") == replace(last, usage={**last.usage, "gone_ms": 2.5})
        assert await store.get("run_2") is None
        assert heard == [], "nobody hears of it"
