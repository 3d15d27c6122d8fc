"""What requests may hold of the server's memory, all together and each principal's."""

from __future__ import annotations

import pytest

from skillyard.domain.errors import Busy
from skillyard.domain.work.record import RunKind
from skillyard.engine.runs.request import RunRequest, from_params
from skillyard.engine.shares import Budget

MIB = 1 << 20


def request(**args: object) -> RunRequest:
    return from_params(RunKind.CODE, {"language": "python", "code": "pass", "args": args})


def test_one_principal_leaves_room_for_another() -> None:
    held = Budget(16 * MIB, 12 * MIB, "too many large requests at once")
    large = request(text="x" * (3 * MIB)).weight
    with held.holding("greedy", large):
        with pytest.raises(Busy) as caught, held.holding("greedy", large):
            raise AssertionError("it was taken")
        assert caught.value.retry_after_ms > 0
        with held.holding("other", large):
            assert held.held > 12 * MIB
    assert held.held == 0


def test_however_small_requests_are_their_number_is_bounded() -> None:
    assert request().weight >= 64 * 1024


def test_many_values_weigh_what_they_take() -> None:
    assert request(lists=[[] for _ in range(100_000)]).weight > 5 * MIB
