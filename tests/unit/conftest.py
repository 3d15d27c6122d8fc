"""Keeps unit tests cheap: all of them take about a minute on two processors."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests import examples

MOST_S = 10.0
"""Processor time of one unit test, with the processes that it started and waited for."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    before = _computed()
    result = yield
    took = _computed() - before
    is_short = settings().max_examples == examples.SHORT and item.get_closest_marker("long") is None
    if took > MOST_S and is_short:
        pytest.fail(
            f"it computed for {took:.1f} s, at most {MOST_S:g} s are a unit's; make it cheaper or mark it `long`"
        )
    return result


def _computed() -> float:
    return sum(os.times()[:4])
