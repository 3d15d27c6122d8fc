"""What a run sends costs the server in proportion to its bytes, however it is cut."""

from __future__ import annotations

import time

import pytest

from tests.attacks.conftest import Attack
from tests.attacks.test_channel import FRAMES

BOUND_S = 4.0

COSTLY = {
    "pieces of one byte": "begin(1) + piece(1, b'x') * 1_500_000",
    "pieces of one byte of many blobs": "b''.join(map(begin, range(1, 30))) + piece(7, b'x') * 1_500_000",
    "empty arrays": "frame(b'R', b'{\"a\":[' + b'[],' * 5_000_000 + b'1]}')",
    "empty objects": "frame(b'R', b'{\"a\":[' + b'{},' * 5_000_000 + b'1]}')",
    "many keys": "frame(b'R', b'{' + b','.join(b'\"%x\":{}' % i for i in range(900_000)) + b'}')",
}


@pytest.mark.parametrize("name", COSTLY)
def test_it_is_refused_at_once(name: str, attack: Attack) -> None:
    started = time.monotonic()
    run = attack(FRAMES.replace("{ATTACK}", COSTLY[name]))
    assert run["status"] == "failed", dict(run)
    assert time.monotonic() - started < BOUND_S


HONEST = {
    "small pieces of a small blob": "begin(1) + piece(1, b'x') * 4000 + end(1, 4000) + frame(b'R', b'{}')",
    "a large blob": "begin(1) + piece(1, b'x' * 65536) * 200 + end(1, 200 * 65536) + frame(b'R', b'{}')",
    "many numbers": "frame(b'R', b'{\"a\":[' + b'1,' * 1_000_000 + b'1]}')",
    "brackets in a text": "frame(b'R', b'{\"a\":\"' + b'[' * 1_000_000 + b'\"}')",
}


@pytest.mark.parametrize("name", HONEST)
def test_its_honest_twin_is_not(name: str, attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", HONEST[name]))
    assert run["status"] == "completed", dict(run)
