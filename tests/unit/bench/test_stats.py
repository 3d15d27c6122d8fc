"""Percentiles and ratios."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.bench.turns import Rounds, in_ms, median, percentile

numbers = st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=2, max_size=50)


@given(numbers)
def test_quartiles_agree_with_the_standard_library(values: list[float]) -> None:
    ours = [percentile(values, percent) for percent in (25, 50, 75)]
    assert ours == pytest.approx(statistics.quantiles(values, n=4, method="inclusive"), abs=1e-6)


@given(numbers)
def test_a_percentile_is_one_of_the_values_or_between_them_and_never_falls(values: list[float]) -> None:
    points = [percentile(values, percent) for percent in range(0, 101, 5)]
    assert points[0] == min(values)
    assert points[-1] == max(values)
    assert all(low <= high + 1e-9 for low, high in pairwise(points))


def test_one_value_is_every_percentile_of_itself() -> None:
    assert [percentile([7.0], percent) for percent in (0, 50, 99, 100)] == [7.0] * 4


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 100.1)])
def test_what_has_no_percentile_is_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)


def test_the_median_does_not_follow_an_outlier() -> None:
    assert median([1.0, 2.0, 1000.0]) == 2.0


def _rounds(*blocks: list[float]) -> Rounds:
    rounds = Rounds()
    for number, block in enumerate(blocks):
        rounds.add(number, block)
    return rounds


def test_a_ratio_is_taken_round_by_round_so_that_weather_cancels_out() -> None:
    """In the second round the machine was ten times slower for both."""
    ours, theirs = _rounds([2.0, 2.0], [20.0], [2.0]), _rounds([10.0], [100.0], [10.0])
    assert ours.ratio(theirs) == pytest.approx(0.2)
    assert ours.excess(theirs) == pytest.approx(-8.0)


def test_only_common_rounds_are_compared() -> None:
    slow = Rounds()
    slow.add(6, [50.0])
    assert _rounds([1.0], [1.0]).ratio(slow) is None
    assert _rounds(*[[5.0]] * 7).ratio(slow) == pytest.approx(0.1)


def test_an_empty_block_is_no_round() -> None:
    rounds = _rounds([], [3.0])
    assert rounds.samples == [3.0]
    assert list(rounds.blocks) == [1]


def test_seconds_become_named_milliseconds() -> None:
    assert in_ms([0.001, 0.002, 0.003]) == {"min_ms": 1.0, "p50_ms": 2.0, "p95_ms": 2.9, "p99_ms": 2.98}
