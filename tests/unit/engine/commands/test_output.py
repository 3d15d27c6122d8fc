"""The log of a command: streams told apart, their true ends, secrets taken out of each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.engine.commands.output import MARK_EVERY, STDERR, STDOUT, Marked, Marker, Tail, Unmarker, tails_of
from skillyard.engine.secrets.redact import NOTHING, Redaction

PIECES = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=40)))
SECRET = "tok-0123456789"


def marked(pieces: list[tuple[str, bytes]]) -> bytes:
    out, marker = bytearray(), Marker()
    for stream, data in pieces:
        marker.add(out, stream, data)
    return bytes(out)


def streams(log: bytes, cut: int = 1 << 20) -> dict[str, bytes]:
    reader, found = Unmarker(), {STDOUT: b"", STDERR: b""}
    for at in range(0, len(log), cut):
        for stream, data in reader.feed(log[at : at + cut]):
            found[stream] += data
    return found


def joined(pieces: list[tuple[str, bytes]]) -> dict[str, bytes]:
    return {stream: b"".join(data for name, data in pieces if name == stream) for stream in (STDOUT, STDERR)}


@given(PIECES, st.integers(1, 7))
def test_streams_come_back_however_the_log_is_cut(pieces: list[tuple[str, bytes]], cut: int) -> None:
    assert streams(marked(pieces), cut) == joined(pieces)


@given(st.binary(max_size=200), st.integers(1, 7))
def test_any_bytes_are_a_log(log: bytes, cut: int) -> None:
    assert streams(log, cut) == streams(log)
    assert len(Unmarker().plain(log)) <= len(log)


def test_a_log_has_a_mark_within_reach_of_every_byte() -> None:
    log = marked([(STDERR, b"x" * (3 * MARK_EVERY))])
    assert max(map(len, log.split(b"\0"))) < MARK_EVERY


@given(st.integers(0, len(SECRET)), st.integers(1, 9))
def test_a_secret_is_found_across_pieces_and_output_of_the_other_stream(split: int, cut: int) -> None:
    raw = SECRET.encode()
    log = marked([(STDOUT, b"a" + raw[:split]), (STDERR, b"between"), (STDOUT, raw[split:] + b"z")])
    redactor = Marked(Redaction([SECRET])).stream()
    out = b"".join(redactor.feed(log[at : at + cut]) for at in range(0, len(log), cut)) + redactor.flush()
    assert streams(out) == {STDOUT: b"a[redacted]z", STDERR: b"between"}


@given(PIECES)
def test_without_secrets_nothing_changes(pieces: list[tuple[str, bytes]]) -> None:
    redactor = Marked(NOTHING).stream()
    assert streams(redactor.feed(marked(pieces)) + redactor.flush()) == joined(pieces)


def test_a_tail_is_the_true_end_and_says_so() -> None:
    tail = Tail(10)
    for _ in range(1000):
        tail.feed(b"0123456789abc")
    assert (tail.text(), tail.truncated, tail.size) == ("3456789abc", True, 13_000)
    exact = Tail(5)
    exact.feed(b"12345")
    assert (exact.text(), exact.truncated) == ("12345", False)


def test_limits_count_bytes_and_cut_no_character() -> None:
    tail = Tail(5)
    tail.feed("xéé€".encode())
    assert tail.text() == "é€"
    assert tail.truncated


@pytest.mark.anyio
async def test_both_tails_are_read_in_one_pass() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        log = marked([(STDOUT, b"a" * 100), (STDERR, b"first"), (STDOUT, b"end")])
        for at in range(0, len(log), 3):
            yield log[at : at + 3]

    tails = await tails_of(pieces(), {STDOUT: 6, STDERR: 100})
    assert {name: (tail.text(), tail.truncated) for name, tail in tails.items()} == {
        STDOUT: ("aaaend", True), STDERR: ("first", False),
    }  # fmt: skip
