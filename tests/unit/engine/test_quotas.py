"""Quotas of calls: a token has so many within its window, and takes none of another's."""

from __future__ import annotations

import pytest

from skillyard.config.profiles import ProfileQuotas, ProfileSettings
from skillyard.domain.errors import Busy
from skillyard.domain.principal import Principal
from skillyard.engine.quotas import CallQuotas
from tests.unit.engine.conftest import ManualClock

ANN, BOB = Principal("ann", profile="bounded"), Principal("bob", profile="bounded")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def quotas(clock: ManualClock) -> CallQuotas:
    bounded = ProfileSettings(allowed_tools=("*",), quotas=ProfileQuotas(calls=3, calls_window_s=10))
    return CallQuotas({"bounded": bounded, "free": ProfileSettings(allowed_tools=("*",))}, clock)


def use_up(quotas: CallQuotas, principal: Principal) -> Busy:
    """Makes all the calls that the quota allows, and returns the refusal of the next."""
    for _ in range(3):
        quotas.count(principal)
    with pytest.raises(Busy) as refused:
        quotas.count(principal)
    return refused.value


def test_a_call_beyond_the_quota_is_told_when_to_come_again(quotas: CallQuotas, clock: ManualClock) -> None:
    refused = use_up(quotas, ANN)
    assert refused.retry_after_ms == 10_000
    for part in ("3 calls within 10 s", "the profile 'bounded'", "profiles.bounded.quotas.calls", "10000 ms"):
        assert part.replace("the profile", "profile") in refused.message
    assert refused.details["limit"] == "profiles.bounded.quotas.calls"
    clock.time += 7.5
    with pytest.raises(Busy) as later:
        quotas.count(ANN)
    assert later.value.retry_after_ms == 2500
    clock.time += later.value.retry_after_ms / 1000
    use_up(quotas, ANN)


def test_refused_calls_do_not_count(quotas: CallQuotas, clock: ManualClock) -> None:
    use_up(quotas, ANN)
    for _ in range(1000):
        clock.time += 0.009
        with pytest.raises(Busy):
            quotas.count(ANN)
    clock.time += 1.1
    use_up(quotas, ANN)


def test_a_token_takes_no_calls_of_another(quotas: CallQuotas) -> None:
    use_up(quotas, ANN)
    use_up(quotas, BOB)


def test_a_token_without_a_quota_is_not_counted(quotas: CallQuotas) -> None:
    for principal in (Principal("root"), Principal("eve", profile="free"), Principal("old", profile="not there")):
        for _ in range(10):
            quotas.count(principal)
    assert len(quotas) == 0


@pytest.mark.parametrize("jump", [-1e9, -1.0, 10.0, 1e9])
def test_a_clock_that_jumps_locks_nobody_out(quotas: CallQuotas, clock: ManualClock, jump: float) -> None:
    use_up(quotas, ANN)
    clock.time += jump
    use_up(quotas, ANN)


def test_tokens_whose_window_is_over_are_forgotten(quotas: CallQuotas, clock: ManualClock) -> None:
    for number in range(1000):
        clock.time += 1
        quotas.count(Principal(f"t{number}", profile="bounded"))
    assert len(quotas) <= 12
