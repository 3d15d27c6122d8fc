"""The page of the isolations compared: what counts as too much beside the bare component."""

from __future__ import annotations

import pytest

from bench.backends.page import tables

PARTS = ("sandbox", "run", "session", "runs")


@pytest.mark.parametrize(
    ("ours_s", "bare_s", "told"),
    [
        (0.019, 0.006, "3.17, +13 ms |"),
        (1.100, 1.000, "1.10, +100 ms |"),
        (0.140, 0.100, "1.40, +40 ms (above) |"),
        (0.050, 0.100, "0.50, -50 ms |"),
    ],
)
def test_a_part_is_above_when_it_adds_too_many_milliseconds_and_too_large_a_share(
    ours_s: float, bare_s: float, told: str
) -> None:
    seconds = {part: {"ours": ours_s, "native": 0.01, "bare": bare_s} for part in PARTS}
    seconds["runs"] = {who: taken * 10 for who, taken in seconds["runs"].items()}
    page = tables({"oci": {"bare": "`docker run`", "cost": {"seconds": seconds, "rounds": 1, "runs": 10}}}, ["oci"])
    row = next(line for line in page.splitlines() if line.startswith("| `oci` | `docker run`"))
    assert row.count(told) == len(PARTS)
    assert ("Cost of a session" in page) is ("above" in told)
