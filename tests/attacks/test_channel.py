"""Answers of foreign code by its channel and log that are its own, cost too much, or go on after its end.

Forged ones are tried by the family ``channel`` of ``skillyard verify``.
"""

from __future__ import annotations

import time

import pytest

from tests.attacks.conftest import Attack

FRAMES = """
import json

def frame(kind, payload):
    return kind + len(payload).to_bytes(4, "big") + payload

def begin(n, kind="text/plain"):
    return frame(b"B", json.dumps({"n": n, "kind": kind}).encode())

def piece(n, data):
    return frame(b"D", n.to_bytes(4, "big") + data)

def end(n, size):
    return frame(b"E", json.dumps({"n": n, "size": size}).encode())

def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(3, view):]

write({ATTACK})
os._exit(0)
"""


def test_a_result_that_foreign_code_writes_itself_is_its_own(attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", "begin(1) + piece(1, b'abc') + end(1, 3) + frame(b'R', b'{\"a\": 1}')"))
    assert run.output == {"a": 1}
    assert len(run["output_blobs"]) == 1


def test_lone_surrogates_and_equal_keys_are_made_harmless(attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", """frame(b'R', b'{"a": "\\\\ud800", "a": "\\\\udfff"}')"""))
    assert run.output == {"a": "\ufffd"}


def test_a_flood_by_those_who_are_left_ends_too(attack: Attack) -> None:
    run = attack("""
        for _ in range(4):
            if os.fork() == 0:
                os.setsid()
                while True:
                    os.write(1, b"x" * 65536)
        time.sleep(0.02)
        os._exit(3)
    """)
    assert run["status"] == "failed"
    assert run["usage"]["wall_ms"] < 15_000


BOUND_S = 60.0
"""Far more than the reading takes: the benchmark measures how it grows."""

COSTLY = {
    "pieces of one byte": "begin(1) + piece(1, b'x') * 1_500_000",
    "pieces of one byte of many blobs": "b''.join(map(begin, range(1, 30))) + piece(7, b'x') * 1_500_000",
    "empty arrays": "frame(b'R', b'{\"a\":[' + b'[],' * 5_000_000 + b'1]}')",
    "empty objects": "frame(b'R', b'{\"a\":[' + b'{},' * 5_000_000 + b'1]}')",
    "many keys": "frame(b'R', b'{' + b','.join(b'\"%x\":{}' % i for i in range(900_000)) + b'}')",
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_answer_is_refused_at_once(name: str, attack: Attack) -> None:
    """What a run sends costs the server in proportion to its bytes, however it is cut."""
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
